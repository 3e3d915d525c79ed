"""ATen's fake quantization, the gradient of PReLU, and cross products.

These ops are nearly elementwise, but return several tensors or combine the elements along one dimension. Each op has
ATen's name and arguments; its reference is torch's own op.
"""

from .index import declare

LIMITS = "quant_min: int, quant_max: int"

TABLE = {
    "_prelu_kernel_backward": "grad_output: Tensor, self: Tensor, weight: Tensor",
    "linalg_cross": "self: Tensor, other: Tensor, *, dim: int = -1",
    "fake_quantize_per_tensor_affine_cachemask": f"self: Tensor, scale: float, zero_point: int, {LIMITS}",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": "self: Tensor, scale: Tensor, zero_point: Tensor, "
    f"fake_quant_enabled: Tensor, {LIMITS}",
    "fake_quantize_per_channel_affine_cachemask": f"self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, "
    f"{LIMITS}",
    "_fake_quantize_learnable_per_tensor_affine": f"self: Tensor, scale: Tensor, zero_point: Tensor, {LIMITS}, "
    "grad_factor: float = 1.0",
}
QUANTIZED = "output mask"
OUTS = {
    "_prelu_kernel_backward": "dx dweight",
    **{name: QUANTIZED for name in TABLE if "cachemask" in name},
}

ops = declare(TABLE, __name__, OUTS)

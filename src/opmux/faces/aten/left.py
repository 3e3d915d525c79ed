"""Overloads of ATen that opmux does not override, and why.

    composition   ATen computes the op by calling other ops, which are overridden
    view          the op changes sizes and strides and runs no kernel
    LEFT          any other reason, per overload or op
    NOT_YET       overloads for which we plan to write a kernel

`docs/aten_coverage.md` lists them; `opmux.explain` gives the reason.
"""

from __future__ import annotations

import functools
from pathlib import Path

from .overloads import table
from .schema import OverloadSchema, overloads

# Op or overload -> why torch's own kernel runs.
_FACTORISATION = "a factorisation or solver of dense linear algebra: torch calls cuSOLVER, MAGMA or LAPACK"
_CUDNN = "an entry point of cuDNN, which torch calls by this name"
_MIOPEN = "an entry point of MIOpen, for AMD only"
_METADATA = "changes or checks sizes and storage on the host; no kernel runs"
_SYMBOLIC = "a marker for tracers about symbolic sizes; no kernel runs"
_NESTED = "for nested tensors, which opmux leaves to torch"
_SPARSE = "for sparse tensors, which opmux leaves to torch"
_NO_CUDA = "torch has no kernel for it on GPUs"

LEFT: dict[str, str] = {
    # linear algebra
    "_cholesky_solve_helper": _FACTORISATION,
    "_linalg_eigvals": _FACTORISATION,
    "cholesky_inverse": _FACTORISATION,
    "cholesky_solve": _FACTORISATION,
    "linalg_householder_product": _FACTORISATION,
    "linalg_ldl_factor_ex": _FACTORISATION,
    "linalg_ldl_solve": _FACTORISATION,
    "linalg_lstsq": _FACTORISATION,
    "linalg_lu": _FACTORISATION,
    "linalg_lu_factor_ex": _FACTORISATION,
    "linalg_solve_triangular": _FACTORISATION,
    "lu_unpack": "unpacks the result of an LU factorisation, which is torch's",
    "ormqr": _FACTORISATION,
    # vendors' libraries
    "_cudnn_attention_forward": _CUDNN,
    "_scaled_dot_product_cudnn_attention": _CUDNN,
    "_scaled_dot_product_cudnn_attention_backward": _CUDNN,
    "cudnn_batch_norm_backward": _CUDNN,
    "cudnn_convolution": _CUDNN,
    "miopen_batch_norm_backward": _MIOPEN,
    "_scaled_dot_product_fused_attention_overrideable": "the entry point for backends outside torch; they implement it",
    # other devices, layouts and tensor types
    "_convert_weight_to_int4pack": "writes a layout that only torch's own _weight_int4pack_mm reads, once for a model",
    "_dyn_quant_pack_4bit_weight": _NO_CUDA,
    "_weight_int4pack_mm_with_scales_and_zeros": _NO_CUDA,
    "_conj_copy": "for complex tensors, which opmux leaves to torch",
    "_jagged_to_padded_dense_forward": _NESTED,
    "_nested_view_from_buffer_copy": _NESTED,
    "dot": "a single reduction by cuBLAS; ours would be two kernels",
    "vdot": "a single reduction by cuBLAS; ours would be two kernels",
    "affine_grid_generator": "ATen computes it by linspace, copies and a matrix product of small sizes",
    "linear": "ATen composes it from addmm and matmul; its own kernels are for nested tensors, MKL-DNN and MPS",
    "linear_backward": "its kernels are for nested tensors and MPS; elsewhere autograd differentiates addmm",
    "_sparse_semi_structured_mm": _SPARSE,
    "sparse_sampled_addmm": _SPARSE,
    "blackman_window": "ATen computes it by arange, mul_, cos_ and add_, which are overridden",
    "_add_relu": _NO_CUDA,
    "_add_relu_": _NO_CUDA,
    "dequantize": "for quantized tensors, which opmux leaves to torch",
    "_compute_linear_combination": "a part of matrix_exp, which is torch's",
    "aminmax": "torch reads its input once; two reductions of ours would read it twice",
    "_native_batch_norm_legit.out": "out= tensors are checked only after running statistics have changed",
    # composed below autograd
    "_batch_norm_no_update": "ATen composes it from native_batch_norm or cudnn_batch_norm",
    "_batch_norm_with_update_functional": "ATen composes it from _batch_norm_with_update and copies",
    "_native_batch_norm_legit_functional": "ATen composes it from _native_batch_norm_legit and copies",
    "_euclidean_dist": "ATen composes it from matmul and pointwise ops",
    "_fused_adam": "ATen composes it from _fused_adam_ and copies",
    "_is_all_true": "ATen composes it from all",
    "_safe_softmax": "ATen composes it from _softmax, eq, all and where",
    "dist": "ATen composes it from sub and norm",
    "renorm": "ATen composes it from linalg_vector_norm and mul",
    "renorm_": "ATen composes it from linalg_vector_norm and mul",
    "rrelu_with_noise_backward": "ATen composes it from mul or leaky_relu_backward",
    "rrelu_with_noise_functional": "ATen composes it from rrelu_with_noise, which is torch's, and copies",
    "_fused_moving_avg_obs_fq_helper": "ATen composes it from aminmax, fake_quantize_*_cachemask, which are overridden "
    "where they are ours, and kernels over a number for each channel",
    # inner steps and checks
    "_assert_async": "checks one number on the device; nothing is computed",
    "_functional_assert_async": "checks one number on the device; nothing is computed",
    "_cummin_helper": "the inner step of cummin, which is overridden itself",
    "_cummax_helper": "the inner step of cummax, which is overridden itself",
    "allclose": "ATen composes it from isclose and all, and reads the result on the host",
    "multinomial": "one draw is exponential_, a division and argmax or topk, which are overridden; many are torch's",
    "value_selecting_reduction_backward": "ATen composes it from zeros and scatter_, which is overridden",
    # work on the host
    "_has_compatible_shallow_copy_type": "compares the types of two tensors on the host; no kernel runs",
    "choose_qparams_optimized": "a search that runs on the host",
    "is_nonzero": "reads one number on the host",
    "sym_storage_offset": _METADATA,
    "_functional_sym_constrain_range": _SYMBOLIC,
    "_functional_sym_constrain_range_for_size": _SYMBOLIC,
    "_make_dep_token": _SYMBOLIC,
    "_resize_output": _METADATA,
    "_resize_output_": _METADATA,
    "_unsafe_view": _METADATA,
    "empty_permuted": "allocates memory; no kernel runs",
    "lift": _METADATA,
    "resize": _METADATA,
    "resize_": _METADATA,
    "resize_as": _METADATA,
    "resize_as_": _METADATA,
    "unsqueeze_": _METADATA,
}

# Family -> overloads for which we plan to write a kernel, one name per line. Delete a line when its kernel exists.
NOT_YET: dict[str, str] = {}

# Op that ATen composes -> the ops that it calls, recorded from torch 2.13. docs/aten_coverage.md and `explain` use it.
COMPOSED: dict[str, str] = {
    "__and__": "bitwise_and",
    "__ior__": "bitwise_or_",
    "__ixor__": "bitwise_xor_",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "_batch_norm_impl_index": "native_batch_norm or cudnn_batch_norm",
    "_batch_norm_impl_index_backward": "native_batch_norm_backward",
    "_convolution_double_backward": "convolution and convolution_backward",
    "_convolution_mode": "convolution",
    "_scaled_dot_product_attention_math": "matmul and _safe_softmax",
    "_weight_norm": "_weight_norm_interface",
    "absolute": "abs",
    "adaptive_avg_pool1d": "_adaptive_avg_pool2d",
    "alpha_dropout": "bernoulli_, mul and add",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "argsort": "sort",
    "avg_pool1d": "avg_pool2d",
    "bilinear": "_trilinear",
    "broadcast_tensors": "expand, a view",
    "broadcast_to": "expand, a view",
    "cdist": "_cdist_forward",
    "chalf": "_to_copy",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "conj_physical": "_conj_physical; of real numbers it returns its input",
    "conv1d": "convolution",
    "conv2d": "convolution",
    "conv3d": "convolution",
    "conv_transpose1d": "convolution",
    "ctc_loss": "_ctc_loss",
    "cummaxmin_backward": "scatter_add_",
    "diag": "diagonal_copy or diag_embed",
    "diff": "sub",
    "divide": "div",
    "embedding_backward": "embedding_dense_backward",
    "expand_as": "expand, a view",
    "fake_quantize_per_channel_affine": "fake_quantize_per_channel_affine_cachemask",
    "feature_dropout": "bernoulli_, div_ and mul",
    "fix": "trunc",
    "flatten": "view or reshape",
    "float_power": "_to_copy and pow",
    "float_power_": "pow_",
    "gather_backward": "zeros and scatter_add_",
    "greater": "gt",
    "greater_equal": "ge",
    "hstack": "cat",
    "index_select_backward": "index_add",
    "isclose": "eq, abs, sub, mul, le and logical ops",
    "isfinite": "abs, ne, eq and mul",
    "kron": "mul",
    "less": "lt",
    "less_equal": "le",
    "linalg_cholesky": "linalg_cholesky_ex",
    "linalg_det": "_linalg_det",
    "linalg_ldl_factor": "linalg_ldl_factor_ex",
    "linalg_lu_factor": "linalg_lu_factor_ex",
    "linalg_matrix_norm": "_linalg_svd and amax",
    "linalg_slogdet": "_linalg_slogdet",
    "linalg_svd": "_linalg_svd",
    "linalg_svdvals": "_linalg_svd",
    "linalg_vecdot": "mul and sum",
    "log_sigmoid": "log_sigmoid_forward",
    "margin_ranking_loss": "sub, neg, mul, add, clamp_min_ and mean",
    "multiply": "mul",
    "negative": "neg",
    "nonzero_numpy": "nonzero and unbind",
    "not_equal": "ne",
    "one_hot": "zeros and scatter_",
    "pad": "constant_pad_nd, reflection_pad* or replication_pad*",
    "pairwise_distance": "sub, add and norm",
    "pdist": "_pdist_forward",
    "prelu": "_prelu_kernel",
    "quantile": "sort, gather and lerp_",
    "relu6": "hardtanh",
    "repeat_interleave.self_Tensor": "repeat_interleave.Tensor and index_select",
    "repeat_interleave.self_int": "expand and clone",
    "resolve_conj": "clone, of conjugated tensors only",
    "resolve_neg": "clone, of negated tensors only",
    "rms_norm": "_fused_rms_norm",
    "selu": "elu",
    "special_digamma": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_gammainc": "igamma",
    "special_gammaincc": "igammac",
    "special_gammaln": "lgamma",
    "special_log1p": "log1p",
    "special_log_softmax": "_log_softmax",
    "special_logsumexp": "logsumexp",
    "special_multigammaln": "mvlgamma",
    "special_round": "round",
    "special_sinc": "sinc",
    "square": "pow",
    "subtract": "sub",
    "svd": "_linalg_svd",
    "tile": "repeat",
    "true_divide": "div",
    "unsafe_chunk": "unsafe_split",
    "var": "var.correction",
    "vstack": "cat",
}


@functools.cache
def flaggems_names() -> tuple[str, ...]:
    """The ATen overloads that FlagGems registers and torch 2.13 has."""
    return tuple(Path(__file__).with_name("flaggems_names.txt").read_text(encoding="utf-8").split())


def reason(name: str) -> str | None:
    """Why opmux does not override an overload, as the end of "torch's own kernel runs, because ..."; None if it does.

    `name` is ATen's: `transpose.int` or `relu`. For an overload that torch does not have, the result is None.
    """
    plain = name.removeprefix("aten::").removesuffix(".default")
    packet = plain.partition(".")[0]
    if plain in table() or plain not in {s.name for s in overloads(packet)}:
        return None
    shape = OverloadSchema(plain)
    if (why := LEFT.get(plain) or LEFT.get(packet)) is not None:
        return why
    if shape.composite:
        return f"ATen composes it from {parts(plain)}"
    if shape.view:
        return "it is a view; no kernel runs"
    return "opmux has no kernel for it"


def parts(name: str) -> str:
    """The ops that ATen composes an op from, as text. An in-place form has the ops of its functional form."""
    packet = name.partition(".")[0]
    known = (COMPOSED.get(n) for n in (name, packet, packet.removesuffix("_")))
    return next((ops for ops in known if ops is not None), "other ops")


def stated(name: str) -> bool:
    """Whether an overload that opmux does not override is left to torch on purpose."""
    shape = OverloadSchema(name)
    return name in LEFT or shape.packet in LEFT or shape.composite or shape.view


def not_yet() -> dict[str, str]:
    """Overload -> its op family in NOT_YET."""
    return {name: family for family, names in NOT_YET.items() for name in names.split()}

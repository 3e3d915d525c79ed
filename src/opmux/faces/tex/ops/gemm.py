"""tex's matrix products: NVIDIA's names and signatures, implemented by the ops of `gemm`.

The convention is column-major: for row-major A and B, D = alpha op(B) op(A), so the rows of B are the rows of D.
Quantized operands are multiplied without dequantizing if both are FP8 with one scale, or both have blocks of 128. The
product reads data whose last dimension is the summed one: the rowwise data of A if transA is set, and of B if transB is
not set; otherwise the columnwise data. All other quantized operands are dequantized first.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import FLOATS, Float
from ....core.errors import BadArgument, NotSupported
from ....core.spec import State
from ....core.tensors import dtype_name
from ....specs import activation, gemm
from ....specs._checks import check_list, check_number, check_tensor, type_name
from ....specs.gemm import BLOCK, SUMS
from ....specs.samples import Case, Draw, Maker
from ..enums import torch_dtype
from ..quantized import CASTS, can_quantize, device_of, kind_of, logical_shape, plain, quantized, tensor_kind

F32 = torch.float32
PLAIN = (Tensor, torch.nn.Parameter)


# ---- arguments ------------------------------------------------------------------------------------------------------


def is_plain_product(A: Any, B: Any, out_dtype: Any = None) -> bool:
    """Whether the fast path can run: A and B are plain tensors of the product's dtype, and grad mode is off."""
    if type(A) not in PLAIN or type(B) not in PLAIN or torch.is_grad_enabled():
        return False
    dtype = A.dtype
    return dtype is B.dtype and (out_dtype is None or out_dtype is dtype)


def shape_of(op: str, name: str, value: Any) -> torch.Size:
    """The shape of an operand; raises TypeError if it is neither a float tensor nor quantized."""
    if type(value) in PLAIN:
        if value.dtype in FLOATS and value.dim():
            return value.shape
    elif tensor_kind(value) is not None:
        return value.shape if isinstance(value, Tensor) or hasattr(value, "shape") else logical_shape(value)
    elif isinstance(value, Tensor) and value.dtype in FLOATS and value.dim():
        return value.shape
    if isinstance(value, Tensor) and not value.dim():
        raise BadArgument.of(op, name, "have at least one dimension", "a 0-dim tensor")
    got = dtype_name(value.dtype) if isinstance(value, Tensor) else type_name(value)
    raise BadArgument.of(
        op, name, "be a Tensor of float16, bfloat16, float32 or float64, or a quantized tensor", str(got), TypeError
    )


def sizes(op: str, A: Any, transA: bool, B: Any, transB: bool, suffix: str = "") -> tuple[list[int], int, int]:
    """Return the shape of D, the number of its rows, and the summed length; raises ValueError if A and B do not fit.

    `suffix` is appended to the names of A and B in an error.
    """
    a, b = shape_of(op, f"A{suffix}", A), shape_of(op, f"B{suffix}", B)
    ra = a[0] if len(a) == 2 else math.prod(a[:-1])
    rb = b[0] if len(b) == 2 else math.prod(b[:-1])
    n, k = (ra, a[-1]) if transA else (a[-1], ra)
    m, b_k = (b[-1], rb) if transB else (rb, b[-1])
    if k != b_k:
        forms = f"{'T' if transA else 'N'}{'T' if transB else 'N'}"
        part = "leading dimensions" if transB else "last dimension"
        what = f"as A{suffix} is {tuple(a)} and the layout {forms}"
        raise BadArgument.of(op, f"B{suffix}", f"have {k} in its {part}, {what}", str(tuple(b)))
    device, other_device = device_of(A), device_of(B)
    if device != other_device:
        raise BadArgument.of(op, f"B{suffix}", f"be on {device}, the device of A{suffix}", str(other_device))
    return [m, n] if transB or len(b) == 2 else [*b[:-1], n], m, k


def check_out(op: str, name: str, D: Any, shape: list[int], dtype: torch.dtype, like: Any) -> None:
    if type(D) in PLAIN and D.dtype is dtype and list(D.shape) == shape and D.device == device_of(like):
        if D.is_contiguous():
            return
    check_tensor(op, name, D, dtypes=(dtype,), shape=shape, on=device_of(like), of="that of the product")
    if not D.is_contiguous():
        raise BadArgument.of(op, name, "be contiguous", f"strides {D.stride()}")


def out_dtype_of(op: str, name: str, dtype: Any, A: Any, D: Any) -> torch.dtype:
    """The dtype of the product: `dtype`, else D's, else A's."""
    if dtype is None:
        like = D if isinstance(D, Tensor) and tensor_kind(D) is None else A
        dtype = getattr(like, "_dtype", None) or like.dtype
    if dtype not in FLOATS:
        raise BadArgument.of(op, name, "be None, float16, bfloat16, float32 or float64", repr(dtype), TypeError)
    return dtype


def check_epilogue(
    op: str, shape: list[int], rows: int, like: Any, bias: Any, gelu: bool, gelu_in: Any, grad: bool
) -> None:
    fits = bias is None or (bias.__class__ in PLAIN and bias.shape == (shape[-1],) and bias.dtype in FLOATS)
    if bias is not None and (not fits or bias.device != device_of(like)):
        row = isinstance(bias, Tensor) and bias.numel() == shape[-1] == bias.shape[-1]  # [1, n] means [n]
        # With grad, the bias is not read; it only requests a gradient.
        expected = None if grad or row else (shape[-1],)
        check_tensor(op, "bias", bias, shape=expected, on=device_of(like), of="a number for each column of D")
    if gelu and grad:
        check_tensor(op, "gelu_in", gelu_in, on=device_of(like))
        if gelu_in.numel() != rows * shape[-1]:
            raise BadArgument.of(op, "gelu_in", f"have shape {tuple(shape)}, that of D", str(tuple(gelu_in.shape)))
        if bias is not None:
            raise NotSupported(f"{op}: bias must be None with gelu and grad: no gradient of a bias behind a gelu")


def refuse_blocks(
    op: str,
    A: Any,
    B: Any,
    shape: list[int],
    rows: int,
    k: int,
    dtype: torch.dtype,
    bias: Any,
    gelu: bool,
    grad: bool,
    split: bool,
) -> None:
    """Raise for products of 128-blocks that cuBLAS rejects, so that a program behaves the same with opmux and NVIDIA's
    tex.

    cuBLAS requires split accumulation, one operand that is scaled along its rows, and rows aligned to 16 bytes.
    """
    both_e5m2 = torch_dtype(A._fp8_dtype) is torch_dtype(B._fp8_dtype) is torch.float8_e5m2
    problems = (
        (not split, "use_split_accumulator", "be True", "False"),
        (
            A._is_2D_scaled and B._is_2D_scaled,
            "B",
            "have blocks of 1 x 128, as those of {A} are 128 x 128",
            "128 x 128",
        ),
        (both_e5m2, "B", "be float8_e4m3fn, as {A} is float8_e5m2", "float8_e5m2"),
        (grad and bias is not None, "bias", "be None with {grad}: its gradient needs another call", "a Tensor"),
        (gelu and not grad, "gelu", "be False without {grad}: apply it in another call", "True"),
        (gelu and dtype is not torch.bfloat16, "output_dtype", "be bfloat16 with {gelu}", dtype_name(dtype)),
        (k % 16, "A", "be padded to a multiple of 16 in the summed dimension", str(k)),
        (shape[-1] % 8, "A", "be padded to a multiple of 8 columns of {D}", str(shape[-1])),
        (rows % 8 and not B._is_2D_scaled, "B", "be padded to a multiple of 8 rows of {D}", str(rows)),
    )
    for wrong, argument, expected, got in problems:
        if wrong:
            raise BadArgument.of(op, argument, f"{expected}, for blocks of 128", got)


# ---- products -------------------------------------------------------------------------------------------------------


def rows_of(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def shaped(y: Tensor, shape: list[int]) -> Tensor:
    """Reshape a result to the shape of D.

    The result must not be a view, because autograd forbids writing to a view that a custom function returns. So this
    resizes; `_unsafe_view` takes 10 us more.
    """
    return y if y.dim() == len(shape) else y.resize_(shape)


def fp8_of(value: Any, columnwise: bool) -> Tensor:
    """The bytes of an FP8 tensor with one scale; the summed dimension is last."""
    if not columnwise and value._data is not None:
        data = rows_of(value._data)
    elif columnwise and value._transpose is not None and not value._transpose_invalid:
        data = value._transpose
        data = data if data.dim() == 2 else data.reshape(data.shape[0], -1)
    elif columnwise and value._data is not None:
        data = rows_of(value._data).t().contiguous()
    elif value._transpose is not None and not value._transpose_invalid:
        data = value._transpose.reshape(value._transpose.shape[0], -1).t().contiguous()
    else:
        raise BadArgument.of("generic_gemm", "A or B", "have data", f"a {type_name(value)} without data")
    return data


def blocks_of(value: Any, columnwise: bool) -> tuple[Tensor, Tensor, int]:
    """A block-scaled tensor's bytes (the summed dimension is last), its scales, and the number of rows per block."""
    data = value._columnwise_data if columnwise else value._rowwise_data
    scale = value._columnwise_scale_inv if columnwise else value._rowwise_scale_inv
    data = data.reshape(data.shape[0], -1) if columnwise else rows_of(data)
    m, k = data.shape
    wide = -(-k // BLOCK)
    if value._is_2D_scaled:
        return data, scale[: -(-m // BLOCK), :wide], BLOCK
    return data, scale[:wide, :m].t(), 1


def holds_blocks(value: Any, columnwise: bool) -> bool:
    data = value._columnwise_data if columnwise else value._rowwise_data
    return data is not None


def plain_dtype(A: Any, B: Any) -> torch.dtype:
    """The dtype to dequantize operands to; bfloat16 for MXFP8: FP8 times a power-of-two scale is exact in it."""
    kinds = {tensor_kind(A), tensor_kind(B)}
    if kinds == {"mxfp8"}:
        return torch.bfloat16
    if None in kinds:
        return A.dtype if tensor_kind(A) is None else B.dtype
    return F32


def quantized_product(
    call: Any, A: Any, transA: bool, B: Any, transB: bool, bias: Tensor | None, dtype: torch.dtype, fast: bool
) -> Tensor:
    """op(B) op(A) + bias, if at least one operand is quantized."""
    kind = tensor_kind(A) if tensor_kind(A) == tensor_kind(B) else None
    if dtype is torch.float64:
        return quantized_product(call, A, transA, B, transB, bias, F32, fast).to(dtype)
    if kind == "fp8":
        a, b = fp8_of(A, not transA), fp8_of(B, transB)
        kinds = torch_dtype(B._fp8_dtype), torch_dtype(A._fp8_dtype)
        return call.scaled_gemm(b, a, B._scale_inv, A._scale_inv, *kinds, bias, dtype, fast)
    if kind == "block" and holds_blocks(A, not transA) and holds_blocks(B, transB):
        (a, a_scale, a_rows), (b, b_scale, b_rows) = blocks_of(A, not transA), blocks_of(B, transB)
        kinds = torch_dtype(B._fp8_dtype), torch_dtype(A._fp8_dtype)
        return call.block_scaled_gemm(b, a, b_scale, a_scale, *kinds, bias, b_rows, a_rows, dtype)
    inside = plain_dtype(A, B)
    a, b = rows_of(plain(call, A, inside, not transA)), rows_of(plain(call, B, inside, transB))
    return call.gemm(b, a, bias, transB, transA, 1.0, dtype)


def wide_product(
    call: Any,
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    bias: Tensor | None,
    alpha: float,
    fast: bool,
    dtype: torch.dtype,
) -> Tensor:
    """alpha op(B) op(A) + bias in float32 or float64, for epilogues that no op computes."""
    inside = torch.float64 if dtype is torch.float64 else F32
    if tensor_kind(A) is None and tensor_kind(B) is None:
        a, b = as_matrices(A, B)
        return call.gemm(b, a, bias, transB, transA, alpha, inside)
    if alpha == 1.0:
        return quantized_product(call, A, transA, B, transB, bias, inside, fast)
    y = quantized_product(call, A, transA, B, transB, None, inside, fast).mul_(alpha)
    return y if bias is None else y.add_(bias)


def as_matrices(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Convert two plain operands to matrices of one dtype."""
    if A.dtype is not B.dtype:
        dtype = torch.promote_types(A.dtype, B.dtype)
        A, B = A.to(dtype), B.to(dtype)
    return rows_of(A), rows_of(B)


def product_with_epilogue(
    call: Any,
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Tensor | None,
    shape: list[int],
    dtype: torch.dtype,
    bias: Tensor | None,
    gelu: bool,
    gelu_in: Tensor | None,
    pre_dtype: torch.dtype,
    alpha: float,
    beta: float,
    fast: bool,
) -> tuple[Tensor, Tensor | None]:
    """The product after its epilogue (in D if given), and gelu's input. With gelu_in, multiply by gelu'(gelu_in)."""
    both_plain = tensor_kind(A) is None and tensor_kind(B) is None
    if both_plain and beta == 0.0 and (not gelu or pre_dtype is dtype):
        a, b = as_matrices(A, B)
        out_dtype = None if a.dtype is dtype else dtype
        if gelu_in is not None:
            pre = gelu_in.reshape(-1, shape[-1])
            return put(call.gemm_dgelu(b, a, pre, transB, transA, alpha, out_dtype), D), None
        if gelu:
            y, pre = call.gemm_gelu(b, a, bias, transB, transA, alpha, out_dtype)
            return put(y, D), pre
        if D is None or bias is not None:
            return put(call.gemm(b, a, bias, transB, transA, alpha, out_dtype), D), None
    if both_plain and not gelu and bias is None and D is not None:
        a, b = as_matrices(A, B)
        call.gemm_add_(rows_of(D), b, a, transB, transA, alpha, beta)
        return D, None
    if not gelu and beta == 0.0 and alpha == 1.0:
        return put(quantized_product(call, A, transA, B, transB, bias, dtype, fast), D), None
    if beta == 1.0 and D is not None and not gelu and alpha == 1.0 and tensor_kind(A) == tensor_kind(B) == "block":
        # cuBLAS rounds a product of blocks to D's dtype before it adds D
        y = quantized_product(call, A, transA, B, transB, bias, dtype, fast)
        return D.add_(y.view(D.shape)), None
    y = wide_product(call, A, transA, B, transB, bias, alpha, fast, dtype)
    if beta == 1.0 and D is not None and not gelu:
        return D.add_(y.view(D.shape)), None
    if beta != 0.0 and D is not None:
        y = y.add_(rows_of(D), alpha=beta)
    if gelu_in is not None:
        return put(call.gelu_tanh_bwd(y, gelu_in.reshape(y.shape).to(y.dtype)), D, dtype), None
    if gelu:
        return put(call.gelu_tanh(y), D, dtype), y.to(pre_dtype)
    return put(y, D, dtype), None


def put(y: Tensor, D: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    if D is None:
        return y if dtype is None else y.to(dtype)
    return D.copy_(y.view(D.shape))


def empty_product(shape: list[int], dtype: torch.dtype, like: Any, D: Tensor | None, beta: float) -> Tensor:
    """The product of empty operands: zero, or beta D; no epilogue is applied."""
    if D is None:
        return torch.zeros(shape, dtype=dtype, device=device_of(like))
    return D.zero_() if beta == 0.0 else D if beta == 1.0 else D.mul_(beta)


def column_sums(call: Any, B: Any, columnwise: bool, dtype: torch.dtype) -> Tensor:
    """The gradient of a bias: the sum over the rows of B."""
    b = rows_of(B if tensor_kind(B) is None else plain(call, B, F32, columnwise))
    return b.sum(0, dtype=torch.promote_types(b.dtype, dtype)).to(dtype)


# ---- samples --------------------------------------------------------------------------------------------------------

LAYOUTS = {"TN": (True, False), "NN": (False, False), "NT": (False, True)}


def _args(d: Draw) -> dict[str, Any]:
    """The case's shape is B's shape. Options: layout, out (the other size of A), bias, gelu, grad, given (D), add."""
    shape, n = d.case.shape, d.option("out", 24)
    trans_a, trans_b = LAYOUTS[d.option("layout", "TN")]
    new = lambda name, *s: Draw(Case(s, options={"of": d.case.id, "name": name}), d.dtype, d.device).full()
    rows, k = math.prod(shape[:-1]), shape[-1]
    A = new("A", n, k) if trans_a else new("A", rows if trans_b else k, n)
    out = ((k,) if trans_b else shape[:-1]) + (n,)
    grad = bool(d.option("grad"))
    has_d = d.option("given") or d.option("add")
    return {
        "A": A,
        "transA": trans_a,
        "B": d.full(),
        "transB": trans_b,
        "D": new("D", *out) if has_d else None,
        "quantizer": None,
        "output_dtype": None,
        "bias": new("bias", k if grad else n) if d.option("bias") else None,
        "bias_type": torch.bfloat16,
        "gelu": bool(d.option("gelu")),
        "gelu_in": new("pre", *out) if d.option("gelu") and grad else None,
        "grad": grad,
        "workspace": torch.empty(32, dtype=torch.uint8, device=d.device),
        "workspace_size": 32,
        "accumulate": bool(d.option("add")),
        "use_split_accumulator": grad,
    }


GENERIC = Maker(
    _args,
    (
        Case((5, 64), options={"bias": True}),
        Case((2, 3, 17), options={"out": 5}),
        Case((5, 64), options={"bias": True, "gelu": True}),
        Case((2, 3, 64), options={"layout": "NN", "grad": True}),
        Case((5, 64), options={"layout": "NN", "grad": True, "gelu": True}),
        Case((37, 16), options={"layout": "NT", "grad": True, "bias": True}),
        Case((37, 16), options={"layout": "NT", "grad": True, "add": True}),
        Case((0, 16), options={"layout": "NT", "grad": True, "bias": True, "given": True}),
    ),
)


def as_list(value: Any) -> Any:
    """An impl's results as the list of four that tex returns."""
    if not isinstance(value, (list, tuple)):
        value = [value]
    return [*value, *[None] * (4 - len(value))] if not isinstance(value, list) or len(value) < 4 else value


# ---- the ops --------------------------------------------------------------------------------------------------------


PARTS = (
    gemm.gemm,
    gemm.gemm_add_,
    gemm.gemm_dgelu,
    gemm.gemm_gelu,
    gemm.scaled_gemm,
    gemm.block_scaled_gemm,
    activation.gelu_tanh,
    activation.gelu_tanh_bwd,
    *CASTS,
)


@adapt(
    "tex::generic_gemm",
    over=PARTS,
    names={"a": "B", "b": "A", "trans_a": "transB", "trans_b": "transA"},
    out="D bias_grad pre_gelu_out extra",
    mutates=("D", "extra_output"),
    samples=GENERIC,
    tol=SUMS,
    result=as_list,
)
def generic_gemm(
    call: Any,
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    quantizer: State,
    output_dtype: torch.dtype | None,
    bias: Float[Tensor, "..."] | None,
    bias_type: torch.dtype | None,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Any,
    workspace_size: Any,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """[D, bias_grad, pre_gelu_out, extra_output] with D = alpha op(B) op(A) + beta D, for row-major A and B.

    Forward: bias and then gelu (tanh) are applied before D is rounded; pre_gelu_out is gelu's input. With grad: gelu
    multiplies by gelu'(gelu_in), and a bias requests bias_grad, the sum over the rows of B. A quantizer quantizes D.
    """
    name = "generic_gemm"
    shape, rows, k = sizes(name, A, transA, B, transB)
    if D is quantizer is comm_overlap is extra_output is None and not (gelu or accumulate or beta) and alpha == 1.0:
        check_epilogue(name, shape, rows, A, bias, False, None, grad)
        bias = bias if bias is None or grad or bias.dim() == 1 else bias.view(-1)
        # The fast path, which te.Linear uses in forward and backward.
        if rows and k and shape[-1] and is_plain_product(A, B, output_dtype):
            y = call.gemm(rows_of(B), rows_of(A), None if grad else bias, transB, transA)
            y = y if len(shape) == 2 else shaped(y, shape)
            return [y, column_sums(call, B, transB, A.dtype) if grad and bias is not None else None, None, None]
    dtype = out_dtype_of(name, "output_dtype", output_dtype, A, D)
    if quantizer is not None:
        kind_of(quantizer, name)
    out = None
    if D is not None and tensor_kind(D) is None:
        check_out(name, "D", D, shape, dtype, A)
        out = D
    elif D is not None and quantizer is None:
        raise BadArgument.of(name, "D", "be a plain Tensor where quantizer is None", type_name(D))
    if tensor_kind(A) == tensor_kind(B) == "block":
        refuse_blocks(name, A, B, shape, rows, k, dtype, bias, gelu, grad, use_split_accumulator)
    check_epilogue(name, shape, rows, A, bias, gelu, gelu_in, grad)
    bias = bias if bias is None or grad or bias.dim() == 1 else bias.view(-1)
    scale = scales(name, alpha, beta, accumulate, out)
    alpha = float(alpha)
    if out is not None and quantizer is comm_overlap is extra_output is None and not gelu and (grad or bias is None):
        if rows and k and shape[-1] and is_plain_product(A, B):  # the gradient of a weight
            call.gemm_add_(rows_of(out), rows_of(B), rows_of(A), transB, transA, alpha, scale)
            return [D, column_sums(call, B, transB, dtype) if bias is not None else None, None, None]
    check_tensor(name, "extra_output", extra_output, dtypes=None, on=device_of(A), optional=True)
    run = gemm_without_grad if torch.is_grad_enabled() else checked_gemm
    args = (
        call,
        A,
        transA,
        B,
        transB,
        D,
        out,
        quantizer,
        dtype,
        bias,
        bias_type,
        gelu,
        gelu_in,
        grad,
        use_split_accumulator,
        alpha,
        scale,
        shape,
        k,
    )
    if comm_overlap is not None:
        if not hasattr(comm_overlap, "around"):
            got = type_name(comm_overlap)
            raise BadArgument.of(name, "comm_overlap", "be a CommOverlap or CommOverlapP2P", str(got), TypeError)
        return comm_overlap.around(lambda: run(*args, None), comm_type, bulk_overlap, extra_output)
    return run(*args, extra_output)


def scales(op: str, alpha: Any, beta: Any, accumulate: bool, D: Any) -> float:
    """Check alpha and beta; return beta, or its default: 1 if accumulate, else 0."""
    check_number(op, "alpha", alpha)
    if accumulate:
        if D is None:
            raise BadArgument.of(op, "D", "be a plain Tensor to accumulate in", type_name(D))
        if beta is None:
            return 1.0
    if beta is not None:
        check_number(op, "beta", beta)
        if not accumulate and beta != 0.0:
            raise BadArgument.of(op, "beta", "be None or 0 without accumulate", str(beta))
    return 0.0 if beta is None else float(beta)


def checked_gemm(
    call: Any,
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    out: Tensor | None,
    quantizer: Any,
    dtype: torch.dtype,
    bias: Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    split: bool,
    alpha: float,
    beta: float,
    shape: list[int],
    k: int,
    extra: Tensor | None,
) -> list[Any]:
    """The results of generic_gemm for checked arguments."""
    pre_dtype = dtype if not gelu or tensor_kind(A) is None else torch_dtype(bias_type, "generic_gemm", "bias_type")
    if not k or not math.prod(shape):
        y, pre = empty_product(shape, dtype, A, out, beta), None
        if gelu and not grad:
            pre = torch.zeros(shape, dtype=pre_dtype, device=device_of(A))
    else:
        y, pre = product_with_epilogue(
            call,
            A,
            transA,
            B,
            transB,
            out,
            shape,
            dtype,
            None if grad else bias,
            gelu,
            gelu_in if gelu and grad else None,
            pre_dtype,
            alpha,
            beta,
            not split,
        )
        y = shaped(y, shape)
        pre = pre if pre is None else shaped(pre, shape)
    if quantizer is not None:
        can_quantize("generic_gemm", y, quantizer, "D")
        y = quantized(call, y, quantizer, None if D is out else D)
    bias_grad = column_sums(call, B, transB, dtype) if grad and bias is not None else None
    return [y, bias_grad, pre, extra]


def gemm_without_grad(*args: Any) -> list[Any]:
    """checked_gemm under no_grad, which takes 1.5 us; callers inside an autograd.Function do not need it."""
    with torch.no_grad():
        return checked_gemm(*args)


# ---- groups ---------------------------------------------------------------------------------------------------------


def _grouped_args(d: Draw) -> dict[str, Any]:
    """Arguments of three products; the second one has no rows."""
    shape = d.case.shape
    parts = [
        _args(Draw(Case(s, options={**d.case.options, "part": i}), d.dtype, d.device))
        for i, s in enumerate((shape, (0, shape[1]), shape))
    ]
    grad, (trans_a, trans_b) = bool(d.option("grad")), LAYOUTS[d.option("layout", "TN")]
    none = torch.empty(0, device=d.device)
    D = [p["D"] for p in parts]
    return {
        "A": [p["A"] for p in parts],
        "transa": trans_a,
        "B": [p["B"] for p in parts],
        "transb": trans_b,
        "D": [torch.cat(D)] if d.option("single") else D,
        "D_type": d.dtype,
        "m_splits": [shape[0], 0, shape[0]],
        "bias": [none if p["bias"] is None else p["bias"] for p in parts],
        "bias_type": torch.bfloat16,
        "single_output": bool(d.option("single")),
        "pre_gelu_out": [none] * 3,
        "grad": grad,
        "workspace": [torch.empty(32, dtype=torch.uint8, device=d.device)],
        "workspaceSize": 32,
        "accumulate": bool(d.option("add")),
        "use_split_accumulator": grad,
        "math_sm_count": 0,
    }


GROUPED = Maker(
    _grouped_args,
    (
        Case((5, 64), options={"bias": True, "single": True, "given": True}),
        Case((5, 64), options={"layout": "NN", "grad": True, "given": True}),
        Case((5, 16), options={"layout": "NT", "grad": True, "add": True, "bias": True}),
    ),
)


@adapt(
    "tex::te_general_grouped_gemm",
    over=PARTS,
    names={"a": "B", "b": "A", "trans_a": "transb", "trans_b": "transa"},
    out="bias",
    mutates=("D", "bias", "pre_gelu_out"),
    samples=GROUPED,
    tol=SUMS,
)
def te_general_grouped_gemm(
    call: Any,
    A: list[Any],
    transa: bool,
    B: list[Any],
    transb: bool,
    D: list[Tensor],
    D_type: torch.dtype,
    m_splits: list[int] | None,
    bias: list[Tensor],
    bias_type: torch.dtype | None,
    single_output: bool,
    pre_gelu_out: list[Tensor],
    grad: bool,
    workspace: Any,
    workspaceSize: Any,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: Any,
) -> list[Tensor]:
    """D[i] = op(B[i]) op(A[i]), each with its bias, and gelu if pre_gelu_out[i] is not empty; returns bias.

    single_output: D is one tensor, which holds the products one after another. With grad, bias[i] receives the sum over
    the rows of B[i], and pre_gelu_out[i] is gelu's input. An empty tensor means None.
    """
    name = "te_general_grouped_gemm"
    products = grouped(name, A, transa, B, transb, D, D_type, bias, single_output, pre_gelu_out, grad)
    with torch.no_grad():
        for a, b, out, bias_i, pre, shape, k in products:
            beta = 1.0 if accumulate else 0.0
            has_bias, gelu = bias_i.numel() > 0, pre.numel() > 0
            if not k or not out.numel():
                empty_product(shape, D_type, a, out, beta)
                if gelu and not grad:
                    pre.zero_()
            else:
                _, pre_gelu = product_with_epilogue(
                    call,
                    a,
                    transa,
                    b,
                    transb,
                    out,
                    shape,
                    D_type,
                    bias_i if has_bias and not grad else None,
                    gelu,
                    pre if gelu and grad else None,
                    pre.dtype if gelu else D_type,
                    1.0,
                    beta,
                    not use_split_accumulator,
                )
                if pre_gelu is not None:
                    pre.copy_(pre_gelu.view(pre.shape))
            if grad and has_bias:
                bias_i.copy_(column_sums(call, b, transb, bias_i.dtype))
    return bias


def grouped(
    op: str,
    A: Any,
    transa: bool,
    B: Any,
    transb: bool,
    D: Any,
    dtype: Any,
    bias: Any,
    single: bool,
    pre: Any,
    grad: bool,
) -> list[tuple[Any, ...]]:
    """Check the arguments; for each product, return operands, output, bias, pre_gelu_out, shape and summed length."""
    check_list(op, "A", A, lambda name, v: None)
    for name, value in (("B", B), ("bias", bias), ("pre_gelu_out", pre)):
        check_list(op, name, value, lambda name, v: None, len(A))
    check_list(op, "D", D, lambda name, v: None, 1 if single else len(A))
    if dtype not in FLOATS:
        raise BadArgument.of(op, "D_type", "be float16, bfloat16, float32 or float64", repr(dtype), TypeError)
    products, row = [], 0
    for i, (a, b) in enumerate(zip(A, B, strict=True)):
        shape, rows, k = sizes(op, a, transa, b, transb, f"[{i}]")
        if single:
            check_tensor(op, "D[0]", D[0], dtypes=(dtype,), dims=2, on=device_of(a))
            out = D[0][row : row + rows]
            row += rows
        else:
            out = D[i]
        check_out(op, "D[0]" if single else f"D[{i}]", out, [rows, shape[-1]] if single else shape, dtype, a)
        for name, t, size in (
            ("bias", bias[i], b_columns(b) if grad else shape[-1]),
            ("pre_gelu_out", pre[i], rows * shape[-1]),
        ):
            check_tensor(op, f"{name}[{i}]", t)
            if t.numel() and (t.numel() != size or t.device != device_of(a)):
                expected = f"{size} elements on {device_of(a)}, or none"
                raise BadArgument.of(op, f"{name}[{i}]", f"have {expected}", f"{tuple(t.shape)} on {t.device}")
        products.append((a, b, out, bias[i], pre[i], shape, k))
    return products


def b_columns(b: Any) -> int:
    return shape_of("te_general_grouped_gemm", "B", b)[-1]

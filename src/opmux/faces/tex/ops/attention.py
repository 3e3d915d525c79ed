"""tex's fused attention, implemented by `attention_general` and `masked_attention`.

Calls that have no bias, dropout or sinks, and do not return Max, use the primitive `attention_general`. Its inputs are
dense views, which kernels read and write in place, or packed tensors ("thd", and padded sequences after the padding is
removed). Both layouts use the same op, because `attention` and `attention_varlen` may use different libraries, and
equal sequences must give equal bits. `attention_general` gets only causal masks aligned to the bottom right. A top-left
mask is the same mask if queries and keys have equal lengths. The lengths are known to be equal if the shapes are equal
and there is no padding, or if cu_seqlens_q and cu_seqlens_kv are the same tensor object; their values are not read,
because that would synchronize. All other calls compute the full matrix of scores.

FP8 attention is emulated: quantized inputs are dequantized, and results are quantized if a delayed-scaling quantizer is
given (with current scaling and MXFP8, NVIDIA's own results are in high precision). The probabilities and their gradient
are never rounded to FP8, so their quantizers are not used. FP8 recipes read the amax of these quantizers, so it is set
to a cheap upper bound: 1 for the probabilities; for their gradient the largest norm of a row of dO times the largest
norm of a row of V.
"""

import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import Contract
from ....core.errors import BadArgument, NotSupported
from ....core.held import on_empty_cache
from ....core.spec import Sample, Samples, State, op
from ....specs._checks import check_tensor
from ....specs._masked_attention import masked_backward, masked_forward
from ....specs._numeric import wide
from ....specs._sequences import Lengths, packed, unpacked
from ....specs.attention import TOL
from ....specs.attention_general import attention_general, attention_general_bwd
from ....specs.random import next_seed, philox_dropout, philox_dropout_bwd
from ....specs.stack3 import stack3
from ..attention_calls import (
    BIASED,
    INTS,
    VANILLA,
    AttentionArguments,
    BiasNumber,
    FloatDtype,
    FormatNumber,
    LayoutNumber,
    Length,
    MaskNumber,
    MaybeQuantizer,
    Share,
    SoftmaxNumber,
    Values,
    Window,
    attention_arguments,
    bias_of,
    check_options,
    chosen_format,
    dequantized,
    sink_of,
    sizes,
)
from ..enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
    torch_dtype,
)
from ..layouts import LAYOUTS, QKVLayout, as_results
from ..quantized import CASTS, kind_of, quantized, wrapped_fp8
from ..rules import any_dtype, generator


def raise_amax(quantizer: Any, bound: Tensor | float) -> None:
    """Raise the amax of a delayed-scaling quantizer to `bound`; the amax may be an inference tensor."""
    if kind_of(quantizer) == "delayed":
        with torch.inference_mode():
            quantizer.amax.clamp_(min=bound)


def not_a_view(t: Tensor) -> Tensor:
    """A contiguous tensor that is not a view. Transformer Engine offloads a view's base, which must be contiguous."""
    t = t.contiguous()
    return t if t._base is None else t.data


# ---- samples --------------------------------------------------------------------------------------------------------


def _randn(shape: tuple[int, ...], dtype: torch.dtype, device: Any, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64 if dtype is torch.float64 else torch.float32).to(
        device, dtype
    )


class AttentionCase(NamedTuple):
    """A sample call: layout, mask, bias and softmax type (by the suffixes of their enum names), and sizes."""

    layout: str = "BSHD_BSHD_BSHD"
    mask: str = "NO_MASK"
    bias: str = "NO_BIAS"
    softmax: str = "VANILLA_SOFTMAX"
    window: tuple[int, int] = (-1, -1)
    kv_heads: int = 2
    longest: tuple[int, int] = (6, 6)


CASES = (
    AttentionCase(),
    AttentionCase("SBHD_SBHD_SBHD", "CAUSAL_MASK", kv_heads=1),
    AttentionCase(
        "BSHD_BSHD_BSHD", "PADDING_CAUSAL_BOTTOM_RIGHT_MASK", "POST_SCALE_BIAS", "LEARNABLE_SOFTMAX", longest=(4, 7)
    ),
    AttentionCase("THD_THD_THD", "PADDING_CAUSAL_MASK", "ALIBI", "OFF_BY_ONE_SOFTMAX", window=(3, 0)),
)
BATCH, HEADS, DIM = 2, 2, 8


def _shape(fmt: str, heads: int, longest: int) -> tuple[int, ...]:
    size_of = {"b": BATCH, "h": heads, "s": longest, "d": DIM, "t": BATCH * longest}
    return tuple(size_of[c] for c in fmt)


def _fwd_args(case: AttentionCase, dtype: torch.dtype, device: Any) -> dict[str, Any]:
    layout = LAYOUTS[int(NVTE_QKV_Layout[f"NVTE_{case.layout}"])]
    sq, sk = case.longest
    heads = (HEADS, case.kv_heads, case.kv_heads)
    tensors = [
        _randn(_shape(f, h, s), dtype, device, i)
        for i, (f, h, s) in enumerate(zip(layout.formats, heads, (sq, sk, sk), strict=True))
    ]
    cu = [torch.tensor([0, n - 2, 2 * n - 3], dtype=torch.int32, device=device) for n in (sq, sk)]
    bias, softmax = NVTE_Bias_Type[f"NVTE_{case.bias}"], NVTE_Softmax_Type[f"NVTE_{case.softmax}"]
    return {
        "max_seqlen_q": sq,
        "max_seqlen_kv": sk,
        "is_training": True,
        "attn_scale": DIM**-0.5,
        "p_dropout": 0.0,
        "set_zero": True,
        "qkv_layout": NVTE_QKV_Layout[f"NVTE_{case.layout}"],
        "o_format": NVTE_QKV_Format[f"NVTE_{layout.q.upper()}"],
        "qkv_scale_inv_format": NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET,
        "bias_type": bias,
        "attn_mask_type": NVTE_Mask_Type[f"NVTE_{case.mask}"],
        "softmax_type": softmax,
        "window_size": case.window,
        "bottom_right_diagonal": "BOTTOM_RIGHT" in case.mask,
        "cu_seqlens_q": cu[0],
        "cu_seqlens_kv": cu[1],
        "Q": tensors[0],
        "K": tensors[1],
        "V": tensors[2],
        "fake_dtype": dtype,
        "cu_seqlens_q_padded": None,
        "cu_seqlens_kv_padded": None,
        "page_table_k": None,
        "page_table_v": None,
        "s_quantizer": None,
        "o_quantizer": None,
        "Bias": _randn((1, HEADS, sq, sk), dtype, device, 7) if bias in BIASED else None,
        "SoftmaxOffset": None if softmax == VANILLA else _randn((1, HEADS, 1, 1), torch.float32, device, 8),
        "rng_gen": None,
        "rng_elts_per_thread": 16,
        "return_max_logit": False,
        "cuda_graph": False,
    }


def _bwd_args(case: AttentionCase, dtype: torch.dtype, device: Any) -> dict[str, Any]:
    forward = _fwd_args(case, dtype, device)
    o, *aux = fused_attn_fwd.reference(**forward)
    extra = {
        "do_format": forward["o_format"],
        "dqkv_layout": forward["qkv_layout"],
        "deterministic": False,
        "O": o,
        "do_scale_inv_format": forward["qkv_scale_inv_format"],
        "dO": _randn(tuple(o.shape), dtype, device, 9),
        "Aux_CTX_Tensors": aux,
        "dp_quantizer": None,
        "dqkv_quantizer": None,
    }
    return {n: {**forward, **extra}[n] for n in fused_attn_bwd.spec.names}


def _samples(build: Any, cases: tuple[AttentionCase, ...] = CASES) -> Samples:
    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for case in cases:
            name = " ".join(str(w) for w in case[:4])
            yield Sample(tuple(build(case, dtype, device).values()), id=name)

    return samples


def _one_sample(build: Any) -> Samples:
    """A single sample from named arguments."""

    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        yield Sample(tuple(build(dtype, device).values()), id="plain")

    return samples


# ---- forward --------------------------------------------------------------------------------------------------------

_NO_RNG_STATE: dict[torch.device, Tensor] = {}
on_empty_cache(_NO_RNG_STATE.clear)


def no_rng_state(device: torch.device) -> Tensor:
    """The rng_state of calls without dropout: zeros, cached per device."""
    state = _NO_RNG_STATE.get(device)
    if state is None:
        with torch.inference_mode(False):
            state = torch.zeros(2, dtype=torch.int64, device=device)
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if type(state) is Tensor and not capturing:  # do not cache fake tensors or memory of a CUDA graph
            _NO_RNG_STATE[device] = state
    return state


def new_rng_state(q: Tensor, generator: Any) -> Tensor:
    return next_seed(q, generator).to(q.device, non_blocking=True)


def forward_of(
    call: Any,
    args: AttentionArguments,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: tuple[Any, Any],
    bias: Tensor | None,
    sink: Tensor | None,
    fmt: str,
    with_max: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute O in its format, S, and Max if `with_max`, by the fastest primitive that supports the arguments."""
    bounds = None if with_max else args.bounds()
    if bounds is not None and not args.padded:
        x, y, z = args.queries(q, args.layout.q), args.keys(k), args.keys(v)
        o, lse = call.attention_general(x, y, z, *plain_options(args, bounds, None, None))
        return args.back(o, fmt, 0, None), lse.unsqueeze(3), None
    if bounds is not None:
        x, y, z = args.query_tokens(q, args.layout.q), args.key_tokens(k, tables[0]), args.key_tokens(v, tables[1])
        options = plain_options(args, bounds, *args.lengths())
        o, lse = call.attention_general(*map(as_batch, (x, y, z)), *options)
        return args.from_tokens(o[0].transpose(0, 1), fmt), stats_of_tokens(args, lse[0]), None
    x, y, z = args.queries(q, args.layout.q), args.keys(k, tables[0]), args.keys(v, tables[1])
    o, lse, row_max = masked_forward(x, y, z, args.masking(), bias, sink, call)
    tokens = q.shape[0]
    max_score = rows(args, row_max, tokens, -math.inf) if with_max else None
    return args.back(o, fmt, tokens, args.q_lengths), rows(args, lse, tokens, 0.0), max_score


def plain_options(
    args: AttentionArguments, bounds: tuple[int, int], cu_q: Tensor | None, cu_k: Tensor | None
) -> tuple[Any, ...]:
    """The arguments of `attention_general` after q, k and v (backward: after lse), with only mask, window and scale."""
    no_bias = (None, None, None, None)  # bias, slopes, sink, seed
    longest = (0, 0) if cu_q is None else (args.sq, args.sk)
    return *no_bias, cu_q, cu_k, None, None, *longest, *bounds, True, 0.0, 0.0, args.mask.scale, False, False


def as_batch(t: Tensor) -> Tensor:
    """View [tokens, heads, ...] as [1, heads, tokens, ...], the form of packed sequences for `attention_general`."""
    return t.transpose(0, 1).unsqueeze(0)


def rows(args: AttentionArguments, t: Tensor, tokens: int, empty: float) -> Tensor:
    """Reshape a statistic [b, h, s] to tex's shape."""
    if args.layout.q != "thd" or args.q_lengths is None:
        return t.unsqueeze(3)
    return packed(t.transpose(1, 2), args.q_lengths, tokens, empty).unsqueeze(2)


def stats_of_tokens(args: AttentionArguments, lse: Tensor) -> Tensor:
    """Reshape lse [heads, tokens] to tex's shape of S."""
    if args.layout.q == "thd":
        return args.from_tokens(lse.T, "thd").unsqueeze(2).contiguous()
    return args.from_tokens(lse.T[..., None], "bshd", empty=-math.inf).transpose(1, 2).contiguous()


def tables_of(op: str, layout: QKVLayout, b: int, q: Tensor, table_k: Any, table_v: Any) -> tuple[Any, Any]:
    """The page tables, one row per sequence. Extra rows are dropped: Transformer Engine passes a table for its largest
    batch.
    """
    if not layout.paged:
        return None, None
    for name, table in (("page_table_k", table_k), ("page_table_v", table_v)):
        check_tensor(op, name, table, dtypes=INTS, dims=2, on=q)
        if table.shape[0] < b:
            raise BadArgument.of(op, name, f"have a row for each of {b} sequences", str(tuple(table.shape)))
    return table_k[:b], table_v[:b]


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@adapt(
    "tex::fused_attn_fwd",
    over=(attention_general, philox_dropout, *CASTS),
    out="O S rng_state Bias SoftmaxOffset",
    samples=_samples(_fwd_args),
    tol=TOL,
    result=as_list,
)
def fused_attn_fwd(
    call: Any, max_seqlen_q: Length, max_seqlen_kv: Length, is_training: bool, attn_scale: float, p_dropout: Share,
    set_zero: bool, qkv_layout: LayoutNumber, o_format: FormatNumber, qkv_scale_inv_format: Any, bias_type: BiasNumber,
    attn_mask_type: MaskNumber, softmax_type: SoftmaxNumber, window_size: Window, bottom_right_diagonal: bool,
    cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Values, K: Values, V: Values, fake_dtype: FloatDtype,
    cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, page_table_k: Tensor | None,
    page_table_v: Tensor | None, s_quantizer: MaybeQuantizer, o_quantizer: MaybeQuantizer, Bias: Tensor | None,
    SoftmaxOffset: Tensor | None, rng_gen: Annotated[State, generator("Q")] | None, rng_elts_per_thread: int,
    return_max_logit: bool, cuda_graph: bool,
) -> list[Any]:  # fmt: skip
    """[O, S, (Max), rng_state, (Bias), (SoftmaxOffset)]: fused attention with NVIDIA's arguments.

    S is the logarithm of the softmax's denominator, [b, h, sq, 1], or [tokens, h, 1] if Q is THD (0 for padding); Max
    is the largest score of each query, in the same shape. A query that attends to no key gives O = 0, S = Max = -inf.
    The dropout mask depends only on rng_state.
    """
    name = "fused_attn_fwd"
    check_options(
        (max_seqlen_q, max_seqlen_kv), p_dropout, window_size, fake_dtype, (s_quantizer, o_quantizer), rng_gen
    )
    with torch.no_grad():
        args, q, k, v = attention_arguments(
            call,
            name,
            max_seqlen_q,
            max_seqlen_kv,
            attn_scale,
            qkv_layout,
            bias_type,
            attn_mask_type,
            softmax_type,
            window_size,
            bottom_right_diagonal,
            cu_seqlens_q,
            cu_seqlens_kv,
            Q,
            K,
            V,
            fake_dtype,
            cu_seqlens_q_padded,
            cu_seqlens_kv_padded,
        )
        fmt = chosen_format(name, "o_format", o_format, args.layout)
        heads = sizes(args.layout.q, q)[1]
        bias = bias_of(name, args, Bias, q, heads, "Bias")
        sink = sink_of(name, args, SoftmaxOffset, q, heads, "SoftmaxOffset")
        tables = tables_of(name, args.layout, args.b, q, page_table_k, page_table_v)

        dropout = float(p_dropout) if is_training else 0.0
        state = new_rng_state(q, rng_gen) if dropout else no_rng_state(q.device)
        args = args._replace(mask=args.mask._replace(dropped=dropout, seed=state)) if dropout else args
        o, stats, max_score = forward_of(call, args, q, k, v, tables, bias, sink, fmt, bool(return_max_logit))

        o, stats = not_a_view(o.to(fake_dtype)), not_a_view(stats)
        max_scores = [] if max_score is None else [not_a_view(max_score)]
        raise_amax(s_quantizer, 1.0)
        o = quantized(call, o, o_quantizer) if kind_of(o_quantizer) == "delayed" else o
        echoed = [t for t, used in ((Bias, bias), (SoftmaxOffset, sink)) if used is not None and t is not None]
        return [o, stats, *max_scores, state, *echoed]


# ---- backward -------------------------------------------------------------------------------------------------------


class FormattedGradients(NamedTuple):
    """Gradients of q, k and v in their formats, and of the bias and the sink if they are given."""

    grads: list[Tensor]
    dbias: Tensor | None = None
    dsink: Tensor | None = None


def backward_of(
    call: Any,
    args: AttentionArguments,
    target: QKVLayout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: tuple[Tensor, str],
    do: tuple[Tensor, str],
    stats: Tensor,
    bias: Tensor | None,
    sink: Tensor | None,
    deterministic: bool,
) -> FormattedGradients:
    """Compute the gradients by the fastest primitive that supports the arguments.

    Libraries may sum in any order unless `torch.use_deterministic_algorithms` is set. So if only `deterministic` is
    set, `masked_backward` computes the gradients.
    """
    may_differ = not deterministic or torch.are_deterministic_algorithms_enabled()
    bounds = args.bounds() if may_differ else None
    if bounds is not None and args.padded:
        x, g, out = (as_batch(args.query_tokens(t, fmt)) for t, fmt in ((q, args.layout.q), do, o))
        y, z = as_batch(args.key_tokens(k)), as_batch(args.key_tokens(v))
        lse = as_batch(tokens_of_stats(args, stats, q.shape[0]))
        options = plain_options(args, bounds, *args.lengths())
        results = call.attention_general_bwd(g, x, y, z, out, lse, *options)
        dq, dk, dv = (t[0].transpose(0, 1) for t in results[:3])
        dk, dv = (args.from_tokens(t, target.kv, 1) for t in (dk, dv))
        return FormattedGradients([args.from_tokens(dq, target.q), dk, dv])
    x, g, out = (args.queries(t, fmt) for t, fmt in ((q, args.layout.q), do, o))
    y, z = args.keys(k), args.keys(v)
    lse = queries_of_stats(args, stats)
    dbias = dsink = None
    if bounds is not None:
        options = plain_options(args, bounds, None, None)
        dq, dk, dv, _, _ = call.attention_general_bwd(g, x, y, z, out, lse, *options)
    else:
        dq, dk, dv, dbias, dsink = masked_backward(g, x, y, z, out, lse, args.masking(), bias, sink, call)
    keys = [args.back(t, target.kv, k.shape[0], args.kv_lengths) for t in (dk, dv)]
    return FormattedGradients([args.back(dq, target.q, q.shape[0], args.q_lengths), *keys], dbias, dsink)


def queries_of_stats(args: AttentionArguments, stats: Tensor) -> Tensor:
    """S as [b, h, s]."""
    if stats.dim() == 4 or args.q_lengths is None:
        return stats.squeeze(3)
    return unpacked(stats.squeeze(2), args.q_lengths, args.sq).transpose(1, 2)


def tokens_of_stats(args: AttentionArguments, stats: Tensor, tokens: int) -> Tensor:
    """S as [tokens, h], without padding."""
    if stats.dim() == 3:
        return args.query_tokens(stats.squeeze(2), "thd")
    if args.layout.q == "thd":
        return packed(stats.squeeze(3).transpose(1, 2), Lengths.of(args.lengths()[0]), tokens)
    return args.query_tokens(stats, "bhsd").squeeze(2)


@adapt(
    "tex::fused_attn_bwd",
    over=(attention_general_bwd, philox_dropout, philox_dropout_bwd, stack3, *CASTS),
    out="dQ dK dV dBias dSoftmaxOffset",
    samples=_samples(_bwd_args),
    tol=TOL,
    result=as_list,
)
def fused_attn_bwd(
    call: Any, max_seqlen_q: Length, max_seqlen_kv: Length, attn_scale: float, p_dropout: Share, set_zero: bool,
    qkv_layout: LayoutNumber, o_format: FormatNumber, do_format: FormatNumber, dqkv_layout: LayoutNumber,
    qkv_scale_inv_format: Any, do_scale_inv_format: Any, bias_type: BiasNumber, attn_mask_type: MaskNumber,
    softmax_type: SoftmaxNumber, window_size: Window, bottom_right_diagonal: bool, deterministic: bool,
    cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Values, K: Values, V: Values,
    O: Values, dO: Values,  # noqa: E741
    fake_dtype: FloatDtype, Aux_CTX_Tensors: list[Any], cu_seqlens_q_padded: Tensor | None,
    cu_seqlens_kv_padded: Tensor | None, s_quantizer: MaybeQuantizer, dp_quantizer: MaybeQuantizer,
    dqkv_quantizer: MaybeQuantizer, cuda_graph: bool,
) -> list[Any]:  # fmt: skip
    """[dQ, dK, dV, dBias or None, dSoftmaxOffset or None], from S and rng_state of the forward.

    Aux_CTX_Tensors are the forward's results without O and Max. S and O may cover more keys than K has, if a sequence
    is distributed over several devices.
    """
    name = "fused_attn_bwd"
    quantizers = s_quantizer, dp_quantizer, dqkv_quantizer
    check_options((max_seqlen_q, max_seqlen_kv), p_dropout, window_size, fake_dtype, quantizers)
    with torch.no_grad():
        args, q, k, v = attention_arguments(
            call,
            name,
            max_seqlen_q,
            max_seqlen_kv,
            attn_scale,
            qkv_layout,
            bias_type,
            attn_mask_type,
            softmax_type,
            window_size,
            bottom_right_diagonal,
            cu_seqlens_q,
            cu_seqlens_kv,
            Q,
            K,
            V,
            fake_dtype,
            cu_seqlens_q_padded,
            cu_seqlens_kv_padded,
        )
        if args.layout.paged:
            raise NotSupported(f"{name}: qkv_layout must not be paged, as there is no gradient of a cache")
        target = LAYOUTS[int(dqkv_layout)]
        can_hold_gradients(name, args.layout, target, q, v)
        out_format, grad_format = (
            chosen_format(name, n, f, args.layout) for n, f in (("o_format", o_format), ("do_format", do_format))
        )
        heads = sizes(args.layout.q, q)[1]
        o, do = (
            dequantized(call, name, n, t, f, fake_dtype) for n, t, f in (("O", O, out_format), ("dO", dO, grad_format))
        )
        stats, state, bias, sink = aux_of(name, args, Aux_CTX_Tensors, q, heads)
        outputs_fit(name, args, q, v, heads, (("O", o, out_format), ("dO", do, grad_format)))

        dropout = float(p_dropout)
        args = args._replace(mask=args.mask._replace(dropped=dropout, seed=state)) if dropout else args
        gradients = backward_of(
            call, args, target, q, k, v, (o, out_format), (do, grad_format), stats, bias, sink, bool(deterministic)
        )
        if kind_of(dp_quantizer) == "delayed":
            raise_amax(dp_quantizer, torch.nan_to_num(largest_norm(do) * largest_norm(v)))
        results, buffer = as_results(call, target, gradients.grads, fake_dtype)
        outputs = quantized_gradients(call, target, results, buffer, dqkv_quantizer)
        dbias = None if gradients.dbias is None or bias is None else gradients.dbias.to(bias.dtype)
        dsink = None if gradients.dsink is None else gradients.dsink.float().reshape(1, heads, 1, 1)
        return [*outputs, dbias, dsink]


def largest_norm(t: Tensor) -> Tensor:
    """The largest norm of all rows, float32 [1]; 0 if there are no rows."""
    norms = torch.linalg.vector_norm(wide(t), dim=-1).flatten().float()
    return norms.amax(0, keepdim=True) if norms.numel() else norms.new_zeros(1)


def quantized_gradients(
    call: Any, layout: QKVLayout, grads: list[Tensor], buffer: Tensor | None, quantizer: Any
) -> list[Any]:
    """Quantize dq, dk and dv if the quantizer uses delayed scaling; a shared buffer is quantized as one tensor."""
    if kind_of(quantizer) != "delayed":
        return grads
    if buffer is None:
        return [quantized(call, t, quantizer) for t in grads]
    n = layout.shared
    shared = quantized(call, buffer, quantizer)
    slices = [shared._data.select(layout.axis, i) for i in range(n)]
    return [
        *(quantized(call, t, quantizer) for t in grads[:-n]),
        *(wrapped_fp8(quantizer, s, tuple(s.shape), buffer.dtype, scale_inv=shared._scale_inv) for s in slices),
    ]


def can_hold_gradients(op: str, layout: QKVLayout, target: QKVLayout, q: Tensor, v: Tensor) -> None:
    if target.paged or (target.q == "thd", target.kv == "thd") != (layout.q == "thd", layout.kv == "thd"):
        expected = "be THD where qkv_layout is THD, and not paged"
        raise BadArgument.of(op, "dqkv_layout", expected, f"{target} for {layout}")
    if target.shared == 3 and (v.shape[-1] != q.shape[-1] or sizes(layout.q, q)[1:] != sizes(layout.kv, v)[1:]):
        expected = "not have Q, K and V in one buffer where their shapes differ"
        raise BadArgument.of(op, "dqkv_layout", expected, str(target))
    if target.shared == 2 and v.shape[-1] != q.shape[-1]:
        raise BadArgument.of(op, "dqkv_layout", "not have K and V in one buffer where their dims differ", str(target))


def outputs_fit(
    op: str, args: AttentionArguments, q: Tensor, v: Tensor, heads: int, outputs: tuple[tuple[str, Tensor, str], ...]
) -> None:
    of_q = sizes(args.layout.q, q)
    for name, t, fmt in outputs:
        if sizes(fmt, t) != of_q or t.shape[-1] != v.shape[-1]:
            expected = f"batch, heads and tokens of Q, {of_q}, and the head dim of V, {v.shape[-1]}"
            raise BadArgument.of(op, name, f"have {expected}", str(tuple(t.shape)))
        if t.device != q.device:
            raise BadArgument.of(op, name, f"be on {q.device}, the device of Q", str(t.device))
        if t.dtype != q.dtype and name == "O":
            raise BadArgument.of(op, name, f"have the dtype of Q, {q.dtype}", str(t.dtype))


def aux_of(op: str, args: AttentionArguments, aux: Any, q: Tensor, heads: int) -> tuple[Tensor, Tensor, Any, Any]:
    """S, rng_state, bias and sink. More items are ignored: NVIDIA's layer appends dO in high precision for MXFP8."""
    what = "Aux_CTX_Tensors"
    if len(aux) < 2:
        expected = "be a list of S, rng_state and the other auxiliary results of the forward"
        raise BadArgument.of(op, what, expected, f"{len(aux)} items", TypeError)
    lse, state, *rest = aux
    check_tensor(op, f"{what}[0]", lse, on=q)
    check_tensor(op, f"{what}[1]", state, dtypes=(torch.int64, torch.uint64), shape=(2,))
    if state.dtype is torch.uint64:
        state = state.view(torch.int64)
    items = iter(rest)
    bias = bias_of(op, args, next(items, None), q, heads, f"{what}[2]") if args.mask.bias in BIASED else None
    sink = sink_of(op, args, next(items, None), q, heads, f"{what}[{2 + (bias is not None)}]")
    by_token = args.layout.q == "thd" and lse.dim() == 3
    stats_shape = (q.shape[0], heads, 1) if by_token else (args.b, heads, args.sq, 1)
    if tuple(lse.shape) != stats_shape:
        raise BadArgument.of(op, f"{what}[0]", f"have shape {stats_shape}", str(tuple(lse.shape)))
    return lse, state, bias, sink


# ---- which backend --------------------------------------------------------------------------------------------------

NO_BACKEND, F16, FP8 = (NVTE_Fused_Attn_Backend[f"NVTE_{n}"] for n in ("No_Backend", "F16_arbitrary_seqlen", "FP8"))
BACKENDS = {
    torch.float16: F16,
    torch.bfloat16: F16,
    torch.float8_e4m3fn: FP8,
    torch.float8_e5m2: FP8,
}
DELAYED = 0  # the NVTEScalingMode with one scale per tensor; all others scale blocks


class BackendQuery(NamedTuple):
    """The arguments of a backend query, with the field names of 2.20.2's FusedAttentionParams."""

    is_training: Any
    qkv_dtype: Annotated[Any, any_dtype()]
    kv_dtype: Annotated[Any, any_dtype()]
    qkv_layout: LayoutNumber
    bias_type: BiasNumber
    attn_mask_type: MaskNumber
    softmax_type: SoftmaxNumber
    dropout: float
    num_attn_heads: Length
    num_gqa_groups: Length
    max_seqlen_q: Length
    max_seqlen_kv: Length
    head_dim_qk: Length
    head_dim_v: Length
    window_size_left: int
    window_size_right: int
    scaling_mode: Any = DELAYED

    @classmethod
    def of(cls, params: Any) -> "BackendQuery":
        fields = {n: getattr(params, n) for n in cls._fields if n not in ("kv_dtype", "scaling_mode")}
        return cls(**fields, kv_dtype=params.qkv_dtype, scaling_mode=int(params.scaling_mode))


QUERY_CONTRACT = Contract.of("get_fused_attn_backend", typing.get_type_hints(BackendQuery, include_extras=True))


def backend_for(op: str, query: BackendQuery) -> tuple[Any, str]:
    """Return (backend, ""), or, if no backend supports the call, (NO_BACKEND, the reason)."""
    try:
        QUERY_CONTRACT.check(query._asdict())
    except BadArgument as error:
        raise error.renamed(op, {"dropout": "p_dropout", "qkv_dtype": "q_dtype"}) from None
    layout = LAYOUTS[int(query.qkv_layout)]
    q_dtype, kv_dtype = torch_dtype(query.qkv_dtype), torch_dtype(query.kv_dtype)
    backend = BACKENDS.get(q_dtype, NO_BACKEND)
    why = _reason(query, layout, q_dtype, kv_dtype, backend)
    return (NO_BACKEND if why else backend), why


def _reason(query: BackendQuery, layout: QKVLayout, q_dtype: torch.dtype, kv_dtype: torch.dtype, backend: Any) -> str:
    """Why no backend supports the call, or ""."""
    differ = query.head_dim_qk != query.head_dim_v
    reasons = {
        "takes float16, bfloat16 or FP8, the same for Q, K and V": backend == NO_BACKEND or q_dtype != kv_dtype,
        "K must have heads that divide those of Q": not query.num_gqa_groups
        or query.num_attn_heads % query.num_gqa_groups,
        "a window must be at least -1": min(query.window_size_left, query.window_size_right) < -1,
        "dropout must be from 0 to 1": not 0 <= query.dropout <= 1,
        "a paged cache has no gradient": layout.paged and query.is_training,
        "FP8 attention takes no paged cache": layout.paged and backend == FP8,
        "one buffer must hold heads of one dim": layout.shared > 1 and differ,
        "FP8 attention takes tensors of one scale, not of blocks": backend == FP8
        and (query.scaling_mode != DELAYED or layout.q == "bhsd"),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _backend_args(dtype: torch.dtype, device: Any) -> dict[str, Any]:
    return {
        "is_training": True,
        "q_dtype": torch.bfloat16,
        "kv_dtype": torch.bfloat16,
        "qkv_layout": NVTE_QKV_Layout.NVTE_SBH3D,
        "bias_type": NVTE_Bias_Type.NVTE_NO_BIAS,
        "attn_mask_type": NVTE_Mask_Type.NVTE_CAUSAL_MASK,
        "softmax_type": NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX,
        "p_dropout": 0.0,
        "num_attn_heads": 4,
        "num_gqa_groups": 4,
        "max_seqlen_q": 128,
        "max_seqlen_kv": 128,
        "head_dim_qk": 64,
        "head_dim_v": 64,
        "window_size_left": -1,
        "window_size_right": 0,
        "return_max_logit": False,
        "cuda_graph": False,
        "deterministic": False,
    }


@op(space="tex", out="backend", samples=_one_sample(_backend_args))
def get_fused_attn_backend(
    is_training: Any,
    q_dtype: torch.dtype | None = None,
    kv_dtype: torch.dtype | None = None,
    qkv_layout: Any = None,
    bias_type: Any = None,
    attn_mask_type: Any = None,
    softmax_type: Any = None,
    p_dropout: Any = None,
    num_attn_heads: Any = None,
    num_gqa_groups: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_kv: Any = None,
    head_dim_qk: Any = None,
    head_dim_v: Any = None,
    window_size_left: Any = None,
    window_size_right: Any = None,
    return_max_logit: Any = None,
    cuda_graph: Any = None,
    deterministic: Any = None,
) -> Any:
    """The backend for a call with these arguments, a member of NVTE_Fused_Attn_Backend.

    From 2.20.2 on Transformer Engine passes one object with all arguments, and expects (backend, reason if there is
    none).
    """
    arguments = dict(locals())
    op_name = "get_fused_attn_backend"
    if hasattr(is_training, "qkv_layout"):
        return backend_for(op_name, BackendQuery.of(is_training))
    for name, value in arguments.items():
        if value is None:
            raise BadArgument.of(op_name, f"argument '{name}'", "be given", "None", TypeError)
    *query, _, _, _ = arguments.values()  # drops return_max_logit, cuda_graph and deterministic
    return backend_for(op_name, BackendQuery(*query))[0]

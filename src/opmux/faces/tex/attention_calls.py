"""Converts a call of tex's fused attention to `AttentionArguments`: checked arguments, and tensors for `attention`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ...core.contract import FLOATS, Rule, at_least, between, one_of
from ...core.errors import BadArgument, NotSupported
from ...core.spec import State
from ...specs._checks import check_tensor, type_name
from ...specs._masked_attention import ALIBI, NO_BIAS, Masking
from ...specs._sequences import Lengths, compacted, packed, paged_in, spread, unpacked
from .enums import NVTE_Bias_Type, NVTE_Mask_Type, NVTE_QKV_Format, NVTE_QKV_Layout, NVTE_Softmax_Type
from .layouts import FORMATS, FROM_BHSD, LAYOUTS, TO_BHSD, TO_BSHD, QKVLayout
from .quantized import format_of, is_quantized, plain, tensor_kind
from .rules import float_or_quantized, member, quantizer_of

# Number of a mask -> (whether sequences have different lengths, whether attention is causal, whether the causal
# diagonal is aligned to the bottom right).
MASKS: dict[int, tuple[bool, bool, bool]] = {
    int(m): ("PADDING" in n, "CAUSAL" in n, "BOTTOM_RIGHT" in n) for n, m in NVTE_Mask_Type.__members__.items()
}
BIASES = {int(m): int(m) for m in NVTE_Bias_Type}
BIASED = (int(NVTE_Bias_Type.NVTE_PRE_SCALE_BIAS), int(NVTE_Bias_Type.NVTE_POST_SCALE_BIAS))
VANILLA = int(NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX)
OFF_BY_ONE = int(NVTE_Softmax_Type.NVTE_OFF_BY_ONE_SOFTMAX)
SOFTMAXES = {int(m): int(m) for m in NVTE_Softmax_Type}
INTS = (torch.int32, torch.int64)


# ---- arguments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class window(Rule):
    """The numbers of keys before and after its own position that a query attends to; -1 for all."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        right = isinstance(value, (tuple, list)) and len(value) == 2
        right = right and all(type(n) is int and n >= -1 for n in value)
        return None if right else "be two ints of at least -1, (left, right)"

    def got(self, value: Any) -> str:
        return repr(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "one", 3
        yield "below -1", (-2, 0)

    def doc(self) -> str:
        return "(left, right), -1 for all"


Length = Annotated[int, at_least(0)]
Share = Annotated[float, between(0, 1)]
FloatDtype = Annotated[torch.dtype, one_of(*FLOATS)]
Values = Annotated[Any, float_or_quantized()]
Window = Annotated[Any, window()]
MaybeQuantizer = Annotated[State, quantizer_of()] | None
LayoutNumber = Annotated[Any, member(NVTE_QKV_Layout, *(NVTE_QKV_Layout(n).name for n in LAYOUTS))]
FormatNumber = Annotated[Any, member(NVTE_QKV_Format, *(NVTE_QKV_Format(n).name for n in FORMATS))]
BiasNumber = Annotated[Any, member(NVTE_Bias_Type)]
MaskNumber = Annotated[Any, member(NVTE_Mask_Type)]
SoftmaxNumber = Annotated[Any, member(NVTE_Softmax_Type)]


def check_options(
    lengths: tuple[Any, Any], p: Any, window: Any, dtype: Any, quantizers: tuple[Any, ...], generator: Any = None
) -> None:
    """Check the arguments that no later check reads; raise if one is invalid.

    Then the dispatcher checks all arguments, and its error names the invalid one. This check takes 3 us; checking all
    33 arguments takes 20 us.
    """
    right = min(map(index, lengths)) >= 0 and 0 <= p <= 1 and min(map(index, window)) >= -1 and dtype in FLOATS
    right = right and all(q is None or format_of(q) is not None for q in quantizers)
    if not right or not (generator is None or isinstance(generator, torch.Generator)):
        raise ValueError("an argument does not fit the signature")


def check_cu_seqlens(op: str, name: str, value: Any, b: int | None, on: Tensor, optional: bool = False) -> None:
    """Check cumulative lengths [sequences + 1]."""
    shape = None if b is None else (b + 1,)
    check_tensor(op, name, value, dtypes=INTS, dims=1, shape=shape, on=on, optional=optional)
    if value is not None and not value.shape[0]:
        raise BadArgument.of(op, name, "have shape (sequences + 1,)", "(0,)")


def dequantized(call: Any, op: str, name: str, value: Any, fmt: str, dtype: torch.dtype | None = None) -> Tensor:
    """Check that an argument has the dimensions of a format, and dequantize it (to `dtype`) if it is quantized."""
    if is_quantized(value):
        kind = tensor_kind(value)
        if kind == "nvfp4" or getattr(value, "_with_gemm_swizzled_scales", False):
            raise NotSupported(
                f"{op}: {name} must not be NVFP4, nor MXFP8 with swizzled scales; got {type_name(value)}"
            )
        value = plain(call, value, dtype)
    check_tensor(op, name, value)
    if value.dim() != len(fmt):
        raise BadArgument.of(op, name, f"be [{', '.join(fmt)}], as its layout says", str(tuple(value.shape)))
    return value


def sizes(fmt: str, t: Tensor) -> tuple[int, int, int]:
    """(batch, heads, tokens) of a tensor in a format; batch is 0 for "thd"."""
    if fmt == "thd":
        return 0, t.shape[1], t.shape[0]
    b, h, s, _ = TO_BHSD[fmt]
    return t.shape[b], t.shape[h], t.shape[s]


def check_qkv(op: str, layout: QKVLayout, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise if dtypes, devices, heads, dims or batches differ."""
    for name, t in (("K", k), ("V", v)):
        if t.dtype != q.dtype:
            raise BadArgument.of(op, name, f"have the dtype of Q, {q.dtype}", str(t.dtype))
        if t.device != q.device:
            raise BadArgument.of(op, name, f"be on {q.device}, the device of Q", str(t.device))
    if k.shape[-1] != q.shape[-1]:
        raise BadArgument.of(op, "K", f"have the head dim of Q, {q.shape[-1]}", str(k.shape[-1]))
    if v.shape[:-1] != k.shape[:-1]:
        raise BadArgument.of(op, "V", f"have the shape of K, {tuple(k.shape)}, except the last", str(tuple(v.shape)))
    (b, h, _), (n, groups, _) = sizes(layout.q, q), sizes(layout.kv, k)
    if not groups or h % groups:
        raise BadArgument.of(op, "K", "have heads that divide those of Q evenly", f"{groups} for {h}")
    if layout.dense and n != b:
        raise BadArgument.of(op, "K", f"have the batch of Q, {b}", str(n))


# ---- arguments of forward and backward ------------------------------------------------------------------------------


class AttentionArguments(NamedTuple):
    """The checked arguments that forward and backward share."""

    layout: QKVLayout
    b: int
    padded: bool  # whether sequences have different lengths
    q_lengths: Lengths | None
    kv_lengths: Lengths | None
    sq: int  # maximum sequence length of q
    sk: int
    mask: Masking
    softmax: int
    cu_q: Tensor | None = None
    cu_kv: Tensor | None = None
    gaps: tuple[bool, bool] = (False, False)  # whether there is padding between sequences: in q; in k and v

    def bounds(self) -> tuple[int, int] | None:
        """The window (left, right) for `attention_general`; None if the call has options that it does not support."""
        mask = self.mask
        if mask.bias != NO_BIAS or self.softmax != VANILLA or mask.dropped:
            return None
        ends = [mask.causal_at_end] if mask.causal else []
        ends += [mask.at_end] if max(mask.left, mask.right) >= 0 else []
        same_lengths = self.cu_q is self.cu_kv if self.padded else self.sq == self.sk
        if not same_lengths and not all(ends):
            return None
        rights = ([0] if mask.causal else []) + ([mask.right] if mask.right >= 0 else [])
        return mask.left, min(rights, default=-1)

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Cumulative lengths of q's sequences, and of k's."""
        assert self.cu_q is not None and self.cu_kv is not None  # set if `padded`
        return self.cu_q, self.cu_kv

    def query_tokens(self, t: Tensor, fmt: str) -> Tensor:
        """q, o, do or lse (whose format has no d) as [tokens, ...] without padding."""
        flat = t if fmt == "thd" else t.permute(TO_BSHD[fmt]).flatten(0, 1)
        return compacted(flat, self.q_lengths) if self.gaps[0] and self.q_lengths is not None else flat

    def key_tokens(self, t: Tensor, table: Tensor | None = None) -> Tensor:
        """k or v as [tokens, h, d] without padding."""
        if table is not None:
            flat = paged_in(t, table, self.layout.kv, self.sk).flatten(0, 1)
        else:
            flat = t if self.layout.kv == "thd" else t.permute(TO_BSHD[self.layout.kv]).flatten(0, 1)
        return compacted(flat, self.kv_lengths) if self.gaps[1] and self.kv_lengths is not None else flat

    def from_tokens(self, t: Tensor, fmt: str, side: int = 0, empty: float = 0.0) -> Tensor:
        """Inverse of `query_tokens` (`side` = 0) and `key_tokens` (`side` = 1): tokens as a tensor in a format."""
        lengths = (self.q_lengths, self.kv_lengths)[side]
        padded = spread(t, lengths, empty) if self.gaps[side] and lengths is not None else t
        return padded if fmt == "thd" else padded.unflatten(0, (self.b, (self.sq, self.sk)[side])).permute(TO_BSHD[fmt])

    def masking(self) -> Masking:
        """`mask` with the sequence lengths."""
        if self.q_lengths is None or self.kv_lengths is None:
            return self.mask
        return self.mask._replace(q_sizes=self.q_lengths.sizes, kv_sizes=self.kv_lengths.sizes)

    def queries(self, t: Tensor, fmt: str) -> Tensor:
        """q, o or do as [b, h, s, d]."""
        if fmt != "thd":
            return t.permute(TO_BHSD[fmt])
        assert self.q_lengths is not None  # set by `attention_arguments`
        return unpacked(t, self.q_lengths, self.sq).transpose(1, 2)

    def keys(self, t: Tensor, table: Tensor | None = None) -> Tensor:
        """k or v as [b, h, s, d]."""
        if table is not None:
            return paged_in(t, table, self.layout.kv, self.sk).transpose(1, 2)
        if self.layout.kv != "thd":
            return t.permute(TO_BHSD[self.layout.kv])
        assert self.kv_lengths is not None
        return unpacked(t, self.kv_lengths, self.sk).transpose(1, 2)

    def back(self, t: Tensor, fmt: str, tokens: int, lengths: Lengths | None) -> Tensor:
        """A [b, h, s, d] tensor in a format; "thd" gets `tokens` tokens, with zeros for padding."""
        if fmt != "thd":
            return t.permute(FROM_BHSD[fmt])
        assert lengths is not None
        return packed(t.transpose(1, 2), lengths, tokens)


def attention_arguments(
    call: Any,
    op: str,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    attn_scale: float,
    qkv_layout: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    window_size: Any,
    bottom_right_diagonal: bool,
    cu_seqlens_q: Any,
    cu_seqlens_kv: Any,
    Q: Any,
    K: Any,
    V: Any,
    fake_dtype: torch.dtype,
    cu_seqlens_q_padded: Any,
    cu_seqlens_kv_padded: Any,
) -> tuple[AttentionArguments, Tensor, Tensor, Tensor]:
    layout, bias, softmax = LAYOUTS[int(qkv_layout)], BIASES[int(bias_type)], SOFTMAXES[int(softmax_type)]
    has_padding, causal, at_end = MASKS[int(attn_mask_type)]
    left, right = window_size
    q, k, v = (
        dequantized(call, op, n, t, f, fake_dtype) for n, t, f in zip("QKV", (Q, K, V), layout.formats, strict=True)
    )
    check_qkv(op, layout, q, k, v)
    how = Masking(float(attn_scale), causal, at_end, left, right, bool(bottom_right_diagonal), bias)
    (b, _, sq), (_, _, sk) = sizes(layout.q, q), sizes(layout.kv, k)
    if not has_padding and layout.dense:
        return AttentionArguments(layout, b, False, None, None, sq, sk, how, softmax), q, k, v
    check_cu_seqlens(op, "cu_seqlens_q", cu_seqlens_q, None if layout.q == "thd" else b, q)
    b = cu_seqlens_q.shape[0] - 1
    check_cu_seqlens(op, "cu_seqlens_kv", cu_seqlens_kv, b, q)
    q_gaps, kv_gaps = (
        gaps if fmt == "thd" else None
        for gaps, fmt in ((cu_seqlens_q_padded, layout.q), (cu_seqlens_kv_padded, layout.kv))
    )
    check_cu_seqlens(op, "cu_seqlens_q_padded", q_gaps, b, q, optional=True)
    check_cu_seqlens(op, "cu_seqlens_kv_padded", kv_gaps, b, q, optional=True)
    if layout.kv != "thd" and not layout.paged and sizes(layout.kv, k)[0] != b:
        raise BadArgument.of(op, "K", f"have the batch of cu_seqlens_q, {b}", str(sizes(layout.kv, k)[0]))
    sq = max_seqlen_q if layout.q == "thd" else sq
    sk = max_seqlen_kv if layout.kv == "thd" or layout.paged else sk
    of_q = Lengths.of(cu_seqlens_q, q_gaps, None if layout.q == "thd" else sq)
    of_kv = Lengths.of(cu_seqlens_kv, kv_gaps, None if layout.kv == "thd" else sk)
    gaps = (
        layout.q != "thd" or not (q_gaps is None or q_gaps is cu_seqlens_q),
        layout.kv != "thd" or not (kv_gaps is None or kv_gaps is cu_seqlens_kv),
    )
    args = AttentionArguments(layout, b, True, of_q, of_kv, sq, sk, how, softmax, cu_seqlens_q, cu_seqlens_kv, gaps)
    return args, q, k, v


def bias_of(op: str, args: AttentionArguments, bias: Any, q: Tensor, heads: int, name: str) -> Tensor | None:
    """The bias to add: [b or 1, h or 1, sq or 1, sk]."""
    if args.mask.bias in (NO_BIAS, ALIBI):
        return None
    check_tensor(op, name, bias, dims=4, on=q)
    full_shape = (args.b, heads, args.sq, args.sk)
    if any(n not in (1, full) for n, full in zip(bias.shape, full_shape, strict=True)):
        raise BadArgument.of(op, name, f"have shape {full_shape}, where each size may be 1", str(tuple(bias.shape)))
    return bias


def sink_of(op: str, args: AttentionArguments, offset: Any, q: Tensor, heads: int, name: str) -> Tensor | None:
    """The sink of each head: a score that only enters the softmax's denominator; 0 for the off-by-one softmax."""
    if args.softmax == VANILLA:
        return None
    off_by_one = args.softmax == OFF_BY_ONE
    check_tensor(op, name, offset, on=q, optional=off_by_one)
    if offset is not None and offset.numel() != heads:
        raise BadArgument.of(op, name, f"have shape (1, {heads}, 1, 1)", str(tuple(offset.shape)))
    if off_by_one or offset is None:  # the check above allows None only for off_by_one
        return torch.zeros(heads, dtype=torch.float32, device=q.device)
    return offset.reshape(heads)


def chosen_format(op: str, name: str, value: Any, layout: QKVLayout) -> str:
    """The format of o or do; if none is set, q's format."""
    fmt = FORMATS[int(value)] or layout.q
    if (fmt == "thd") != (layout.q == "thd"):
        raise BadArgument.of(op, name, "be THD where Q is, and nowhere else", str(fmt.upper()))
    return fmt

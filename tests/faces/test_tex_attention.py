"""tex's fused attention matches its definition in float64, computed one sequence, head and pair of tokens at a time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from meta_samples import nothing_is_read_on_the_host
from torch import Tensor

from opmux.core.errors import NotSupported
from opmux.core.spec import specs
from opmux.faces.tex import enums, quantized
from opmux.specs.random import philox_dropout_mask

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

FWD, BWD = specs.find("tex::fused_attn_fwd"), specs.find("tex::fused_attn_bwd")
LAYOUTS = [n.removeprefix("NVTE_") for n in enums.NVTE_QKV_Layout.__members__ if "NOT_SET" not in n]
MASKS = [n.removeprefix("NVTE_") for n in enums.NVTE_Mask_Type.__members__]
SQ, SK = (3, 5, 0, 4), (6, 4, 3, 7)  # lengths: one sequence has no query, one has fewer keys than queries
SQUARE = (3, 5, 0, 4)
D = 4
F64 = torch.float64


@dataclasses.dataclass(frozen=True)
class Call:
    layout: str = "BSHD_BSHD_BSHD"
    mask: str = "NO_MASK"
    bias: str = "NO_BIAS"
    softmax: str = "VANILLA_SOFTMAX"
    window: tuple[int, int] = (-1, -1)
    diagonal: bool | None = None  # align to the bottom right; None: the mask decides
    heads: int = 4
    kv_heads: int = 2
    dim_v: int = D
    dropout: float = 0.0
    gaps: bool = False
    bias_shape: tuple[int, ...] = (1, 4, 9, 9)
    o_format: str = ""
    full: bool = False  # every sequence has the maximum length
    square: bool = False  # as many keys as queries
    training: bool = True
    tops: bool = False
    dtype: torch.dtype = F64

    @property
    def parts(self) -> list[str]:
        return self.layout.removeprefix("Paged_KV_").lower().split("_")

    @property
    def q_format(self) -> str:
        return self.parts[0].replace("3", "")

    @property
    def kv_format(self) -> str:
        return self.parts[-1].replace("3", "").replace("2", "")

    @property
    def paged(self) -> bool:
        return self.layout.startswith("Paged")

    @property
    def lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The numbers of valid tokens of each sequence, which without padding are the maximum length."""
        sq, sk = (SQUARE, SQUARE) if self.square or "3" in self.layout else (SQ, SK)
        if "PADDING" in self.mask or "thd" in (self.q_format, self.kv_format) or self.paged:
            return sq, sk
        return (max(sq),) * len(sq), (max(sk),) * len(sk)

    @property
    def room(self) -> tuple[int, int]:
        return tuple(max(n) for n in self.lengths)  # type: ignore[return-value]


def offsets(sizes: tuple[int, ...], gaps: bool) -> list[int]:
    out, offset = [], 1 if gaps else 0
    for n in sizes:
        out.append(offset)
        offset += n + (2 if gaps else 0)
    return [*out, offset]


def cu(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)


def shape_of(fmt: str, heads: int, sizes: tuple[int, ...], d: int, gaps: bool) -> tuple[int, ...]:
    tokens = offsets(sizes, gaps)[-1] + 3  # tensors longer than needed
    sizes_by_letter = {"b": len(sizes), "s": max(sizes), "h": heads, "d": d, "t": tokens}
    return tuple(sizes_by_letter[c] for c in fmt)


PAGE = 3


def table_of(sizes: tuple[int, ...], seed: int) -> Tensor:
    pages = -(-max(sizes) // PAGE)
    g = torch.Generator().manual_seed(seed)
    return torch.randperm(len(sizes) * pages + 2, generator=g)[: len(sizes) * pages].view(len(sizes), pages).int()


def tensors(call: Call, g: torch.Generator) -> tuple[list[Tensor], tuple[Tensor, Tensor] | None]:
    """Q, K and V in the call's layout, with NaN outside the valid tokens; and page tables."""
    (sq, sk), kv = call.lengths, call.kv_heads
    draw = lambda shape: torch.randn(shape, generator=g, dtype=F64).to(call.dtype)
    if "3" in call.layout:
        dim = call.parts[0].index("3")
        one = shape_of(call.q_format, call.heads, sq, D, call.gaps)
        whole = draw((*one[:dim], 3, *one[dim:]))
        return [whole.select(dim, i) for i in range(3)], None
    q = draw(shape_of(call.q_format, call.heads, sq, D, call.gaps))
    if call.paged:
        tables = table_of(sk, 1), table_of(sk, 2)
        pages = len(sk) * tables[0].shape[1] + 2
        shape = (pages, PAGE, kv) if call.kv_format == "bshd" else (PAGE, pages, kv)
        return [q, draw((*shape, D)), draw((*shape, call.dim_v))], tables
    k = shape_of(call.kv_format, kv, sk, D, call.gaps)
    if "2" in call.layout:
        dim = call.parts[1].index("2")
        whole = draw((*k[:dim], 2, *k[dim:]))
        return [q, whole.select(dim, 0), whole.select(dim, 1)], None
    return [q, draw(k), draw((*k[:-1], call.dim_v))], None


def sequence(t: Tensor, fmt: str, n: int, sizes: tuple[int, ...], gaps: bool) -> Tensor:
    """The tokens of sequence n, as [tokens, heads, dim]."""
    if fmt == "thd":
        return t[(start := offsets(sizes, gaps)[n]) : start + sizes[n]]
    by_batch = {"bshd": lambda: t[n], "sbhd": lambda: t[:, n], "bhsd": lambda: t[n].transpose(0, 1)}[fmt]()
    return by_batch[: sizes[n]]


def paged_sequence(cache: Tensor, table: Tensor, fmt: str, n: int, size: int) -> Tensor:
    page = lambda p: cache[p] if fmt == "bshd" else cache[:, p]
    return torch.cat([page(int(p)) for p in table[n]])[:size]


def slopes(heads: int) -> list[float]:
    n = 2 ** int(math.log2(heads))
    more = [2.0 ** (-4.0 / n * (2 * i + 1)) for i in range(heads - n)]
    return [2.0 ** (-8.0 / n * (i + 1)) for i in range(n)] + more


def is_visible(call: Call, i: int, j: int, nq: int, nk: int) -> bool:
    low = "BOTTOM_RIGHT" in call.mask
    diagonal = low if call.diagonal is None else call.diagonal
    middle = i + (nk - nq if diagonal else 0)
    ok = not ("CAUSAL" in call.mask and j > i + (nk - nq if low else 0))
    ok = ok and (call.window[0] < 0 or j >= middle - call.window[0])
    return ok and (call.window[1] < 0 or j <= middle + call.window[1])


def truth(call: Call, qkv, tables, bias, offset, keep) -> dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]]:
    """(sequence, head) -> o [queries, dim], lse, and the maximum score of each query."""
    sq, sk = call.lengths
    results = {}
    scale = D**-0.5
    for n, (nq, nk) in enumerate(zip(sq, sk, strict=True)):
        q = sequence(qkv[0], call.q_format, n, sq, call.gaps)
        k, v = (
            paged_sequence(t, tables[i], call.kv_format, n, nk)
            if tables
            else sequence(t, call.kv_format, n, sk, call.gaps)
            for i, t in enumerate(qkv[1:])
        )
        for h in range(call.heads):
            group = h * call.kv_heads // call.heads
            s = q[:, h] @ k[:, group].T
            b = None if bias is None else bias.expand(len(sq), call.heads, *call.room)[n, h, :nq, :nk]
            s = (s + b) * scale if call.bias == "PRE_SCALE_BIAS" else s * scale + (0 if b is None else b)
            if call.bias == "ALIBI":
                low = "BOTTOM_RIGHT" in call.mask if call.diagonal is None else call.diagonal
                shift = nk - nq if low else 0
                away = [[-abs(i + shift - j) * slopes(call.heads)[h] for j in range(nk)] for i in range(nq)]
                s = s + torch.tensor(away, dtype=F64).reshape(nq, nk)
            visible = (
                torch.tensor([[is_visible(call, i, j, nq, nk) for j in range(nk)] for i in range(nq)])
                .view(nq, nk)
                .bool()
            )
            s = s.masked_fill(~visible, -math.inf)
            extra = {"VANILLA_SOFTMAX": -math.inf, "OFF_BY_ONE_SOFTMAX": 0.0}.get(call.softmax)
            extra = offset.reshape(-1)[h] if extra is None else torch.tensor(extra, dtype=F64)
            with_extra = torch.cat([s, extra.expand(nq, 1)], 1)
            lse = torch.logsumexp(with_extra, 1)
            p = torch.where(visible, torch.exp(s - torch.where(lse > -math.inf, lse, 0)[:, None]), 0)
            if keep is not None:
                p = p * keep[n, h, :nq, :nk] / (1 - call.dropout)
            o, tops = p @ v[:, group], torch.cat([s, torch.full((nq, 1), -math.inf, dtype=F64)], 1).amax(1)
            results[n, h] = (o, lse, tops)
    return results


def member(enum: Any, name: str) -> Any:
    return enum[f"NVTE_{name}"]


def forward_args(call: Call, qkv, tables, bias, offset, **other: Any) -> dict[str, Any]:
    sq, sk = call.lengths
    padded = lambda sizes: torch.tensor(offsets(sizes, True), dtype=torch.int32) if call.gaps else None
    diagonal = "BOTTOM_RIGHT" in call.mask if call.diagonal is None else call.diagonal
    cu_q = cu(sq)
    cu_kv = cu_q if sk == sq else cu(sk)  # one tensor for both means equal lengths
    return {
        "max_seqlen_q": max(sq), "max_seqlen_kv": max(sk), "is_training": call.training, "attn_scale": D**-0.5,
        "p_dropout": call.dropout, "set_zero": True, "qkv_layout": member(enums.NVTE_QKV_Layout, call.layout),
        "o_format": member(enums.NVTE_QKV_Format, (call.o_format or call.q_format).upper()),
        "qkv_scale_inv_format": enums.NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET,
        "bias_type": member(enums.NVTE_Bias_Type, call.bias), "attn_mask_type": member(enums.NVTE_Mask_Type, call.mask),
        "softmax_type": member(enums.NVTE_Softmax_Type, call.softmax), "window_size": call.window,
        "bottom_right_diagonal": diagonal, "cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "Q": qkv[0], "K": qkv[1],
        "V": qkv[2], "fake_dtype": call.dtype, "cu_seqlens_q_padded": padded(sq), "cu_seqlens_kv_padded": padded(sk),
        "page_table_k": tables and tables[0], "page_table_v": tables and tables[1], "s_quantizer": None,
        "o_quantizer": None, "Bias": bias, "SoftmaxOffset": offset, "rng_gen": None, "rng_elts_per_thread": 16,
        "return_max_logit": call.tops, "cuda_graph": False, **other,
    }  # fmt: skip


def backward_args(arguments: dict[str, Any], o: Any, do: Any, aux: list[Tensor], **other: Any) -> dict[str, Any]:
    more = {
        "do_format": arguments["o_format"], "dqkv_layout": arguments["qkv_layout"],
        "O": o, "dO": do, "Aux_CTX_Tensors": aux,
        "do_scale_inv_format": arguments["qkv_scale_inv_format"], "deterministic": False, "dp_quantizer": None,
        "dqkv_quantizer": None,
    }  # fmt: skip
    return {n: {**arguments, **more, **other}[n] for n in BWD.names}


def check(call: Call) -> None:
    """Compare the forward of a call with the definition, and the backward with autograd of the definition."""
    g = torch.Generator().manual_seed(0)
    qkv, tables = tensors(call, g)
    bias = offset = None
    if "SCALE" in call.bias:
        sizes = [len(SQ), call.heads, *call.room]
        shape = [n if want != 1 else 1 for n, want in zip(sizes, call.bias_shape, strict=True)]
        bias = torch.randn(shape, generator=g, dtype=F64)
    if call.softmax == "LEARNABLE_SOFTMAX":
        offset = torch.randn(1, call.heads, 1, 1, generator=g, dtype=torch.float32)
    if call.softmax == "OFF_BY_ONE_SOFTMAX":
        offset = torch.zeros(1, call.heads, 1, 1)
    arguments = forward_args(call, qkv, tables, bias, offset)
    out, *rest = FWD.reference(**arguments)
    stats, tops, rest = rest[0], (rest[1] if call.tops else None), rest[2 if call.tops else 1 :]
    state = rest[0]
    assert state.dtype is torch.int64 and state.shape == (2,)
    assert [t for t in (bias, offset) if t is not None] == rest[1:] or all(
        a is b for a, b in zip([t for t in (bias, offset) if t is not None], rest[1:], strict=True)
    )

    keep = None
    if call.dropout:
        queries, keys = call.room
        # A Philox group covers four keys.
        ones = torch.ones(len(SQ), call.heads, queries, -(-keys // 4) * 4, dtype=F64)
        keep = philox_dropout_mask(ones, state, call.dropout)[1]
    leaves = [t.detach().double().requires_grad_() for t in (*qkv, bias, offset) if t is not None]
    true_qkv = leaves[:3]
    true_bias = leaves[3] if bias is not None else None
    true_offset = leaves[-1] if offset is not None else None
    want = truth(call, true_qkv, tables, true_bias, true_offset, keep)

    fmt, (sq, _) = call.o_format or call.q_format, call.lengths
    assert out.is_contiguous() and out.shape[-1] == call.dim_v
    do = torch.randn(out.shape, generator=g, dtype=F64)
    loss = sum(t.sum() for t in leaves) * 0
    total = torch.zeros_like(out)
    for (n, h), (o, lse, top) in want.items():
        got, grad = (sequence(t, fmt, n, sq, call.gaps)[:, h] for t in (out, do))
        torch.testing.assert_close(got, o.detach(), msg=lambda m, head=(n, h): f"o of {head}: {m}")
        loss = loss + (o * grad).sum()
        first = offsets(sq, call.gaps)[n]
        head_index = (slice(first, first + sq[n]), h, 0) if call.q_format == "thd" else (n, h, slice(0, sq[n]), 0)
        torch.testing.assert_close(stats[head_index].double(), lse.detach(), rtol=1e-6, atol=1e-6)
        if tops is not None:
            torch.testing.assert_close(tops[head_index].double(), top.detach())
        if got.numel():
            sequence(total, fmt, n, sq, call.gaps)[:, h] = 1
    assert out[total == 0].eq(0).all(), "what is not a token is 0"
    if call.paged:
        return
    want_grads = list(torch.autograd.grad(loss, leaves))

    grads = BWD.reference(**backward_args(arguments, out, do, [stats, *rest]))
    assert len(grads) == 5
    for name, grad, w in zip(("dQ", "dK", "dV"), grads, want_grads[:3], strict=False):
        torch.testing.assert_close(grad, w, msg=lambda m, name=name: f"{name}: {m}")
    digits = [c for c in call.layout if c.isdigit()]
    shared = grads[3 - int(digits[0]) : 3] if digits else []
    assert len({t.untyped_storage().data_ptr() for t in shared}) == bool(digits)
    for got, like in zip(grads[:3], qkv, strict=True):
        assert got.shape == like.shape and strides_of(got) == strides_of(like)
    if bias is not None:
        torch.testing.assert_close(grads[3], want_grads[3])
    else:
        assert grads[3] is None
    if call.softmax == "LEARNABLE_SOFTMAX":
        assert grads[4].shape == (1, call.heads, 1, 1) and grads[4].dtype is torch.float32
        torch.testing.assert_close(grads[4].double(), want_grads[-1].double(), rtol=1e-5, atol=1e-6)
    elif offset is None:
        assert grads[4] is None


def strides_of(t: Tensor) -> list[int]:
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def heads_of(layout: str) -> int:
    return 4 if "3" in layout else 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_matches_the_definition(layout):
    for mask in ("NO_MASK", "CAUSAL_MASK", "PADDING_CAUSAL_BOTTOM_RIGHT_MASK"):
        check(Call(layout, mask, kv_heads=heads_of(layout)))


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if "T" in n.split("_")[0] and "3" not in n and "BSHD" not in n])
def test_gaps_between_sequences_are_ignored(layout):
    if layout.count("THD") + layout.count("T2HD") + layout.count("TH2D") >= 2:
        check(Call(layout, "PADDING_CAUSAL_MASK", gaps=True))


@pytest.mark.parametrize("layout", ["T3HD", "TH3D"])
def test_gaps_in_a_packed_buffer_are_ignored(layout):
    check(Call(layout, "PADDING_MASK", gaps=True, kv_heads=4))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["SBHD_SBHD_SBHD", "BSHD_BSHD_BSHD", "THD_THD_THD"])
def test_every_mask_matches_the_definition(layout, mask):
    check(Call(layout, mask))
    check(Call(layout, mask, square=True))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_windows_match_the_definition(mask, diagonal):
    for window in ((1, 1), (2, 0), (-1, 1), (0, -1), (-1, 0)):
        check(Call(mask=mask, window=window, diagonal=diagonal, heads=2, kv_heads=1))


@pytest.mark.parametrize("shape", [(4, 4, 9, 9), (1, 4, 9, 9), (4, 1, 9, 9), (1, 1, 9, 9), (1, 1, 1, 9)])
@pytest.mark.parametrize("bias", ["PRE_SCALE_BIAS", "POST_SCALE_BIAS"])
def test_biases_match_the_definition(bias, shape):
    check(Call(bias=bias, bias_shape=shape, mask="CAUSAL_MASK"))
    check(Call("THD_THD_THD", bias=bias, bias_shape=shape, mask="PADDING_MASK"))


@pytest.mark.parametrize("mask", ["NO_MASK", "CAUSAL_MASK", "PADDING_CAUSAL_BOTTOM_RIGHT_MASK"])
@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_matches_the_definition(mask, heads):
    check(Call(bias="ALIBI", mask=mask, heads=heads))
    check(Call(bias="ALIBI", mask=mask, heads=heads, diagonal=True, window=(2, 2)))


@pytest.mark.parametrize("softmax", ["OFF_BY_ONE_SOFTMAX", "LEARNABLE_SOFTMAX"])
def test_sinks_match_the_definition(softmax):
    for layout, mask in (("BSHD_BSHD_BSHD", "NO_MASK"), ("THD_THD_THD", "PADDING_CAUSAL_MASK")):
        check(Call(layout, mask, softmax=softmax))
    check(Call(mask="CAUSAL_BOTTOM_RIGHT_MASK", softmax=softmax, bias="POST_SCALE_BIAS", dropout=0.3))


@pytest.mark.parametrize("layout", ["SBHD_SBHD_SBHD", "THD_THD_THD", "BSH3D"])
def test_forward_and_backward_use_the_same_dropout_mask(layout):
    check(Call(layout, "PADDING_CAUSAL_MASK", dropout=0.4, kv_heads=heads_of(layout)))


def test_dropout_depends_on_the_generator():
    call = Call(dropout=0.4)
    qkv, _ = tensors(call, torch.Generator().manual_seed(0))

    def once(seed: int, **other: Any) -> list[Tensor]:
        gen = torch.Generator().manual_seed(seed)
        return FWD.reference(**forward_args(call, qkv, None, None, None, rng_gen=gen, **other))

    assert torch.equal(once(3)[0], once(3)[0]) and not torch.equal(once(3)[0], once(4)[0])
    plain = FWD.reference(**forward_args(Call(), qkv, None, None, None))[0]
    assert torch.equal(once(3, is_training=False)[0], plain)


def test_other_head_counts_dims_and_output_formats_match_the_definition():
    check(Call(dim_v=7, mask="CAUSAL_MASK"))
    check(Call("THD_THD_THD", dim_v=7))
    check(Call(kv_heads=1))
    check(Call(heads=1, kv_heads=1, mask="PADDING_MASK"))
    for mask in ("NO_MASK", "PADDING_CAUSAL_MASK"):
        for o_format in ("sbhd", "bshd", "bhsd"):
            check(Call(mask=mask, o_format=o_format, square=True))


@pytest.mark.parametrize("layout", ["BSHD_BSHD_BSHD", "THD_THD_THD"])
def test_max_logit_matches_the_definition(layout):
    check(Call(layout, "PADDING_CAUSAL_MASK", tops=True))
    check(Call(layout, "CAUSAL_BOTTOM_RIGHT_MASK", tops=True))


@pytest.mark.parametrize("layout", ["BSHD_BSHD_BSHD", "THD_THD_THD", "Paged_KV_THD_BSHD_BSHD"])
def test_values_outside_the_valid_tokens_do_not_matter(layout):
    call = Call(layout, "PADDING_MASK", gaps=layout == "THD_THD_THD")
    g = torch.Generator().manual_seed(0)
    qkv, tables = tensors(call, g)
    clean = FWD.reference(**forward_args(call, qkv, tables, None, None))
    marked = [torch.zeros_like(t) for t in qkv]
    for i, t in enumerate(marked):
        for n, size in enumerate(call.lengths[bool(i)]):
            if i and tables:
                for p in range(size):
                    t[int(tables[i - 1][n, p // PAGE]), p % PAGE] = 1
            else:
                fmt = call.kv_format if i else call.q_format
                sequence(t, fmt, n, call.lengths[bool(i)], call.gaps).fill_(1)
    corrupted = [t.masked_fill(m == 0, math.nan) for t, m in zip(qkv, marked, strict=True)]
    got = FWD.reference(**forward_args(call, corrupted, tables, None, None))
    assert torch.equal(got[0], clean[0])
    if not tables:
        do = torch.randn(clean[0].shape, generator=g, dtype=F64)
        keep = forward_args(call, qkv, tables, None, None)
        want = BWD.reference(**backward_args(keep, clean[0], do, clean[1:]))
        keep = forward_args(call, corrupted, tables, None, None)
        assert all(
            torch.equal(a, b)
            for a, b in zip(BWD.reference(**backward_args(keep, got[0], do, got[1:])), want)
            if a is not None
        )


def test_backward_of_a_part_of_the_keys_uses_the_lse_of_all():
    """A sequence's keys may be on several devices: the parts' gradients must add up to the gradients of all keys."""
    call = Call(mask="NO_MASK", square=True)
    g = torch.Generator().manual_seed(0)
    (q, k, v), _ = tensors(call, g)
    arguments = forward_args(call, (q, k, v), None, None, None)
    o, *aux = FWD.reference(**arguments)
    do = torch.randn(o.shape, generator=g, dtype=F64)
    want = BWD.reference(**backward_args(arguments, o, do, aux))
    parts = []
    for options in ({"deterministic": False}, {"deterministic": True}):
        halves = [
            BWD.reference(**backward_args({**arguments, "K": k[:, h], "V": v[:, h]}, o, do, aux, **options))
            for h in (slice(0, 2), slice(2, None))
        ]
        parts.append(halves)
        torch.testing.assert_close(halves[0][0] + halves[1][0], want[0])
        torch.testing.assert_close(torch.cat([halves[0][1], halves[1][1]], 1), want[1])
        torch.testing.assert_close(torch.cat([halves[0][2], halves[1][2]], 1), want[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_other_dtypes_are_rounded_once(dtype):
    for mask in ("CAUSAL_MASK", "PADDING_MASK"):
        call = Call("SBH3D", mask, kv_heads=4, dtype=dtype)
        qkv, _ = tensors(call, torch.Generator().manual_seed(0))
        o, *aux = FWD.reference(**forward_args(call, qkv, None, None, None))
        exact = FWD.reference(
            **forward_args(dataclasses.replace(call, dtype=F64), [t.double() for t in qkv], None, None, None)
        )
        assert o.dtype is dtype and aux[0].dtype is torch.float32
        torch.testing.assert_close(o.double(), exact[0], rtol=0.51 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("spec", [FWD, BWD], ids=lambda s: s.name)
def test_attention_copies_nothing_to_the_host(spec):
    nothing_is_read_on_the_host(spec)


# ---- FP8 ------------------------------------------------------------------------------------------------------------


def fp8(amax: float = 0.0, dtype: Any = enums.DType.kFloat8E4M3) -> Any:
    return quantized.Float8Quantizer(torch.tensor([16.0]), torch.tensor([amax]), dtype, columnwise=False)


@pytest.mark.parametrize("layout", ["BSHD_BSHD_BSHD", "SB3HD", "BSHD_BSH2D"])
@pytest.mark.parametrize("kind", ["delayed", "current"])
def test_fp8_attention_matches_the_definition(layout, kind):
    call = Call(layout, "CAUSAL_MASK", kv_heads=heads_of(layout), square=True, dtype=torch.bfloat16)
    qkv, _ = tensors(call, torch.Generator().manual_seed(0))
    current = lambda: quantized.Float8CurrentScalingQuantizer(columnwise=False)
    quantizer, s, o_of = fp8(), fp8() if kind == "delayed" else current(), fp8() if kind == "delayed" else current()
    held = [quantized.quantized(quantized.OPS, t.contiguous(), quantizer) for t in qkv]
    arguments = forward_args(call, held, None, None, None, s_quantizer=s, o_quantizer=o_of)
    o, *aux = FWD.reference(**arguments)
    exact = [t.dequantize(dtype=torch.float64) for t in held]
    double = dataclasses.replace(call, dtype=F64)
    want, *_ = FWD.reference(**forward_args(double, exact, None, None, None))
    if kind == "delayed":
        assert quantized.is_quantized(o) and o._data.dtype is torch.uint8 and s.amax.item() == 1
        assert o_of.amax.item() == pytest.approx(want.abs().max().item(), rel=0.01)
    else:
        assert type(o) is Tensor and o.dtype is torch.bfloat16
    torch.testing.assert_close(quantized.plain(quantized.OPS, o, F64), want, rtol=0.07, atol=0.01)

    do = quantized.quantized(quantized.OPS, torch.randn(want.shape).bfloat16(), fp8(dtype=enums.DType.kFloat8E5M2))
    dp, dqkv = (fp8(dtype=enums.DType.kFloat8E5M2) if kind == "delayed" else current() for _ in range(2))
    *grads, _, _ = BWD.reference(**backward_args(arguments, o, do, aux, dp_quantizer=dp, dqkv_quantizer=dqkv))
    back = backward_args(
        forward_args(double, exact, None, None, None),
        quantized.plain(quantized.OPS, o, F64),
        do.dequantize(dtype=F64),
        aux,
    )
    for got, w in zip(grads, BWD.reference(**back), strict=False):
        assert quantized.is_quantized(got) == (kind == "delayed")
        torch.testing.assert_close(quantized.plain(quantized.OPS, got, F64), w, rtol=0.15, atol=0.03)
    if kind == "delayed":
        assert dp.amax.item() > 0 and dqkv.amax.item() > 0
        for part, like in zip(grads, qkv, strict=True):
            assert part._data.stride() == like.stride()


# ---- invalid arguments and backend selection ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"qkv_layout": 99}, "qkv_layout must be a member of NVTE_QKV_Layout.*; got 99"),
        ({"attn_mask_type": "causal"}, "attn_mask_type must be a member of NVTE_Mask_Type"),
        ({"window_size": (-2, 0)}, r"window_size must be two ints of at least -1.*got \(-2, 0\)"),
        ({"window_size": 3}, "window_size must be two ints"),
        ({"p_dropout": 1.5}, "p_dropout must be between 0 and 1; got 1.5"),
        ({"Q": torch.zeros(2, 3)}, r"Q must be \[b, s, h, d\]"),
        ({"Q": torch.zeros(4, 5, 3, D, dtype=F64)}, "K must have heads that divide"),
        ({"V": torch.zeros(4, 6, 2, D, dtype=F64)}, "V must have the shape of K"),
        ({"K": torch.zeros(4, 7, 2, D)}, "K must have the dtype of Q"),
        ({"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)}, r"cu_seqlens_q must have shape \(5\)"),
        ({"cu_seqlens_kv": None}, "cu_seqlens_kv must be a Tensor"),
        ({"o_format": enums.NVTE_QKV_Format.NVTE_THD}, "o_format must be THD where Q is"),
        ({"bias_type": 1}, "Bias must be a Tensor; got None"),
        ({"softmax_type": 2}, "SoftmaxOffset must be a Tensor; got None"),
        ({"rng_gen": 3}, "rng_gen must be a torch.Generator or None; got int"),
        ({"o_quantizer": 3}, "o_quantizer must be of the format delayed, .*; got int"),
        ({"fake_dtype": torch.int32}, "fake_dtype must be one of float16.*; got int32"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_invalid_arguments_raise(invalid, message):
    call = Call(mask="PADDING_MASK")
    qkv, _ = tensors(call, torch.Generator().manual_seed(0))
    arguments = forward_args(call, qkv, None, None, None, **invalid)
    with pytest.raises((TypeError, ValueError), match=f"^fused_attn_fwd: {message}"):
        FWD.reference(**arguments)
    # Dispatch catches this error, and then calls the reference, which checks the arguments.
    with pytest.raises((TypeError, ValueError, LookupError)):
        FWD.adapter.bind({key: part.reference for key, part in FWD.parts.items()})(**arguments)


def test_a_paged_cache_has_no_gradient():
    call = Call("Paged_KV_BSHD_BSHD_BSHD", "PADDING_MASK")
    qkv, tables = tensors(call, torch.Generator().manual_seed(0))
    arguments = forward_args(call, qkv, tables, None, None)
    o, *aux = FWD.reference(**arguments)
    with pytest.raises(NotSupported, match="^fused_attn_bwd: qkv_layout"):
        BWD.reference(**backward_args(arguments, o, o, aux))


BACKEND = specs.find("tex::get_fused_attn_backend")


@pytest.mark.parametrize(
    ("changed", "backend"),
    [
        ({}, 1),
        ({"q_dtype": torch.float16, "kv_dtype": torch.float16}, 1),
        ({"q_dtype": torch.float32, "kv_dtype": torch.float32}, -1),
        ({"q_dtype": torch.float16}, -1),
        ({"q_dtype": torch.float8_e4m3fn, "kv_dtype": torch.float8_e4m3fn}, 2),
        ({"num_gqa_groups": 3}, -1),
        ({"head_dim_v": 32}, -1),
        ({"head_dim_v": 32, "qkv_layout": enums.NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD}, 1),
        ({"qkv_layout": enums.NVTE_QKV_Layout.NVTE_Paged_KV_BSHD_BSHD_BSHD}, -1),
        ({"qkv_layout": enums.NVTE_QKV_Layout.NVTE_Paged_KV_BSHD_BSHD_BSHD, "is_training": False}, 1),
    ],
)  # fmt: skip
def test_get_fused_attn_backend_matches_nvidias_rules(changed, backend):
    args = dict(zip(BACKEND.names, next(iter(BACKEND.samples(torch.float32, "cpu"))).args, strict=True)) | changed
    result = BACKEND.reference(**args)
    assert int(result) == backend and isinstance(result, enums.NVTE_Fused_Attn_Backend)


def test_get_fused_attn_backend_accepts_a_single_object():
    """Since 2.20.2 NVIDIA's layer passes a single object."""
    from types import SimpleNamespace

    args = dict(zip(BACKEND.names, next(iter(BACKEND.samples(torch.float32, "cpu"))).args, strict=True))
    request = SimpleNamespace(
        **args, qkv_dtype=enums.DType.kBFloat16, dropout=0.0, scaling_mode=0, batch_size=2
    )  # fmt: skip
    assert BACKEND.reference(request) == (enums.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen, "")
    request.qkv_dtype = enums.DType.kFloat32
    backend, why = BACKEND.reference(request)
    assert backend == -1 and "takes float16, bfloat16" in why
    request.qkv_dtype, request.scaling_mode = enums.DType.kFloat8E4M3, 1
    assert BACKEND.reference(request)[0] == -1

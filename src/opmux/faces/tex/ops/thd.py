"""tex's moves of sequences that lie one after another and are shared among devices in halves.

Each sequence is in two equal halves, the first and the last of its parts in the order of the text. `cu_seqlens`, int32
[b + 1], says where sequences begin; half of it says where halves do, once they are packed. It is read on the device.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....core.errors import BadArgument
from ....core.spec import Sample, Samples, op
from ....specs._checks import check_choice, check_int, check_tensor
from ....specs._numeric import FLOATS, wide
from ....specs._sequences import Lengths, token_places

INTS = (torch.int32, torch.int64)
MOVED = (*FLOATS, torch.uint8)


class Halves(NamedTuple):
    """Of each token: its sequence, its place there, where that is in its half alone, and which half it is in."""

    sequence: Tensor
    place: Tensor
    in_half: Tensor  # among tokens of one half, packed
    second: Tensor
    there: Tensor  # whether it is of a sequence at all

    @classmethod
    def of(cls, cu_seqlens: Tensor, tokens: int) -> "Halves":
        lengths = Lengths.of(cu_seqlens)
        sequence, place, there = token_places(lengths, tokens)
        half = lengths.sizes[sequence] // 2
        second = place >= half
        in_half = lengths.starts[sequence] // 2 + place - torch.where(second, half, 0)
        return cls(sequence, place, in_half.clamp_(0, max(tokens // 2 - 1, 0)), second, there)


def _check_lengths(op: str, name: str, value: Any, on: Tensor) -> None:
    check_tensor(op, name, value, dtypes=INTS, dims=1, on=on)
    if value.shape[0] < 2:
        raise BadArgument.of(op, name, "have sequences + 1 elements, at least 2", str(value.shape[0]))


def _check_tokens(op: str, name: str, value: Any, like: Tensor, tokens: int, of: str) -> None:
    """Of a tensor beside another, [tokens, h, d] or [2, tokens, h, d]: the same but for the number of tokens."""
    check_tensor(op, name, value, dtypes=(like.dtype,), dims=like.dim(), on=like)
    if value.shape != (*like.shape[:-3], tokens, *like.shape[-2:]):
        wanted = (*like.shape[:-3], tokens, *like.shape[-2:])
        raise BadArgument.of(op, name, f"have shape {wanted}, {of}", str(tuple(value.shape)))


def _check_lse(op: str, name: str, value: Any, packed: Any, b: int, on: Tensor, heads: int | None = None) -> None:
    shape = (heads, None) if packed else (b, heads, None)
    check_tensor(
        op, name, value, shape=shape, on=on, of="heads and tokens" if packed else "sequences, heads and tokens"
    )


def _mask(there: Tensor, like: Tensor) -> Tensor:
    """A mask of tokens for [tokens, h, d] or [2, tokens, h, d]."""
    return there[:, None, None].expand(like.shape[-3:])


# ---- samples --------------------------------------------------------------------------------------------------------


def _counted(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    n = 1
    for size in shape:
        n *= size
    return (torch.arange(n, device=device) % 37).reshape(shape).to(dtype) / 8


def _once(*builds: Any) -> Samples:
    def made(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for i, build in enumerate(builds):
            cu = torch.tensor([0, 4, 4, 12], dtype=torch.int32, device=device)
            yield Sample(tuple(build(lambda *shape: _counted(shape, dtype, device), cu).values()), id=str(i))

    return made


# ---- halves ---------------------------------------------------------------------------------------------------------


@op(space="tex", out="half", samples=_once(
    lambda new, cu: {"tensor": new(12, 2, 4), "cu_seqlens": cu, "half_idx": 1},
    lambda new, cu: {"tensor": new(2, 12, 2, 4), "cu_seqlens": cu, "half_idx": 0},
))  # fmt: skip
def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """The first or the second half of every sequence, packed, of [t, h, d] or [2, t, h, d]."""
    name = "thd_read_half_tensor"
    check_tensor(name, "tensor", tensor, dtypes=MOVED, dims=(3, 4))
    _check_lengths(name, "cu_seqlens", cu_seqlens, tensor)
    check_choice(name, "half_idx", half_idx, (0, 1))
    tokens = tensor.shape[-3]
    with torch.no_grad():
        half = cu_seqlens.long() // 2
        token = torch.arange(tokens // 2, device=tensor.device)
        sequence = torch.searchsorted(half[1:], token, right=True).clamp_(max=half.shape[0] - 2)
        found = (token + half[sequence + half_idx]).clamp_(max=max(tokens - 1, 0))
        return tensor.index_select(-3, found)


@op(space="tex", out="none", mutates=("lse",), samples=_once(
    lambda new, cu: {"lse": new(2, 12), "lse_per_step": new(2, 6), "cu_seqlens": cu, "lse_packed": True},
    lambda new, cu: {"lse": new(3, 2, 8), "lse_per_step": new(3, 2, 4), "cu_seqlens": cu, "lse_packed": False},
))  # fmt: skip
def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool) -> None:
    """lse = log(exp(lse) + exp(lse_per_step)) on second halves, in place; [h, t] if packed, else [b, h, s]."""
    name = "thd_second_half_lse_correction"
    check_tensor(name, "lse", lse, dims=2 if lse_packed else 3)
    _check_lengths(name, "cu_seqlens", cu_seqlens, lse)
    b = cu_seqlens.shape[0] - 1
    _check_lse(name, "lse", lse, lse_packed, b, lse)
    _check_lse(name, "lse_per_step", lse_per_step, lse_packed, b, lse, lse.shape[-2])
    if not lse.numel() or not lse_per_step.numel():
        return
    with torch.no_grad():
        if lse_packed:
            halves = Halves.of(cu_seqlens, lse.shape[1])
            there, at = halves.there & halves.second, halves.in_half.clamp(max=lse_per_step.shape[1] - 1)
            step = lse_per_step[:, at]
        else:
            there, at = _second_places(cu_seqlens, lse.shape[2])
            at = at.clamp(0, lse_per_step.shape[2] - 1)[:, None].expand(-1, lse.shape[1], -1)
            there, step = there[:, None], lse_per_step.gather(2, at)
        lse.copy_(torch.where(there, torch.logaddexp(wide(lse), wide(step)).to(lse.dtype), lse))


def _second_places(cu_seqlens: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """[b, longest]: whether a place is of a sequence's second half, and where in it."""
    size = cu_seqlens.long().diff()[:, None]
    place = torch.arange(longest, device=cu_seqlens.device)
    at = place - size // 2
    return (at >= 0) & (place < size), at


@op(space="tex", out="half_lse", samples=_once(
    lambda new, cu: {"lse": new(2, 12), "cu_seqlens": cu, "lse_packed": True, "second_half_lse_seqlen": 7},
    lambda new, cu: {"lse": new(3, 2, 8), "cu_seqlens": cu, "lse_packed": False, "second_half_lse_seqlen": 4},
))  # fmt: skip
def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int) -> Tensor:
    """The second halves, with zeros behind them: [h, n] of [h, t] if packed, else [b, h, n] of [b, h, s]."""
    name = "thd_read_second_half_lse"
    check_tensor(name, "lse", lse, dims=2 if lse_packed else 3)
    _check_lengths(name, "cu_seqlens", cu_seqlens, lse)
    check_int(name, "second_half_lse_seqlen", second_half_lse_seqlen, least=0)
    _check_lse(name, "lse", lse, lse_packed, cu_seqlens.shape[0] - 1, lse)
    n, size = second_half_lse_seqlen, lse.shape[-1]
    if not lse.numel():
        return lse.new_zeros((*lse.shape[:-1], n))
    with torch.no_grad():
        token = torch.arange(n, device=lse.device)
        if lse_packed:
            half = cu_seqlens.long() // 2
            sequence = torch.searchsorted(half[1:], token, right=True)
            at = token + half[1:][sequence.clamp(max=half.shape[0] - 2)]
            return lse[:, at.clamp(max=size - 1)].masked_fill(token >= half[-1], 0.0)
        half = cu_seqlens.long().diff()[:, None] // 2
        at = (half + token).clamp(max=size - 1)[:, None].expand(-1, lse.shape[1], -1)
        return lse.gather(2, at).masked_fill((token >= half)[:, None], 0.0)


# ---- what steps add up to -------------------------------------------------------------------------------------------


def _of_tokens(lse: Tensor, packed: bool, halves: Halves, at: Tensor, place: Tensor) -> Tensor:
    """[tokens, h, 1] of lse: at a token's place among all (packed), or in its sequence."""
    if packed:
        found = lse.transpose(0, 1)[at.clamp(0, lse.shape[1] - 1)]
    else:
        found = lse.transpose(1, 2)[halves.sequence, place.clamp(0, lse.shape[2] - 1)]
    return wide(found)[..., None]


def _scaled(out: Tensor, factor: Tensor) -> Tensor:
    """0 stays 0, whatever it is multiplied by."""
    return torch.where(out == 0, 0.0, wide(out) * torch.exp(factor))


def corrected(
    op: str, out: Any, out_per_step: Any, old_lse: Any, lse: Any, lse_per_step: Any, cu_seqlens: Any,
    only_second_half: Any, lse_packed: Any,
) -> None:  # fmt: skip
    check_tensor(op, "out", out, dims=3)
    _check_lengths(op, "cu_seqlens", cu_seqlens, out)
    tokens, heads, b = out.shape[0], out.shape[1], cu_seqlens.shape[0] - 1
    of_step = tokens // 2 if only_second_half else tokens
    _check_tokens(op, "out_per_step", out_per_step, out, of_step, "that of out, or of its second halves")
    for name, value in (("lse", lse), ("lse_per_step", lse_per_step), ("old_lse", old_lse)):
        if value is not None or name != "old_lse":
            _check_lse(op, name, value, lse_packed, b, out, heads)
    if not out.numel() or not lse.numel() or not lse_per_step.numel():
        return
    with torch.no_grad():
        halves = Halves.of(cu_seqlens, tokens)
        token = torch.arange(tokens, device=out.device)
        there, at, place = halves.there, token, halves.place
        if only_second_half:
            half = cu_seqlens.long().diff()[halves.sequence] // 2
            there, at, place = there & halves.second, halves.in_half, place - half
        now = _of_tokens(lse, lse_packed, halves, token, halves.place)
        step = _of_tokens(lse_per_step, lse_packed, halves, at, place)
        total = _scaled(out_per_step[at.clamp(0, max(of_step - 1, 0))], step - now)
        if old_lse is None:
            total = wide(out) + total
        else:
            total = _scaled(out, _of_tokens(old_lse, lse_packed, halves, token, halves.place) - now) + total
        out.copy_(torch.where(_mask(there, out), total.to(out.dtype), out))


@op(space="tex", out="none", mutates=("out",), samples=_once(
    lambda new, cu: {
        "out": new(12, 2, 4), "out_per_step": new(6, 2, 4), "lse": new(2, 12), "lse_per_step": new(2, 6),
        "cu_seqlens": cu, "only_second_half": True, "lse_packed": True,
    },
    lambda new, cu: {
        "out": new(12, 2, 4), "out_per_step": new(12, 2, 4), "lse": new(3, 2, 8), "lse_per_step": new(3, 2, 8) / 2,
        "cu_seqlens": cu, "only_second_half": False, "lse_packed": False,
    },
))  # fmt: skip
def thd_out_correction(
    out: Tensor, out_per_step: Tensor, lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, only_second_half: bool,
    lse_packed: bool,
) -> None:  # fmt: skip
    """out += out_per_step * exp(lse_per_step - lse), in place, on all tokens or those of second halves."""
    corrected(
        "thd_out_correction", out, out_per_step, None, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed
    )


def thd_out_correction_from_old(
    out: Tensor, out_per_step: Tensor, old_lse: Tensor, lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor,
    only_second_half: bool, lse_packed: bool,
) -> None:  # fmt: skip
    """`thd_out_correction` as 2.20.2 calls it, step by step:
    out = out * exp(old_lse - lse) + out_per_step * exp(lse_per_step - lse)."""
    name = "thd_out_correction"
    _check_lse(name, "old_lse", old_lse, lse_packed, cu_seqlens.shape[0] - 1, out, out.shape[1])
    corrected(name, out, out_per_step, old_lse, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed)


WAYS = ("add", "copy", "zero", "none")


@op(space="tex", out="none", mutates=("grad",), samples=_once(
    lambda new, cu: {
        "grad": new(12, 2, 4), "grad_per_step": -new(12, 2, 4), "cu_seqlens": cu, "first_half": "copy",
        "second_half": "add",
    },
    lambda new, cu: {
        "grad": new(12, 2, 4), "grad_per_step": -new(6, 2, 4), "cu_seqlens": cu, "first_half": "none",
        "second_half": "add",
    },
))  # fmt: skip
def thd_grad_correction(
    grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str
) -> None:
    """Add grad_per_step to each half of grad, copy it there, put zeros there, or leave it, in place.

    Where one half gets nothing of it (zero, none), grad_per_step is of the other half alone.
    """
    name = "thd_grad_correction"
    check_tensor(name, "grad", grad, dtypes=MOVED, dims=(3, 4))
    _check_lengths(name, "cu_seqlens", cu_seqlens, grad)
    check_choice(name, "first_half", first_half, WAYS)
    check_choice(name, "second_half", second_half, WAYS)
    whole = first_half in ("add", "copy") and second_half in ("add", "copy")
    tokens = grad.shape[-3]
    of_step = tokens if whole else tokens // 2
    _check_tokens(name, "grad_per_step", grad_per_step, grad, of_step, "that of grad, or of one half")
    if not grad.numel() or not grad_per_step.numel():
        return
    with torch.no_grad():
        halves = Halves.of(cu_seqlens, tokens)
        step = grad_per_step if whole else grad_per_step.index_select(-3, halves.in_half)
        made = {
            "add": lambda: grad + step,
            "copy": lambda: step,
            "none": lambda: grad,
            "zero": lambda: grad.new_zeros(()),
        }
        first, second = made[first_half](), made[second_half]()
        both = torch.where(_mask(halves.second, grad), second, first)
        grad.copy_(torch.where(_mask(halves.there, grad), both, grad))


# ---- order of devices -----------------------------------------------------------------------------------------------


def _partitioned(cu_seqlens: Tensor, total: int, world: int, rank: Tensor | int) -> Tensor:
    """[.., total / world]: the tokens of a rank, or, with [world, 1] of ranks, of all.

    Tokens after the last sequence are shared evenly, so that each is somebody's.
    """
    cu = cu_seqlens.long()
    mine = cu // world
    slot = torch.arange(total // world, device=cu.device)
    sequence = torch.searchsorted(mine[1:], slot, right=True).clamp_(max=mine.shape[0] - 2)
    place = slot - mine[sequence]
    half = (mine[sequence + 1] - mine[sequence]) // 2
    found = place + cu[sequence] + half * torch.where(place < half, rank, 2 * (world - 1) - rank)
    left = slot - mine[-1]
    return torch.where(left < 0, found, cu[-1] + rank * (total // world - mine[-1]) + left)


def _check_shares(op: str, cu_seqlens: Any, total: Any, world: Any, name: str) -> None:
    check_int(op, "total_tokens", total, least=0)
    check_int(op, name, world, least=1)
    if total % world:
        raise BadArgument.of(op, "total_tokens", f"be a multiple of {name}, {world}", str(total))


@op(space="tex", out="indices", samples=_once(
    lambda new, cu: {"cu_seqlens": cu, "total_tokens": 12, "world_size": 2, "rank": 1},
))  # fmt: skip
def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int) -> Tensor:
    """The tokens of a rank, int32: of the 2 * world_size parts of each sequence its own from the front, and from the
    back."""
    name = "thd_get_partitioned_indices"
    check_tensor(name, "cu_seqlens", cu_seqlens, dtypes=INTS, dims=1)
    _check_lengths(name, "cu_seqlens", cu_seqlens, cu_seqlens)
    _check_shares(name, cu_seqlens, total_tokens, world_size, "world_size")
    check_int(name, "rank", rank, least=0, most=world_size - 1)
    with torch.no_grad():
        return _partitioned(cu_seqlens, total_tokens, world_size, rank).int()


def _all_ranks(op: str, inp: Any, cu_seqlens: Any, cp_size: Any, total_tokens: Any) -> Tensor:
    """The tokens of all ranks, one rank after another."""
    check_tensor(op, "inp", inp, dtypes=None)
    _check_lengths(op, "cu_seqlens", cu_seqlens, inp)
    _check_shares(op, cu_seqlens, total_tokens, cp_size, "cp_size")
    if not inp.dim() or inp.shape[0] != total_tokens:
        raise BadArgument.of(op, "inp", f"have {total_tokens} tokens, as total_tokens says", str(tuple(inp.shape)))
    ranks = torch.arange(cp_size, device=inp.device)[:, None]
    return _partitioned(cu_seqlens, total_tokens, cp_size, ranks).reshape(-1)


@op(space="tex", out="by_rank", samples=_once(
    lambda new, cu: {"inp": new(12, 2, 4), "cu_seqlens": cu, "cp_size": 2, "total_tokens": 12},
))  # fmt: skip
def thd_sequence_order_to_cp_rank_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Tokens in the order of sequences -> those of each rank together."""
    name = "thd_sequence_order_to_cp_rank_order"
    with torch.no_grad():
        return inp[_all_ranks(name, inp, cu_seqlens, cp_size, total_tokens)]


@op(space="tex", out="by_sequence", samples=_once(
    lambda new, cu: {"inp": new(12, 2, 4), "cu_seqlens": cu, "cp_size": 2, "total_tokens": 12},
))  # fmt: skip
def thd_cp_rank_order_to_sequence_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Those of each rank together -> tokens in the order of sequences."""
    name = "thd_cp_rank_order_to_sequence_order"
    with torch.no_grad():
        order = _all_ranks(name, inp, cu_seqlens, cp_size, total_tokens)
        return torch.empty_like(inp).index_copy_(0, order, inp)


@op(space="tex", out="none", mutates=("out",), samples=_once(
    lambda new, cu: {
        "out": new(12, 2, 4), "inp": -new(12, 2, 4), "cu_seqlens_padded": cu,
        "cu_seqlens": torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=cu.device),
    },
))  # fmt: skip
def thd_copy_valid_tokens_from_per_split_to_rank_local(
    out: Tensor, inp: Tensor, cu_seqlens_padded: Tensor, cu_seqlens: Tensor
) -> None:
    """out = inp, in place, on tokens that are no padding at the end of their sequence."""
    name = "thd_copy_valid_tokens_from_per_split_to_rank_local"
    check_tensor(name, "out", out, dtypes=None)
    check_tensor(name, "inp", inp, dtypes=(out.dtype,), shape=tuple(out.shape), on=out, of="that of out")
    _check_lengths(name, "cu_seqlens_padded", cu_seqlens_padded, out)
    check_tensor(name, "cu_seqlens", cu_seqlens, dtypes=INTS, shape=tuple(cu_seqlens_padded.shape), on=out)
    if not out.dim():
        raise BadArgument.of(name, "out", "have tokens in its first dimension", "()")
    with torch.no_grad():
        _, _, there = token_places(Lengths.of(cu_seqlens, cu_seqlens_padded), out.shape[0])
        out.copy_(torch.where(there.reshape(-1, *[1] * (out.dim() - 1)), inp, out))

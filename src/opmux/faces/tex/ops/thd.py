"""tex's functions for concatenated ("thd") sequences that are distributed over devices (context parallelism).

Each device has two equal parts of each sequence, called halves: part `rank` from the front, and part `rank` from the
back. `cu_seqlens`, int32 [b + 1], contains the offsets of a device's sequences; divided by two, they are the offsets of
packed halves. It is read on the device.
"""

import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ....core.contract import (
    FLOATS,
    FP8,
    AnyTensor,
    Contract,
    Float,
    Index,
    at_least,
    below,
    dtypes,
    one_of,
    same_dtype,
    shape,
)
from ....core.rules import multiple_of, ndim, numel
from ....core.spec import Sample, Samples, op
from ....specs._numeric import wide
from ....specs._sequences import Lengths, token_places

Moved = AnyTensor[Tensor, "... t h d", dtypes((*FLOATS, torch.uint8)), ndim(3, 4)]
Read = AnyTensor[Tensor, "... t h d", dtypes((*FLOATS, *FP8, torch.uint8)), ndim(3, 4)]
Ends = Index[Tensor, "b+1", numel(2, least=True)]  # cu_seqlens: the offsets of sequences


def lse_shape(packed: bool, cu_seqlens: Tensor, heads: int | None = None) -> tuple[int | None, ...]:
    return (heads, None) if packed else (cu_seqlens.shape[0] - 1, heads, None)


LSE = "[h, t] if lse_packed, else [b, h, s]"
OutOfStep = Float[
    Tensor,
    "...",
    same_dtype("out"),
    shape(
        lambda out, only_second_half: (out.shape[0] // (2 if only_second_half else 1), *out.shape[1:]),
        "[t, h, d], or [t / 2, h, d] if only_second_half",
    ),
]
LseOfOut = Float[
    Tensor, "...", shape(lambda lse_packed, cu_seqlens, out: lse_shape(lse_packed, cu_seqlens, out.shape[1]), LSE)
]


class Halves(NamedTuple):
    """For each token: its sequence, its index in the sequence, its index among packed halves, and its half."""

    sequence: Tensor
    position: Tensor
    in_half: Tensor  # its index among the packed tokens of its half
    second: Tensor
    valid: Tensor  # whether it belongs to a sequence

    @classmethod
    def of(cls, cu_seqlens: Tensor, tokens: int) -> "Halves":
        lengths = Lengths.of(cu_seqlens)
        sequence, position, valid = token_places(lengths, tokens)
        half = lengths.sizes[sequence] // 2
        second = position >= half
        in_half = lengths.starts[sequence] // 2 + position - torch.where(second, half, 0)
        return cls(sequence, position, in_half.clamp_(0, max(tokens // 2 - 1, 0)), second, valid)


def _mask(valid: Tensor, like: Tensor) -> Tensor:
    """A mask of tokens for [tokens, h, d] or [2, tokens, h, d]."""
    return valid[:, None, None].expand(like.shape[-3:])


# ---- samples --------------------------------------------------------------------------------------------------------


def _counted(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    n = 1
    for size in shape:
        n *= size
    return (torch.arange(n, device=device) % 37).reshape(shape).to(dtype) / 8


def _one_sample_each(*builds: Any) -> Samples:
    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for i, build in enumerate(builds):
            cu = torch.tensor([0, 4, 4, 12], dtype=torch.int32, device=device)
            yield Sample(tuple(build(lambda *shape: _counted(shape, dtype, device), cu).values()), id=str(i))

    return samples


# ---- halves ---------------------------------------------------------------------------------------------------------


@op(
    space="tex",
    out="half",
    samples=_one_sample_each(
        lambda new, cu: {"tensor": new(12, 2, 4), "cu_seqlens": cu, "half_idx": 1},
        lambda new, cu: {"tensor": new(2, 12, 2, 4), "cu_seqlens": cu, "half_idx": 0},
    ),
)
def thd_read_half_tensor(tensor: Read, cu_seqlens: Ends, half_idx: Annotated[int, one_of(0, 1)]) -> Tensor:
    """The first or the second half of every sequence of [t, h, d] or [2, t, h, d], packed."""
    tokens = tensor.shape[-3]
    with torch.no_grad():
        half = cu_seqlens.long() // 2
        token = torch.arange(tokens // 2, device=tensor.device)
        sequence = torch.searchsorted(half[1:], token, right=True).clamp_(max=half.shape[0] - 2)
        source = (token + half[sequence + half_idx]).clamp_(max=max(tokens - 1, 0))
        return tensor.index_select(-3, source)


@op(
    space="tex",
    out="none",
    mutates=("lse",),
    samples=_one_sample_each(
        lambda new, cu: {"lse": new(2, 12), "lse_per_step": new(2, 6), "cu_seqlens": cu, "lse_packed": True},
        lambda new, cu: {"lse": new(3, 2, 8), "lse_per_step": new(3, 2, 4), "cu_seqlens": cu, "lse_packed": False},
    ),
)
def thd_second_half_lse_correction(
    lse: Float[Tensor, "...", shape(lambda lse_packed, cu_seqlens: lse_shape(lse_packed, cu_seqlens), LSE)],
    lse_per_step: Float[
        Tensor, "...", shape(lambda lse_packed, cu_seqlens, lse: lse_shape(lse_packed, cu_seqlens, lse.shape[-2]), LSE)
    ],
    cu_seqlens: Ends,
    lse_packed: bool,
) -> None:
    """lse = log(exp(lse) + exp(lse_per_step)) on second halves, in place; [h, t] if packed, else [b, h, s]."""
    if not lse.numel() or not lse_per_step.numel():
        return
    with torch.no_grad():
        if lse_packed:
            halves = Halves.of(cu_seqlens, lse.shape[1])
            valid, index = halves.valid & halves.second, halves.in_half.clamp(max=lse_per_step.shape[1] - 1)
            step = lse_per_step[:, index]
        else:
            valid, index = _second_half_positions(cu_seqlens, lse.shape[2])
            index = index.clamp(0, lse_per_step.shape[2] - 1)[:, None].expand(-1, lse.shape[1], -1)
            valid, step = valid[:, None], lse_per_step.gather(2, index)
        lse.copy_(torch.where(valid, torch.logaddexp(wide(lse), wide(step)).to(lse.dtype), lse))


def _second_half_positions(cu_seqlens: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Two [b, longest] tensors: whether a position is in the second half of its sequence; its index in that half."""
    size = cu_seqlens.long().diff()[:, None]
    position = torch.arange(longest, device=cu_seqlens.device)
    index = position - size // 2
    return (index >= 0) & (position < size), index


@op(
    space="tex",
    out="half_lse",
    samples=_one_sample_each(
        lambda new, cu: {"lse": new(2, 12), "cu_seqlens": cu, "lse_packed": True, "second_half_lse_seqlen": 7},
        lambda new, cu: {"lse": new(3, 2, 8), "cu_seqlens": cu, "lse_packed": False, "second_half_lse_seqlen": 4},
    ),
)
def thd_read_second_half_lse(
    lse: Float[Tensor, "...", shape(lambda lse_packed, cu_seqlens: lse_shape(lse_packed, cu_seqlens), LSE)],
    cu_seqlens: Ends,
    lse_packed: bool,
    second_half_lse_seqlen: Annotated[int, at_least(0)],
) -> Tensor:
    """The second halves, padded with zeros: [h, n] from [h, t] if packed, else [b, h, n] from [b, h, s]."""
    n, size = second_half_lse_seqlen, lse.shape[-1]
    if not lse.numel():
        return lse.new_zeros((*lse.shape[:-1], n))
    with torch.no_grad():
        token = torch.arange(n, device=lse.device)
        if lse_packed:
            half = cu_seqlens.long() // 2
            sequence = torch.searchsorted(half[1:], token, right=True)
            index = token + half[1:][sequence.clamp(max=half.shape[0] - 2)]
            return lse[:, index.clamp(max=size - 1)].masked_fill(token >= half[-1], 0.0)
        half = cu_seqlens.long().diff()[:, None] // 2
        index = (half + token).clamp(max=size - 1)[:, None].expand(-1, lse.shape[1], -1)
        return lse.gather(2, index).masked_fill((token >= half)[:, None], 0.0)


# ---- combining steps ------------------------------------------------------------------------------------------------


def _of_tokens(lse: Tensor, packed: bool, halves: Halves, index: Tensor, position: Tensor) -> Tensor:
    """Gather lse as [tokens, h, 1]: a packed lse by token, otherwise by sequence and position."""
    if packed:
        values = lse.transpose(0, 1)[index.clamp(0, lse.shape[1] - 1)]
    else:
        values = lse.transpose(1, 2)[halves.sequence, position.clamp(0, lse.shape[2] - 1)]
    return wide(values)[..., None]


def _scaled(out: Tensor, factor: Tensor) -> Tensor:
    """out * exp(factor), where 0 stays 0 even if exp(factor) is infinite."""
    return torch.where(out == 0, 0.0, wide(out) * torch.exp(factor))


def corrected(
    out: Tensor,
    out_per_step: Tensor,
    old_lse: Tensor | None,
    lse: Tensor,
    lse_per_step: Tensor,
    cu_seqlens: Tensor,
    only_second_half: bool,
    lse_packed: bool,
) -> None:
    tokens, of_step = out.shape[0], out_per_step.shape[0]
    if not out.numel() or not lse.numel() or not lse_per_step.numel():
        return
    with torch.no_grad():
        halves = Halves.of(cu_seqlens, tokens)
        token = torch.arange(tokens, device=out.device)
        valid, index, position = halves.valid, token, halves.position
        if only_second_half:
            half = cu_seqlens.long().diff()[halves.sequence] // 2
            valid, index, position = valid & halves.second, halves.in_half, position - half
        token_lse = _of_tokens(lse, lse_packed, halves, token, halves.position)
        step = _of_tokens(lse_per_step, lse_packed, halves, index, position)
        total = _scaled(out_per_step[index.clamp(0, max(of_step - 1, 0))], step - token_lse)
        if old_lse is None:
            total = wide(out) + total
        else:
            total = _scaled(out, _of_tokens(old_lse, lse_packed, halves, token, halves.position) - token_lse) + total
        out.copy_(torch.where(_mask(valid, out), total.to(out.dtype), out))


@op(
    space="tex",
    out="none",
    mutates=("out",),
    samples=_one_sample_each(
        lambda new, cu: {
            "out": new(12, 2, 4),
            "out_per_step": new(6, 2, 4),
            "lse": new(2, 12),
            "lse_per_step": new(2, 6),
            "cu_seqlens": cu,
            "only_second_half": True,
            "lse_packed": True,
        },
        lambda new, cu: {
            "out": new(12, 2, 4),
            "out_per_step": new(12, 2, 4),
            "lse": new(3, 2, 8),
            "lse_per_step": new(3, 2, 8) / 2,
            "cu_seqlens": cu,
            "only_second_half": False,
            "lse_packed": False,
        },
    ),
)
def thd_out_correction(
    out: Float[Tensor, "t h d"],
    out_per_step: OutOfStep,
    lse: LseOfOut,
    lse_per_step: LseOfOut,
    cu_seqlens: Ends,
    only_second_half: bool,
    lse_packed: bool,
) -> None:
    """out += out_per_step * exp(lse_per_step - lse), in place, on all tokens or those of second halves."""
    corrected(out, out_per_step, None, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed)


def thd_out_correction_from_old(
    out: Float[Tensor, "t h d"],
    out_per_step: OutOfStep,
    old_lse: LseOfOut,
    lse: LseOfOut,
    lse_per_step: LseOfOut,
    cu_seqlens: Ends,
    only_second_half: bool,
    lse_packed: bool,
) -> None:
    """`thd_out_correction` with the arguments of 2.20.2:
    out = out * exp(old_lse - lse) + out_per_step * exp(lse_per_step - lse)."""
    FROM_OLD.check(locals())
    corrected(out, out_per_step, old_lse, lse, lse_per_step, cu_seqlens, only_second_half, lse_packed)


FROM_OLD = Contract.of("thd_out_correction", typing.get_type_hints(thd_out_correction_from_old, include_extras=True))


HalfUpdate = Annotated[str, one_of("add", "copy", "zero", "none")]


def has_both_halves(first_half: str, second_half: str) -> bool:
    """Whether a step has both halves."""
    return first_half in ("add", "copy") and second_half in ("add", "copy")


def step_shape(grad: Tensor, first_half: str, second_half: str) -> tuple[int, ...]:
    tokens = grad.shape[-3] if has_both_halves(first_half, second_half) else grad.shape[-3] // 2
    return *grad.shape[:-3], tokens, *grad.shape[-2:]


@op(
    space="tex",
    out="none",
    mutates=("grad",),
    samples=_one_sample_each(
        lambda new, cu: {
            "grad": new(12, 2, 4),
            "grad_per_step": -new(12, 2, 4),
            "cu_seqlens": cu,
            "first_half": "copy",
            "second_half": "add",
        },
        lambda new, cu: {
            "grad": new(12, 2, 4),
            "grad_per_step": -new(6, 2, 4),
            "cu_seqlens": cu,
            "first_half": "none",
            "second_half": "add",
        },
    ),
)
def thd_grad_correction(
    grad: Moved,
    grad_per_step: AnyTensor[Tensor, "...", same_dtype("grad"), shape(step_shape, "that of grad, or of one half")],
    cu_seqlens: Ends,
    first_half: HalfUpdate,
    second_half: HalfUpdate,
) -> None:
    """For each half of grad, in place: add grad_per_step, copy it, write zeros, or leave it unchanged.

    If one half is "zero" or "none", grad_per_step has only the other half.
    """
    if not grad.numel() or not grad_per_step.numel():
        return
    with torch.no_grad():
        halves = Halves.of(cu_seqlens, grad.shape[-3])
        both_halves = has_both_halves(first_half, second_half)
        step = grad_per_step if both_halves else grad_per_step.index_select(-3, halves.in_half)
        candidates = {
            "add": lambda: grad + step,
            "copy": lambda: step,
            "none": lambda: grad,
            "zero": lambda: grad.new_zeros(()),
        }
        first, second = candidates[first_half](), candidates[second_half]()
        combined = torch.where(_mask(halves.second, grad), second, first)
        grad.copy_(torch.where(_mask(halves.valid, grad), combined, grad))


# ---- order of devices -----------------------------------------------------------------------------------------------


def _partitioned(cu_seqlens: Tensor, total: int, world: int, rank: Tensor | int) -> Tensor:
    """[.., total / world]: the tokens of a rank, or of all ranks for a [world, 1] tensor of ranks.

    Tokens after the last sequence are divided evenly, so that each belongs to a rank.
    """
    cu = cu_seqlens.long()
    own_cu = cu // world
    slot = torch.arange(total // world, device=cu.device)
    sequence = torch.searchsorted(own_cu[1:], slot, right=True).clamp_(max=own_cu.shape[0] - 2)
    position = slot - own_cu[sequence]
    half = (own_cu[sequence + 1] - own_cu[sequence]) // 2
    tokens = position + cu[sequence] + half * torch.where(position < half, rank, 2 * (world - 1) - rank)
    left = slot - own_cu[-1]
    return torch.where(left < 0, tokens, cu[-1] + rank * (total // world - own_cu[-1]) + left)


@op(
    space="tex",
    out="indices",
    samples=_one_sample_each(
        lambda new, cu: {"cu_seqlens": cu, "total_tokens": 12, "world_size": 2, "rank": 1},
    ),
)
def thd_get_partitioned_indices(
    cu_seqlens: Ends,
    total_tokens: Annotated[int, at_least(0), multiple_of("world_size")],
    world_size: Annotated[int, at_least(1)],
    rank: Annotated[int, at_least(0), below("world_size")],
) -> Tensor:
    """The tokens of a rank, int32: of the 2 * world_size parts of each sequence, part `rank` from the front and from
    the back.
    """
    with torch.no_grad():
        return _partitioned(cu_seqlens, total_tokens, world_size, rank).int()


Tokens = AnyTensor[Tensor, "total_tokens ..."]
Ranks = Annotated[int, at_least(1)]
Shared = Annotated[int, at_least(0), multiple_of("cp_size")]


def _all_ranks(cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """The tokens of all ranks, one rank after another."""
    ranks = torch.arange(cp_size, device=cu_seqlens.device)[:, None]
    return _partitioned(cu_seqlens, total_tokens, cp_size, ranks).reshape(-1)


REORDERED = _one_sample_each(
    lambda new, cu: {"inp": new(12, 2, 4), "cu_seqlens": cu, "cp_size": 2, "total_tokens": 12},
)


@op(space="tex", out="by_rank", samples=REORDERED)
def thd_sequence_order_to_cp_rank_order(inp: Tokens, cu_seqlens: Ends, cp_size: Ranks, total_tokens: Shared) -> Tensor:
    """Reorder tokens from sequence order to rank order, in which the tokens of a rank are contiguous."""
    with torch.no_grad():
        return inp[_all_ranks(cu_seqlens, cp_size, total_tokens)]


@op(space="tex", out="by_sequence", samples=REORDERED)
def thd_cp_rank_order_to_sequence_order(inp: Tokens, cu_seqlens: Ends, cp_size: Ranks, total_tokens: Shared) -> Tensor:
    """Reorder tokens from rank order to sequence order."""
    with torch.no_grad():
        order = _all_ranks(cu_seqlens, cp_size, total_tokens)
        return torch.empty_like(inp).index_copy_(0, order, inp)


@op(
    space="tex",
    out="none",
    mutates=("out",),
    samples=_one_sample_each(
        lambda new, cu: {
            "out": new(12, 2, 4),
            "inp": -new(12, 2, 4),
            "cu_seqlens_padded": cu,
            "cu_seqlens": torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=cu.device),
        },
    ),
)
def thd_copy_valid_tokens_from_per_split_to_rank_local(
    out: AnyTensor[Tensor, "t *rest"],
    inp: AnyTensor[Tensor, "t *rest", same_dtype("out")],
    cu_seqlens_padded: Ends,
    cu_seqlens: Index[Tensor, "b+1"],
) -> None:
    """out = inp, in place, except for padding tokens at the end of a sequence."""
    with torch.no_grad():
        _, _, valid = token_places(Lengths.of(cu_seqlens, cu_seqlens_padded), out.shape[0])
        out.copy_(torch.where(valid.reshape(-1, *[1] * (out.dim() - 1)), inp, out))

"""tex's rope: NVIDIA's names and signatures, implemented by the ops of `specs.rope`."""

from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import Float32, one_of
from ....specs import rope
from ....specs.rope import CASES, SPLITS, packed_args, parts_args, rope_args
from ....specs.samples import Draw, Maker
from ..enums import NVTE_QKV_Format

FORMATS = {NVTE_QKV_Format.NVTE_SBHD: "sbhd", NVTE_QKV_Format.NVTE_BSHD: "bshd", NVTE_QKV_Format.NVTE_THD: "thd"}
PACKED_FORMATS = {f: layout for f, layout in FORMATS.items() if layout != "thd"}
NUMBERS = {layout: int(f) for f, layout in FORMATS.items()}

# ---- arguments ------------------------------------------------------------------------------------------------------

Freqs = Float32[Tensor, "positions 1 1 _"]
QFreqs = Float32[Tensor, "q_positions 1 1 _"]
KFreqs = Float32[Tensor, "k_positions 1 1 _"]
Format = Annotated[Any, one_of(*FORMATS)]
PackedFormat = Annotated[Any, one_of(*PACKED_FORMATS)]

NAMES = {"angles": "freqs", "starts": "start_positions", "layout": "qkv_format"}
QKV_NAMES = {
    "q_angles": "q_freqs",
    "k_angles": "k_freqs",
    "split": "qkv_split_arg_list",
    "starts": "start_positions",
    "layout": "qkv_format",
}


def is_table(freqs: Tensor) -> bool:
    """Whether tex's functions accept freqs; our ops accept more dtypes and shapes of tables."""
    return freqs.dtype is torch.float32 and freqs.dim() == 4


# ---- q or k ---------------------------------------------------------------------------------------------------------


def _args(d: Draw, first: str) -> dict[str, Any]:
    args = rope_args(d)
    return {
        first: args["x"],
        "freqs": args["angles"].float()[:, None, None],
        "start_positions": args["starts"],
        "qkv_format": NUMBERS[args["layout"]],
        "interleaved": args["interleaved"],
        "cu_seqlens": args["cu_seqlens"],
        "cp_size": args["cp_size"],
        "cp_rank": args["cp_rank"],
    }


TEX = tuple(c for c in CASES if not {"sin", "batched"} & set(c.options))
FORWARD = Maker(lambda d: _args(d, "input"), TEX)
BACKWARD = Maker(lambda d: _args(d, "output_grads"), TEX)


@adapt("tex::fused_rope_forward", over=rope.rope_fwd, names={"x": "input", **NAMES}, samples=FORWARD)
def fused_rope_forward(
    call: Any,
    input: Tensor,
    freqs: Freqs,
    start_positions: Tensor | None,
    qkv_format: Format,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """rope_fwd of input by the angles freqs.

    Args:
        input: heads, with the dimensions that qkv_format names.
        freqs: the angles of each position, for at least as many positions as the longest sequence has.
        start_positions: the position of each sequence's first token; None for 0.
        qkv_format: the order of the dimensions of input.
        interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d2/2).
        cu_seqlens: for NVTE_THD, the start of each sequence, and the end of the last; ignored in other formats.
        cp_size: the number of context-parallel ranks. Each sequence has 2 * cp_size pieces, and input has two of them:
            piece cp_rank from the front and from the back.
        cp_rank: the index of this rank.

    Returns:
        A new contiguous tensor of input's shape and dtype.
    """
    with torch.no_grad():
        layout = FORMATS[qkv_format]
        if not is_table(freqs):
            fused_rope_forward.check(freqs=freqs)
        edges = cu_seqlens if layout == "thd" else None
        return call(input, freqs, None, start_positions, edges, layout, interleaved, cp_size, cp_rank)


@adapt(
    "tex::fused_rope_backward", over=rope.rope_bwd, names={"dy": "output_grads", **NAMES}, out="dx", samples=BACKWARD
)
def fused_rope_backward(
    call: Any,
    output_grads: Tensor,
    freqs: Freqs,
    start_positions: Tensor | None,
    qkv_format: Format,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """The gradient of fused_rope_forward's input.

    Args:
        output_grads: the gradient of the result; the other arguments are those of fused_rope_forward.

    Returns:
        A new contiguous tensor of output_grads' shape and dtype.
    """
    with torch.no_grad():
        layout = FORMATS[qkv_format]
        if not is_table(freqs):
            fused_rope_backward.check(freqs=freqs)
        edges = cu_seqlens if layout == "thd" else None
        return call(output_grads, freqs, None, start_positions, edges, layout, interleaved, cp_size, cp_rank)


# ---- packed q, k and v ----------------------------------------------------------------------------------------------


def _tables(args: dict[str, Any]) -> dict[str, Any]:
    return {name: args[ours][:, None, None] for ours, name in (("q_angles", "q_freqs"), ("k_angles", "k_freqs"))}


def _rest(args: dict[str, Any]) -> dict[str, Any]:
    form = {"qkv_split_arg_list": args["split"], "qkv_format": NUMBERS[args["layout"]]}
    return {**form, **{name: args[name] for name in ("interleaved", "cp_size", "cp_rank")}}


def _packed_args(d: Draw) -> dict[str, Any]:
    args = packed_args(d)
    return {"qkv_input": args["qkv"], **_tables(args), "start_positions": args["starts"], **_rest(args)}


def _parts_args(d: Draw) -> dict[str, Any]:
    args = parts_args(d)
    return {**{f"{n}_grad_out": args[f"d{n}"] for n in "qkv"}, **_tables(args), **_rest(args)}


@adapt(
    "tex::fused_qkv_rope_forward",
    over=rope.rope_qkv_fwd,
    names={"qkv": "qkv_input", **QKV_NAMES},
    out="q k v",
    samples=Maker(_packed_args, SPLITS),
)
def fused_qkv_rope_forward(
    call: Any,
    qkv_input: Tensor,
    q_freqs: QFreqs,
    k_freqs: KFreqs,
    start_positions: Tensor | None,
    qkv_split_arg_list: list[int],
    qkv_format: PackedFormat,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of packed heads: rope_qkv_fwd by the angles q_freqs and k_freqs.

    Args:
        qkv_input: each head holds q, k and v, of the sizes in qkv_split_arg_list.
        q_freqs: the angles of each position for q.
        k_freqs: the angles of each position for k.
        start_positions: the position of each sequence's first token; None for 0. Ignored if cp_size > 1, as NVIDIA does
            here and in no other function.
        qkv_split_arg_list: three sizes; the second is the head size of q and k, the first a multiple of it.
        qkv_format: the order of the dimensions of qkv_input.
        interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d2/2).
        cp_size: context parallelism, as in fused_rope_forward.
        cp_rank: the index of this rank.

    Returns:
        q, k and v: new contiguous tensors, q in heads of the size of k's.
    """
    with torch.no_grad():
        layout, starts = PACKED_FORMATS[qkv_format], start_positions if cp_size == 1 else None
        if not (is_table(q_freqs) and is_table(k_freqs)):
            fused_qkv_rope_forward.check(q_freqs=q_freqs, k_freqs=k_freqs)
        return call(qkv_input, q_freqs, k_freqs, qkv_split_arg_list, starts, layout, interleaved, cp_size, cp_rank)


@adapt(
    "tex::fused_qkv_rope_backward",
    over=rope.rope_qkv_bwd,
    names={"dq": "q_grad_out", "dk": "k_grad_out", "dv": "v_grad_out", **QKV_NAMES},
    out="dqkv",
    samples=Maker(_parts_args, SPLITS),
)
def fused_qkv_rope_backward(
    call: Any,
    q_grad_out: Tensor,
    k_grad_out: Tensor,
    v_grad_out: Tensor,
    q_freqs: QFreqs,
    k_freqs: KFreqs,
    qkv_split_arg_list: list[int],
    qkv_format: PackedFormat,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """The gradient of fused_qkv_rope_forward's qkv_input. Positions count from 0, as NVIDIA's do.

    Args:
        q_grad_out: the gradient of q.
        k_grad_out: the gradient of k.
        v_grad_out: the gradient of v; the other arguments are those of fused_qkv_rope_forward.

    Returns:
        A new contiguous tensor of qkv_input's shape and dtype.
    """
    with torch.no_grad():
        layout = PACKED_FORMATS[qkv_format]
        if not (is_table(q_freqs) and is_table(k_freqs)):
            fused_qkv_rope_backward.check(q_freqs=q_freqs, k_freqs=k_freqs)
        grads = (q_grad_out, k_grad_out, v_grad_out)
        return call(*grads, q_freqs, k_freqs, qkv_split_arg_list, None, layout, interleaved, cp_size, cp_rank)

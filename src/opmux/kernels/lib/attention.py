"""The tiles, grids and arguments with which attention launches `attention_kernels`, for any memory layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...core.errors import NotSupported
from ...specs import attention as spec
from ...specs import random
from .attention_kernels import STRIDES, backward_kv, backward_q, forward
from .config import Tiles, tunable
from .harness import Launch, Plan, Zeros
from .launch import Launcher
from .products import aligned_copy
from .rows import OutputSpec, wide_of

WIDEST = 256  # the largest head dimension
LOG2_E = math.log2(math.e)  # kernels use exp2, a single instruction


# ---- tiles ----------------------------------------------------------------------------------------------------------


def _tiles(queries: int, dim: int, dtype: torch.dtype, widest: int, threads: int, **sizes: Any) -> Tiles:
    side = widest if dtype.itemsize <= 2 and dim <= 128 else 64 if dtype.itemsize <= 4 and dim <= 128 else 32
    block_m = min(side, max(16, triton.next_power_of_2(queries)))
    return Tiles(threads, 2, BLOCK_M=block_m, BLOCK_N=min(side, 64 if dtype.itemsize <= 2 else 32), **sizes)


@tunable("attention.fwd", free="BLOCK_M BLOCK_N")
def fwd_tiles(queries: int, keys: int, dim: int, dtype: torch.dtype, extra: bool) -> Tiles:
    """Forward tiles; `dim` is the larger head dimension of q and v.

    `extra`: the kernel also loads a bias or generates dropout bits, which takes registers and shared memory.
    """
    return _tiles(queries, dim, dtype, 64 if extra else 128, 256 if queries > 64 and not extra else 128)


@tunable("attention.bwd_q", free="BLOCK_M BLOCK_N")
def bwd_q_tiles(queries: int, keys: int, dim: int, dtype: torch.dtype, extra: bool) -> Tiles:
    """Tiles of the kernels for dq and for the gradient of the bias."""
    return _tiles(queries, dim, dtype, 32 if extra else 64, 128)


@tunable("attention.bwd_kv", free="BLOCK_M BLOCK_N")
def bwd_kv_tiles(queries: int, keys: int, dim: int, dtype: torch.dtype, extra: bool) -> Tiles:
    """Tiles of the kernel for dk and dv. ENGINE: load tiles with TMA, if the chip has it and the layouts allow it."""
    return _tiles(queries, dim, dtype, 32 if extra else 64, 128, ENGINE=False)


@tunable("attention.bwd_sink")
def sink_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(256, BLOCK=1024)


# ---- plans ----------------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Memory layout of a tensor [batch, heads, rows, dim] or [tokens, heads, dim]."""

    strides: tuple[int, int, int]  # of the batch, head and row dimensions
    copied: bool  # whether the launch needs a contiguous copy

    @classmethod
    def of(cls, t: Tensor) -> Layout:
        copied = t.stride(-1) != 1 and t.shape[-1] > 1
        return cls(strides_of(OutputSpec.of(t.shape, t.dtype).stride if copied else t.stride()), copied)


def strides_of(stride: tuple[int, ...]) -> tuple[int, int, int]:
    return (0, stride[1], stride[0]) if len(stride) == 3 else (stride[0], stride[1], stride[2])


def like(t: Tensor, dim: int | None = None, seq_first: bool = False) -> OutputSpec:
    """An output with the memory layout of `t`, or of contiguous [batch, seq, heads, dim] if `seq_first`."""
    shape = (*t.shape[:-1], t.shape[-1] if dim is None else dim)
    if t.dim() == 3:
        return OutputSpec.of(shape, t.dtype)
    order = spec.SEQ_FIRST if seq_first else spec.order(t)
    packed = OutputSpec.of([shape[i] for i in order], t.dtype).stride
    return OutputSpec(shape, tuple(packed[order.index(i)] for i in range(4)), t.dtype)


class Options(NamedTuple):
    """Options of other attention ops, which the op `attention` does not have."""

    at_end: bool = True
    softcap: float = 0.0
    dropout_p: float = 0.0
    bias: tuple[int, int, int] | None = None  # strides of its batch, head and row dimensions
    slopes: bool = False

    @property
    def extra(self) -> bool:
        return self.bias is not None or self.dropout_p > 0


NO_OPTIONS = Options()


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


class AttentionProblem(NamedTuple):
    """Sizes and settings of a dense or packed call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int  # the longest sequence has `queries` queries and `keys` keys
    keys: int
    dim: int
    dim_v: int
    dtype: torch.dtype
    left: int
    right: int
    scale: float
    precision: str
    options: Options

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        left: int,
        right: int,
        scale: float | None,
        precision: str,
        packed: tuple[int, int, int] | None = None,
        options: Options = NO_OPTIONS,
    ) -> AttentionProblem:
        """`packed`: number of sequences, longest query sequence, longest key sequence."""
        batch, queries, keys = packed or (q.shape[0], q.shape[2], k.shape[2])
        dim, dim_v = q.shape[-1], v.shape[-1]
        if max(dim, dim_v) > WIDEST:
            raise NotSupported(f"head dimensions above {WIDEST}; got {dim} and {dim_v}")
        if batch * max(q.shape[1], 1) >= 2**16:
            raise NotSupported(f"{batch} sequences of {q.shape[1]} heads; a launch can have less than 65536 heads")
        scale = spec.scale_of(q, scale)
        return cls(
            batch, q.shape[1], k.shape[1], queries, keys, dim, dim_v, q.dtype, left, right, scale, precision, options
        )

    @property
    def empty(self) -> bool:
        return not (self.batch and self.heads and self.queries)

    @property
    def full(self) -> bool:
        """Whether both head dimensions fill their blocks, so that no column mask is needed."""
        return all(size == _block(size) for size in (self.dim, self.dim_v))

    def facts(self) -> dict[str, Any]:
        dim = max(self.dim, self.dim_v)
        return dict(queries=self.queries, keys=self.keys, dim=dim, dtype=self.dtype, extra=self.options.extra)

    def launch(
        self,
        kernel: Launcher,
        tiles: Tiles,
        grid: tuple[int, int],
        layouts: Mapping[str, tuple[int, int, int]],
        lse: tuple[int, int],
        heads: int,
    ) -> Launch:
        cap, dropped = self.options.softcap, self.options.dropout_p
        plain = self.options.bias is None and not self.options.slopes and not cap
        fused = {"FUSE_SCALE": plain and self.scale > 0} if kernel is forward else {}
        config = tiles.config(
            LEFT=self.left >= 0,
            RIGHT=self.right >= 0,
            AT_END=self.options.at_end,
            CAP=cap > 0,
            DROP=dropped > 0,
            FULL=self.full,
            WIDE=wide_of(self.dtype),
            PRECISION=self.precision if self.dtype is torch.float32 else "ieee",
            BLOCK_D=_block(self.dim),
            BLOCK_E=_block(self.dim_v),
            **fused,
        )
        numbers = dict(
            queries=self.queries,
            keys=self.keys,
            heads=heads,
            group=self.heads // self.kv_heads,
            dim=self.dim,
            dim_v=self.dim_v,
            scale=self.scale * LOG2_E * (2 / cap if cap else 1),
            left=self.left,
            right=self.right,
            cap=cap * LOG2_E,
            drop_scale=random.scale(dropped),
            threshold=random.threshold(dropped),
            key=0,
            counter=0,
            lse_batch=lse[0],
            lse_head=lse[1],
        )
        for name, strides in {**layouts, "bias": self.options.bias or (0, 0, 0)}.items():
            numbers |= {f"{name}_{s}": n for s, n in zip(STRIDES.split(), strides)}
        return Launch(kernel, grid, config, numbers)


def _output(output: OutputSpec | Zeros) -> OutputSpec:
    return output.output if isinstance(output, Zeros) else output


def forward_plan(
    p: AttentionProblem, q: Tensor, k: Tensor, v: Tensor, makes: Mapping[str, Any], lse: tuple[int, int]
) -> Plan:
    if p.empty:
        return Plan(makes)
    input_layouts = {name: Layout.of(t) for name, t in (("q", q), ("k", k), ("v", v))}
    layouts = {name: layout.strides for name, layout in input_layouts.items()}
    layouts["o"] = strides_of(_output(makes["o"]).stride)
    tiles = fwd_tiles(**p.facts())
    grid = (-(-p.queries // tiles["BLOCK_M"]), p.batch * p.heads)
    copied = [n for n, layout in input_layouts.items() if layout.copied]
    return Plan(makes, [p.launch(forward, tiles, grid, layouts, lse, p.heads)], copied)


def backward_plan(
    p: AttentionProblem,
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    makes: Mapping[str, Any],
    stats: OutputSpec | Zeros,
    lse: tuple[int, int],
    copied: list[str],
) -> Plan:
    inputs = {"do": do, "q": q, "k": k, "v": v, "o": o}
    input_layouts = {name: Layout.of(t) for name, t in inputs.items()}
    layouts = {name: layout.strides for name, layout in input_layouts.items()}
    layouts |= {name: strides_of(_output(makes[name]).stride) for name in ("dq", "dk", "dv")}
    steps = []
    if not p.empty:
        tiles = bwd_q_tiles(**p.facts())
        grid = (-(-p.queries // tiles["BLOCK_M"]), p.batch * p.heads)
        names = {n: layouts[n] for n in ("q", "k", "v", "o", "do", "dq")}
        steps.append(p.launch(backward_q, tiles, grid, names, lse, p.heads))
    before = {}
    if p.batch and p.kv_heads and p.keys:
        tiles = bwd_kv_tiles(**p.facts())
        read = ("q", "k", "v", "do")
        engine = tiles["ENGINE"] and p.full and all(fits_engine(inputs[n], layouts[n]) for n in read)
        tiles = tiles.changed({"ENGINE": engine}, "attention.bwd_kv")
        before = {n: aligned_copy(None) for n in read} if engine else {}
        grid = (-(-p.keys // tiles["BLOCK_N"]), p.batch * p.kv_heads)
        names = {n: layouts[n] for n in ("q", "k", "v", "do", "dk", "dv")}
        steps.append(p.launch(backward_kv, tiles, grid, names, lse, p.kv_heads))
    strided = [n for n, layout in input_layouts.items() if layout.copied]
    return Plan({**makes, "delta": stats}, steps, [*strided, *copied], before)


def fits_engine(t: Tensor, strides: tuple[int, int, int]) -> bool:
    """Whether TMA can load the rows: every row stride is a multiple of 16 bytes, and rows do not overlap."""
    return strides[-1] > 0 and all(step * t.element_size() % 16 == 0 for step in strides)

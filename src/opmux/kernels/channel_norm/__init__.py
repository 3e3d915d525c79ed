"""Group norm, batch norm and weight norm: their layouts in memory, and the choice of kernels.

A unit is all elements that share one statistic. A small unit is held in registers and read once. A longer unit is read
twice by one program, the second time from L2; or many programs compute partial statistics, which are merged in a fixed
order, and another kernel scales all elements. Longer units of channels-last tensors are always shared by many programs,
along columns. Results are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...core.spec import Spec
from ...core.tensors import opmath_dtype
from ...specs import channel_norm as spec
from ..lib.config import Tiles, tunable
from ..lib.harness import Launch, Plan, Step, Zeros, planned, strided
from ..lib.launch import Launcher
from ..lib.norms import rstd_of_nothing
from ..lib.rows import OutputSpec, cores, fits, wide_of
from . import device as chip
from . import elements, totals

# ---- layouts --------------------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """The layout of units in memory, as arguments of the kernels (see `device`)."""

    r_stride: int
    f_stride: int
    k_stride: int
    n_l: int
    n_k: int
    n_r: int
    n_f: int


class Extent(NamedTuple):
    """The sizes of a tensor (samples, channels, positions), and how it is divided into units."""

    n: int
    c: int
    s: int
    groups: int  # units per sample; 0: a unit is one channel over all samples
    last: bool  # channels are adjacent in memory

    @property
    def width(self) -> int:
        """Channels per unit."""
        return self.c // self.groups if self.groups else 1

    @property
    def count(self) -> int:
        """Elements per unit."""
        return self.width * self.s if self.groups else self.n * self.s

    @property
    def units(self) -> int:
        return self.n * self.groups if self.groups else self.c

    @property
    def channel(self) -> str:
        """Which elements of a unit share a channel: the whole "unit", each "run", or each "position" in a run."""
        return "unit" if not self.groups else "position" if self.last else "run"

    @property
    def tight(self) -> bool:
        """Whether units are the columns of a matrix, so that adjacent units are adjacent in memory."""
        return self.last and not self.groups

    @property
    def matrices(self) -> tuple[int, int]:
        """Channels-last: the number of matrices [rows, channels], and the number of rows of each."""
        return (self.n, self.s) if self.groups else (1, self.n * self.s)

    def runs(self) -> Runs:
        n, c, s, w = self.n, self.c, self.s, self.width
        if self.groups:
            if self.last:
                return Runs(s * c, w, c, w, s, n, self.groups)
            return Runs(c * s, w * s, s, s, w, n, self.groups)
        return Runs(1, 0, c, 1, n * s, c, 1) if self.last else Runs(s, 0, c * s, s, n, c, 1)

    @classmethod
    def of(cls, x: Tensor, groups: int) -> Extent:
        n, c, s = spec.sizes(x)
        return cls(n, c, s, groups, s == 1 or spec.memory_format(x) is not torch.contiguous_format)

    @classmethod
    def of_weight(cls, v: Tensor, dim: int | None) -> Extent:
        before, length, after = spec.around(v, dim)
        return cls(before, length, after, 0, after == 1)


# backward -> how many 16-bit elements one program can hold (the backward holds x and dy)
WHOLE = {False: 32768, True: 8192}
HELD = 40 << 20  # if all units in progress have at most this many bytes, L2 keeps them until they are read again
RUN = 32  # bytes per memory access; a unit with shorter runs is not held in registers, unless the tensor fits in L2


def kernels_for(at: Extent, dtype: torch.dtype, device: torch.device, backward: bool) -> str:
    """Which kernels compute units: "whole" in registers, in "pieces" by one program, or in "shares" by many."""
    runs = at.runs()
    block = triton.next_power_of_2(runs.n_k) * triton.next_power_of_2(runs.n_l) * (COLUMNS if at.tight else 1)
    size = dtype.itemsize * (2 if backward else 1)
    if block <= fits(WHOLE[backward], dtype):
        short = at.channel == "position" and runs.n_k > 1 and runs.n_l * dtype.itemsize < RUN
        if not short or at.units * at.count * size <= HELD // 4:
            return "whole"
    many = at.units * 2 >= cores(device)
    return "pieces" if many and not at.last and at.count * size * cores(device) <= HELD else "shares"


# ---- tiles ----------------------------------------------------------------------------------------------------------

MOST_PARTS = 256  # a unit has at most this many parts, because one program merges all of them at once
COLUMNS = 16  # a program has at least this many adjacent units: 32 bytes of 16-bit elements


def cut(n: int, most: int) -> int:
    """The block size for n: the largest power of two <= `most` that is at least 80 % full, else the fullest one."""
    top = min(triton.next_power_of_2(n), most)
    tried = [b for b in (top, top // 2, top // 4, top // 8) if b]
    used = {b: n / (-(-n // b) * b) for b in tried}
    return next((b for b in tried if used[b] >= 0.8), max(tried, key=lambda b: used[b]))


def threads_for(elements: int, dtype: torch.dtype, most: int = 512) -> int:
    """The number of threads if each has 16 elements of 16 bits, or 8 wider ones."""
    return max(128, min(most, elements // (16 if dtype.itemsize <= 2 else 8)))


@tunable("channel_norm.whole")
def whole_tiles(n_k: int, n_l: int, n_units: int, tight: bool, backward: bool, dtype: torch.dtype) -> Tiles:
    """Whole units in registers, several per program if they are small and many."""
    k, l = triton.next_power_of_2(n_k), triton.next_power_of_2(n_l)
    if tight:
        several = max(COLUMNS, min(64, 2048 // k))
    else:
        several = 1 << (max(1, min(2048 // (k * l), n_units // 512)).bit_length() - 1)
    tile = several * k * l
    if backward:
        threads = 128 if tile <= 1024 else 256 if tile <= fits(4096, dtype) else 512
    else:
        threads = 1024 if tile >= fits(32768, dtype) else min(512, max(128, tile // 32))
    return Tiles(threads, BLOCK_U=several, BLOCK_K=k, BLOCK_L=l)


@tunable("channel_norm.pieces")
def piece_tiles(n_k: int, n_l: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A program computes one unit, some of its runs at a time.

    Large units have large tiles, so that L2 holds all units in progress.
    """
    size = n_k * n_l * dtype.itemsize * (2 if backward else 1)
    most = fits(8192 if size > 96 << 10 else 4096, dtype) // (2 if backward else 1)
    l = cut(n_l, most)
    k = cut(n_k, most // l)
    return Tiles(threads_for(2 * k * l if backward else k * l, dtype), BLOCK_K=k, BLOCK_L=l)


@tunable("channel_norm.shares")
def share_tiles(n_k: int, n_l: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A program computes one part of a unit, some of its runs at a time."""
    most = fits(4096, dtype) // (2 if backward else 1)
    l = cut(n_l, most)
    k = cut(n_k, most // l)
    return Tiles(threads_for(2 * k * l if backward else k * l, dtype), BLOCK_K=k, BLOCK_L=l)


@tunable("channel_norm.column_shares")
def column_share_tiles(n_c: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A program computes one part of some columns, a block of rows at a time."""
    n = cut(max(n_c, 16), 128)
    return Tiles(256, BLOCK_M=max(1, fits(4096, dtype) // (2 if backward else 1) // n), BLOCK_N=n)


@tunable("channel_norm.rows")
def row_tiles(n_l: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A pass over all elements; a row is one channel of one sample."""
    most = fits(2048, dtype)
    n = cut(n_l, most)
    return Tiles(128, BLOCK_M=most // n, BLOCK_N=n)


@tunable("channel_norm.columns")
def column_tiles(n_c: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A pass over all elements, as matrices [rows, channels]."""
    n = cut(max(n_c, 16), 256)
    return Tiles(128, BLOCK_M=max(1, fits(2048, dtype) // n), BLOCK_N=n)


@tunable("channel_norm.totals")
def total_tiles(n_shares: int, dtype: torch.dtype) -> Tiles:
    """A program merges all parts of some units or channels."""
    shares = min(MOST_PARTS, triton.next_power_of_2(n_shares))
    return Tiles(128, BLOCK_I=shares, BLOCK_U=max(8, min(32, 1024 // shares)))


# ---- launches -------------------------------------------------------------------------------------------------------

# What weight norm calls the tensors of these kernels.
OF_WEIGHT_NORM = {"x": "v", "weight": "g", "y": "w", "dy": "dw", "dx": "dv", "dweight": "dg"}


class Launches(NamedTuple):
    """The launches of an op for one layout, dtype and device."""

    op: Spec
    at: Extent
    dtype: torch.dtype
    device: torch.device
    stat: str  # the op's name for its statistic: rstd, var, norm
    backward: bool

    def _launch(
        self,
        kernel: Launcher,
        programs: int,
        tiles: Tiles,
        numbers: Mapping[str, Any],
        names: Mapping[str, str | None] = {},
        even: bool = False,
        **constants: Any,
    ) -> Launch:
        config = tiles.config(even=even, WIDE=wide_of(self.dtype), **constants)
        absent = {name: 0.0 for name in ("eps", "momentum") if name not in self.op.names}
        names = {name: name for name in kernel.bare} | {"rstd": self.stat, "stat": self.stat} | dict(names)
        if self.stat == "norm":
            names = {name: OF_WEIGHT_NORM.get(tensor or "", tensor) for name, tensor in names.items()}
        return Launch(kernel, (programs,), config, {**numbers, **absent}, names)

    def _of_units(self) -> dict[str, Any]:
        """Constexprs of the kernels in which one program computes one unit."""
        pairs = {"PAIRS": not triton.knobs.runtime.interpret} if self.backward else {}
        return {"CHANNEL": self.at.channel, "CENTRED": self.stat != "norm", **pairs}

    def _of_shares(self) -> dict[str, Any]:
        return {"STAT": self.stat} if self.backward else {"CENTRED": self.stat != "norm"}

    def whole(self, **names: str) -> tuple[Launch, int]:
        """The launch with units in registers, and the number of partial sums per channel (group norm backward)."""
        at, runs = self.at, self.at.runs()
        tiles = whole_tiles(
            n_k=runs.n_k, n_l=runs.n_l, n_units=at.units, tight=at.tight, backward=self.backward, dtype=self.dtype
        )
        parts = -(-runs.n_r // tiles["BLOCK_U"])
        if self.backward and at.groups:
            tile = tiles["BLOCK_U"] * tiles["BLOCK_K"] * tiles["BLOCK_L"]
            per_core = 8 if tile <= 2048 else 4 if tile <= 4096 else 2
            parts = max(1, min(parts, cores(self.device) * per_core // runs.n_f))
        kernel, even = chip.bwd if self.backward else chip.fwd, at.tight and at.c % 16 == 0
        constants = {**self._of_units(), "TIGHT": at.tight}
        return self._launch(kernel, runs.n_f * parts, tiles, runs._asdict(), names, even, **constants), parts

    def pieces(self, **names: str) -> tuple[Launch, int]:
        """The same as `whole`, for one program that reads a unit in pieces."""
        at, runs = self.at, self.at.runs()
        tiles = piece_tiles(n_k=runs.n_k, n_l=runs.n_l, backward=self.backward, dtype=self.dtype)
        kernel = chip.bwd_pieces if self.backward else chip.fwd_pieces
        return self._launch(kernel, at.units, tiles, runs._asdict(), names, **self._of_units()), at.n

    def shares(self, **names: None) -> tuple[Launch, tuple[int, int, int]]:
        """The launch that writes partial statistics or partial sums; and the shape of these, [outer, parts, inner]."""
        return self._column_shares(names) if self.at.last else self._row_shares(names)

    def _row_shares(self, names: Mapping[str, None]) -> tuple[Launch, tuple[int, int, int]]:
        at, runs = self.at, self.at.runs()
        if self.backward:  # sum the runs of each channel: in one sample (with groups) or in all samples
            sample = at.c * at.s
            runs = Runs(sample, at.s, sample, runs.n_l, *((1, at.n, at.c) if at.groups else (at.n, 1, at.c)))
        tiles = share_tiles(n_k=runs.n_k, n_l=runs.n_l, backward=self.backward, dtype=self.dtype)
        units = runs.n_r * runs.n_f
        parts = self._parts(units, -(-runs.n_k // tiles["BLOCK_K"]) * -(-runs.n_l // tiles["BLOCK_L"]))
        numbers = {**runs._asdict(), "n_w": at.width, "n_parts": parts}
        kernel = chip.bwd_shares if self.backward else chip.shares
        launch = self._launch(kernel, units * parts, tiles, numbers, names, **self._of_shares())
        return launch, (runs.n_r, parts, runs.n_f)

    def _column_shares(self, names: Mapping[str, None]) -> tuple[Launch, tuple[int, int, int]]:
        at = self.at
        outer, n_m = at.matrices
        tiles = column_share_tiles(n_c=at.c, backward=self.backward, dtype=self.dtype)
        blocks = -(-at.c // tiles["BLOCK_N"])
        parts = self._parts(outer * blocks, -(-n_m // tiles["BLOCK_M"]))
        numbers = {"n_c": at.c, "n_m": n_m, "n_w": at.width, "n_parts": parts}
        kernel = chip.bwd_column_shares if self.backward else chip.column_shares
        launch = self._launch(kernel, outer * blocks * parts, tiles, numbers, names, **self._of_shares())
        return launch, (outer, parts, at.c)

    def _parts(self, units: int, pieces: int) -> int:
        """Parts per unit: enough to fill the chip with programs several times, but each with at least four tiles."""
        return max(1, min(-(-16 * cores(self.device) // units), pieces // 4, MOST_PARTS))

    def merge(self, shape: tuple[int, int, int]) -> Launch:
        """The launch that merges partial statistics."""
        at, (_, parts, inner) = self.at, shape
        width = at.width if at.last else 1
        tiles = total_tiles(n_shares=parts * width, dtype=self.dtype)
        numbers = {"n_c": inner, "n_w": width, "n_parts": parts, "n_units": at.units, "count": at.count}
        programs = -(-at.units // tiles["BLOCK_U"])
        return self._launch(totals.merge, programs, tiles, numbers, CENTRED=self.stat != "norm")

    def total_units(self, parts: int) -> Launch:
        """The launch that adds partial sums to c1 and c2, from which group norm's dx is computed."""
        at = self.at
        tiles = total_tiles(n_shares=parts * at.width, dtype=self.dtype)
        numbers = {"n_c": at.c, "n_w": at.width, "n_parts": parts, "n_units": at.units, "count": at.count}
        return self._launch(totals.total_units, -(-at.units // tiles["BLOCK_U"]), tiles, numbers)

    def total_channels(self, parts: int, **names: None) -> Launch:
        """The launch that adds partial sums to the gradients of each channel."""
        at = self.at
        tiles = total_tiles(n_shares=parts, dtype=self.dtype)
        numbers = {"n_c": at.c, "n_parts": parts, "count": 1 if self.stat == "norm" else at.count}
        return self._launch(totals.total_channels, -(-at.c // tiles["BLOCK_U"]), tiles, numbers, names)

    def scale(self) -> Launch:
        """Scale all elements by known statistics."""
        at = self.at
        if at.last:
            outer, n_m = at.matrices
            tiles = column_tiles(n_c=at.c, backward=self.backward, dtype=self.dtype)
            programs = outer * -(-n_m // tiles["BLOCK_M"]) * -(-at.c // tiles["BLOCK_N"])
            numbers = {"n_c": at.c, "n_m": n_m, "n_w": at.width}
            kernel = elements.bwd_columns if self.backward else elements.columns
            return self._launch(kernel, programs, tiles, numbers, STAT=self.stat)
        tiles = row_tiles(n_l=at.s, backward=self.backward, dtype=self.dtype)
        programs = -(-at.n * at.c // tiles["BLOCK_M"]) * -(-at.s // tiles["BLOCK_N"])
        numbers = {"n_l": at.s, "n_rows": at.n * at.c, "n_c": at.c, "n_w": at.width}
        kernel = elements.bwd_rows if self.backward else elements.rows
        return self._launch(kernel, programs, tiles, numbers, GROUPED=at.groups > 0, STAT=self.stat)


# ---- plans ----------------------------------------------------------------------------------------------------------


def _units_of(op: str, size: int | None, x: Tensor) -> tuple[Extent, tuple[int, ...], OutputSpec, torch.memory_format]:
    """The units of x, the shape of their statistics, the output spec of a result like x, and the memory format of x."""
    if op.startswith("weight_norm"):
        return (
            Extent.of_weight(x, size),
            spec.norm_shape(x, size),
            OutputSpec.of(x.shape, x.dtype),
            torch.contiguous_format,
        )
    form = spec.memory_format(x)
    at = Extent.of(x, size or 0)
    stride = torch.empty(x.shape, device="meta", memory_format=form).stride()
    return at, (at.n, at.groups) if at.groups else (at.c,), OutputSpec(tuple(x.shape), tuple(stride), x.dtype), form


def _in_format(form: torch.memory_format, **tensors: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """For `Plan.before`: functions that copy tensors to this memory format, for the tensors in other formats."""
    copy = lambda t: t.contiguous(memory_format=form)
    return {name: copy for name, t in tensors.items() if not t.is_contiguous(memory_format=form)}


def _forward(
    op: Any,
    size: int | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
) -> Plan:
    at, shape, y, form = _units_of(op.spec.name, size, x)
    stat = OutputSpec.of(shape, opmath_dtype(x.dtype))
    makes: dict[str, Any] = {"w": y, "norm": stat} if op is spec.weight_norm else {"y": y, "mean": stat, "rstd": stat}
    if op is spec.batch_norm:
        for name, running in (("new_mean", running_mean), ("new_var", running_var)):
            makes[name] = stat if running is None else OutputSpec.of(shape, running.dtype)
    if not x.numel():
        return _of_nothing(makes)
    if op is spec.weight_norm:
        before, copied = _in_format(form, v=x), strided(g=weight)
    else:
        copied = strided(weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
        before = _in_format(form, x=x)
    launches = Launches(op.spec, at, x.dtype, x.device, "norm" if op is spec.weight_norm else "rstd", False)
    chosen = kernels_for(at, x.dtype, x.device, False)
    if chosen != "shares":
        launch, _ = launches.whole() if chosen == "whole" else launches.pieces()
        return Plan(makes, [launch], copied, before)
    launch, shares = launches.shares()
    makes |= dict.fromkeys(("counts", "means", "squares"), OutputSpec.of(shares, stat.dtype))
    return Plan(makes, [launch, launches.merge(shares), launches.scale()], copied, before)


def _of_nothing(makes: dict[str, Any]) -> Plan:
    """The plan for empty input: a mean, variance or norm of 0; running statistics keep their values."""
    steps: list[Step] = []
    for name in {"mean", "norm"} & {*makes}:
        makes[name] = Zeros(makes[name])
    if "rstd" in makes:
        steps.append(rstd_of_nothing)
    if "new_mean" in makes:
        steps.append(_keep_running)
    return Plan(makes, steps)


def _keep_running(new_mean: Tensor, new_var: Tensor, running_mean: Tensor | None, running_var: Tensor | None) -> None:
    for new, old in ((new_mean, running_mean), (new_var, running_var)):
        new.zero_() if old is None else new.copy_(old)


def _backward(
    op: Any,
    size: int | None,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    stat_name: str,
    stat: Tensor,
) -> Plan:
    """`stat_name`: the op's name for its statistic."""
    at, _, dx, form = _units_of(op.spec.name, size, x)
    wide = opmath_dtype(x.dtype)
    of_weight = OutputSpec.of((at.c,), wide) if weight is None else OutputSpec.of(weight.shape, weight.dtype)
    if stat_name == "norm":
        makes: dict[str, Any] = {"dv": dx, "dg": of_weight}
        before, copied = _in_format(form, dw=dy, v=x), strided(g=weight, norm=stat)
    else:
        makes = {"dx": dx, "dweight": of_weight, "dbias": of_weight}
        before, copied = _in_format(form, dy=dy, x=x), strided(weight=weight, mean=mean, **{stat_name: stat})
    if stat_name == "var" and mean is not None:
        makes |= {"dmean": OutputSpec.of(mean.shape, mean.dtype), "dvar": OutputSpec.of(stat.shape, stat.dtype)}
    if not x.numel():
        return Plan({name: Zeros(o) if name not in ("dx", "dv") else o for name, o in makes.items()})
    launches = Launches(op.spec, at, x.dtype, x.device, stat_name, True)
    chosen = "shares" if stat_name == "var" else kernels_for(at, x.dtype, x.device, True)
    sums = ("ds",) if stat_name == "norm" else ("ds", "db")
    if chosen != "shares":
        at_once = launches.whole if chosen == "whole" else launches.pieces
        if not at.groups:
            launch, _ = at_once(ds="dweight", db="dbias")
            return Plan(makes, [launch], copied, before)
        launch, parts = at_once()
        makes |= dict.fromkeys(sums, OutputSpec.of((parts, at.c), wide))
        return Plan(makes, [launch, launches.total_channels(parts, weight=None, stat=None)], copied, before)
    # If the statistics are constants, dx is dy times a factor, and the kernel of the partial sums writes it.
    if stat_name == "var":
        launch, shares = launches.shares()
        steps: list[Step] = [launch, launches.total_channels(shares[0] * shares[1])]
    else:
        launch, shares = launches.shares(weight=None, dx=None)
        makes |= dict.fromkeys(("c2",) if stat_name == "norm" else ("c1", "c2"), OutputSpec.of((at.units,), wide))
        if at.groups:
            total = launches.total_channels(shares[0] * shares[1], weight=None, stat=None, c1=None, c2=None)
            steps = [launch, total, launches.total_units(shares[1]), launches.scale()]
        else:
            steps = [launch, launches.total_channels(shares[0] * shares[1], stat=None), launches.scale()]
    makes |= dict.fromkeys(sums, OutputSpec.of(shares, wide))
    return Plan(makes, steps, copied, before)


# ---- the ops --------------------------------------------------------------------------------------------------------


@planned(spec.group_norm)
def group_norm(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> Plan:
    return _forward(spec.group_norm, num_groups, x, weight, bias)


@planned(spec.group_norm_bwd)
def group_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int) -> Plan:
    return _backward(spec.group_norm_bwd, num_groups, dy, x, weight, mean, "rstd", rstd)


@planned(spec.batch_norm)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
) -> Plan:
    return _forward(spec.batch_norm, None, x, weight, bias, running_mean, running_var)


@planned(spec.batch_norm_bwd)
def batch_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> Plan:
    return _backward(spec.batch_norm_bwd, None, dy, x, weight, mean, "rstd", rstd)


@planned(spec.batch_norm_infer)
def batch_norm_infer(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None) -> Plan:
    at, _, y, form = _units_of("batch_norm", None, x)
    if not x.numel():
        return Plan({"y": y})
    launch = Launches(spec.batch_norm_infer.spec, at, x.dtype, x.device, "var", False).scale()
    copied = strided(mean=mean, var=var, weight=weight, bias=bias)
    return Plan({"y": y}, [launch], copied, _in_format(form, x=x))


@planned(spec.batch_norm_infer_bwd)
def batch_norm_infer_bwd(dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None) -> Plan:
    return _backward(spec.batch_norm_infer_bwd, None, dy, x, weight, mean, "var", var)


@planned(spec.weight_norm)
def weight_norm(v: Tensor, g: Tensor, dim: int | None) -> Plan:
    return _forward(spec.weight_norm, dim, v, g)


@planned(spec.weight_norm_bwd)
def weight_norm_bwd(dw: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int | None) -> Plan:
    return _backward(spec.weight_norm_bwd, dim, dw, v, g, None, "norm", norm)

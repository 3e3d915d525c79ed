"""Group norm, batch norm and weight norm: where each of them lies in memory, and which kernels that takes.

Small units (what has one statistic) are held in registers and read once. Longer ones are one program's, which reads
them a second time out of L2; or many programs', whose shares are merged in a fixed order before another kernel scales
all elements. Channels-last tensors go the last way, along columns. No result depends on the order of programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...core.registry import impl
from ...specs import channel_norm as spec
from ..lib.column_sum import share_of
from ..lib.config import Tiles, tunable
from ..lib.plans import check, plans
from ..lib.rows import DEVICES, OutputSpec, cores, fits, wide_of
from . import device as chip

Launch = Callable[..., None]

# ---- where things lie -----------------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """A tensor as samples, channels and places, and how its channels make units."""

    n: int
    c: int
    s: int
    groups: int  # units of a sample; 0: a unit is a channel of all samples
    last: bool  # whether channels are adjacent in memory

    @property
    def width(self) -> int:
        """Channels of a unit."""
        return self.c // self.groups if self.groups else 1

    @property
    def count(self) -> int:
        """Elements of a unit."""
        return self.width * self.s if self.groups else self.n * self.s

    @property
    def units(self) -> int:
        return self.n * self.groups if self.groups else self.c

    @property
    def channel(self) -> str:
        """What has a channel: a unit, each of its runs, or each place in them."""
        return "unit" if not self.groups else "place" if self.last else "run"

    @property
    def tight(self) -> bool:
        """Whether units are adjacent columns."""
        return self.last and not self.groups

    @property
    def matrices(self) -> tuple[int, int]:
        """Channels-last: how many matrices of channels, of how many rows."""
        return (self.n, self.s) if self.groups else (1, self.n * self.s)

    def runs(self) -> tuple[int, ...]:
        """r_stride, f_stride, k_stride, n_l, n_k, n_r, n_f, as the kernels take them."""
        n, c, s, w = self.n, self.c, self.s, self.width
        if self.groups:
            if self.last:
                return s * c, w, c, w, s, n, self.groups
            return c * s, w * s, s, s, w, n, self.groups
        return (1, 0, c, 1, n * s, c, 1) if self.last else (s, 0, c * s, s, n, c, 1)

    @property
    def even(self) -> bool:
        """Whether every length and stride is a multiple of 16."""
        return all(size % 16 == 0 for size in ((self.c,) if self.tight else self.runs()[:4]))

    @classmethod
    def of(cls, x: Tensor, groups: int) -> Extent:
        n, c, s = spec.sizes(x)
        return cls(n, c, s, groups, s == 1 or spec.memory_format(x) is not torch.contiguous_format)

    @classmethod
    def of_weight(cls, v: Tensor, dim: int | None) -> Extent:
        before, length, after = spec.around(v, dim)
        return cls(before, length, after, 0, after == 1)


WHOLE = {False: 32768, True: 8192}  # elements of 16 bits that one program holds: forward; backward, x and dy
HELD = 40 << 20  # bytes that the units under way may fill: what L2 keeps for their second reading
RUN = 32  # bytes of memory that come together: shorter runs are not read one by one, but for a tensor that L2 holds


def way(at: Extent, dtype: torch.dtype, device: torch.device, backward: bool) -> str:
    """How units are computed: "whole" in registers, in "pieces" by one program, or in "shares" by many."""
    _, _, _, n_l, n_k, _, _ = at.runs()
    block = triton.next_power_of_2(n_k) * triton.next_power_of_2(n_l) * (COLUMNS if at.tight else 1)
    size = dtype.itemsize * (2 if backward else 1)
    if block <= fits(WHOLE[backward], dtype):
        short = at.channel == "place" and n_k > 1 and n_l * dtype.itemsize < RUN
        if not short or at.units * at.count * size <= HELD // 4:
            return "whole"
    many = at.units * 2 >= cores(device)
    return "pieces" if many and not at.last and at.count * size * cores(device) <= HELD else "shares"


# ---- tiles ----------------------------------------------------------------------------------------------------------

MOST_PARTS = 256  # of a unit: their shares are put together at once
COLUMNS = 16  # the fewest adjacent units that a program takes: 32 bytes of 16-bit elements


def cut(n: int, most: int) -> int:
    """A power of two to cut n by: the largest up to `most` of which four fifths are used, or else the best."""
    top = min(triton.next_power_of_2(n), most)
    tried = [b for b in (top, top // 2, top // 4, top // 8) if b]
    used = {b: n / (-(-n // b) * b) for b in tried}
    return next((b for b in tried if used[b] >= 0.8), max(tried, key=lambda b: used[b]))


def threads_for(elements: int, dtype: torch.dtype, most: int = 512) -> int:
    """Threads with 16 elements of 16 bits each, or 8 wider ones."""
    return max(128, min(most, elements // (16 if dtype.itemsize <= 2 else 8)))


@tunable("channel_norm.whole")
def whole_tiles(n_k: int, n_l: int, n_units: int, tight: bool, backward: bool, dtype: torch.dtype) -> Tiles:
    """Whole units in registers, several where they are small and many."""
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
    """A unit, a tile of some of its runs at a time; of large units fewer are under way, so that L2 holds them."""
    size = n_k * n_l * dtype.itemsize * (2 if backward else 1)
    most = fits(8192 if size > 96 << 10 else 4096, dtype) // (2 if backward else 1)
    l = cut(n_l, most)
    k = cut(n_k, most // l)
    return Tiles(threads_for(2 * k * l if backward else k * l, dtype), BLOCK_K=k, BLOCK_L=l)


@tunable("channel_norm.shares")
def share_tiles(n_k: int, n_l: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A part of a unit, a tile of some of its runs at a time."""
    most = fits(4096, dtype) // (2 if backward else 1)
    l = cut(n_l, most)
    k = cut(n_k, most // l)
    return Tiles(threads_for(2 * k * l if backward else k * l, dtype), BLOCK_K=k, BLOCK_L=l)


@tunable("channel_norm.column_shares")
def column_share_tiles(n_c: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """A part of some columns."""
    n = cut(max(n_c, 16), 128)
    return Tiles(256, BLOCK_M=max(1, fits(4096, dtype) // (2 if backward else 1) // n), BLOCK_N=n)


@tunable("channel_norm.rows")
def row_tiles(n_l: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """All elements, as rows of one sample and channel."""
    most = fits(2048, dtype)
    n = cut(n_l, most)
    return Tiles(128, BLOCK_M=most // n, BLOCK_N=n)


@tunable("channel_norm.columns")
def column_tiles(n_c: int, backward: bool, dtype: torch.dtype) -> Tiles:
    """All elements, as matrices of channels."""
    n = cut(max(n_c, 16), 256)
    return Tiles(128, BLOCK_M=max(1, fits(2048, dtype) // n), BLOCK_N=n)


@tunable("channel_norm.totals")
def total_tiles(n_shares: int, dtype: torch.dtype) -> Tiles:
    """All shares of some units or channels, put together."""
    shares = min(MOST_PARTS, triton.next_power_of_2(n_shares))
    return Tiles(128, BLOCK_I=shares, BLOCK_U=max(8, min(32, 1024 // shares)))


# ---- launches -------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """What launches depend on, beside the shape."""

    at: Extent
    dtype: torch.dtype
    device: torch.device
    given: str  # what the statistic is: rstd, var, norm
    backward: bool

    @property
    def constants(self) -> dict[str, Any]:
        return {"WIDE": wide_of(self.dtype)}

    def whole(self) -> tuple[Launch, int]:
        """dx with shares where a unit has several channels: how many of them."""
        at = self.at
        numbers = at.runs()
        _, _, _, n_l, n_k, n_r, n_f = numbers
        tiles = whole_tiles(
            n_k=n_k, n_l=n_l, n_units=at.units, tight=at.tight, backward=self.backward, dtype=self.dtype
        )  # fmt: skip
        parts = -(-n_r // tiles["BLOCK_U"])
        if self.backward and at.groups:
            tile = tiles["BLOCK_U"] * tiles["BLOCK_K"] * tiles["BLOCK_L"]
            per_core = 8 if tile <= 2048 else 4 if tile <= 4096 else 2
            parts = max(1, min(parts, cores(self.device) * per_core // n_f))
        more = {"PAIRS": not triton.knobs.runtime.interpret} if self.backward else {}
        config = tiles.config(
            even=at.even, CHANNEL=at.channel, TIGHT=at.tight, CENTRED=self.given != "norm", **more, **self.constants
        )  # fmt: skip
        return (chip.bwd if self.backward else chip.fwd).ready((n_f * parts, 1, 1), numbers, config), parts

    def pieces(self) -> tuple[Launch, int]:
        at = self.at
        numbers = at.runs()
        tiles = piece_tiles(n_k=numbers[4], n_l=numbers[3], backward=self.backward, dtype=self.dtype)
        more = {"PAIRS": not triton.knobs.runtime.interpret} if self.backward else {}
        config = tiles.config(
            even=at.even, CHANNEL=at.channel, CENTRED=self.given != "norm", **more, **self.constants
        )  # fmt: skip
        launcher = chip.bwd_pieces if self.backward else chip.fwd_pieces
        return launcher.ready((at.units, 1, 1), numbers, config), at.n

    def shares(self) -> tuple[Launch, tuple[int, int, int]]:
        """A launch that leaves shares, and their shape: outer, parts, inner."""
        return self._column_shares() if self.at.last else self._row_shares()

    def _row_shares(self) -> tuple[Launch, tuple[int, int, int]]:
        at = self.at
        *strides, n_l, n_k, n_r, n_f = at.runs()
        if self.backward:  # sums of each channel: runs of its own, in each sample or over all
            n_k, n_r, n_f = (1, at.n, at.c) if at.groups else (at.n, 1, at.c)
            strides = [at.c * at.s, at.s, at.c * at.s]
        tiles = share_tiles(n_k=n_k, n_l=n_l, backward=self.backward, dtype=self.dtype)
        units = n_r * n_f
        pieces = -(-n_k // tiles["BLOCK_K"]) * -(-n_l // tiles["BLOCK_L"])
        parts = self._parts(units, pieces)
        numbers = (*strides, n_l, n_k, n_f, *((at.width,) if self.backward else ()), parts)
        more = {"GIVEN": self.given} if self.backward else {"CENTRED": self.given != "norm"}
        config = tiles.config(even=all(k % 16 == 0 for k in (*strides, n_l)), **more, **self.constants)
        launcher = chip.bwd_shares if self.backward else chip.shares
        return launcher.ready((units * parts, 1, 1), numbers, config), (n_r, parts, n_f)

    def _column_shares(self) -> tuple[Launch, tuple[int, int, int]]:
        at = self.at
        outer, n_m = at.matrices
        tiles = column_share_tiles(n_c=at.c, backward=self.backward, dtype=self.dtype)
        blocks = -(-at.c // tiles["BLOCK_N"])
        parts = self._parts(outer * blocks, -(-n_m // tiles["BLOCK_M"]))
        numbers = (at.c, n_m, *((at.width,) if self.backward else ()), parts)
        more = {"GIVEN": self.given} if self.backward else {"CENTRED": self.given != "norm"}
        config = tiles.config(even=at.c % 16 == 0, **more, **self.constants)
        launcher = chip.bwd_column_shares if self.backward else chip.column_shares
        return launcher.ready((outer * blocks * parts, 1, 1), numbers, config), (outer, parts, at.c)

    def _parts(self, units: int, pieces: int) -> int:
        """Enough programs to fill the chip several times over, each with some pieces of work; never one with none."""
        return max(1, min(-(-16 * cores(self.device) // units), pieces // 4, MOST_PARTS))

    def merge(self, shape: tuple[int, int, int]) -> Launch:
        """Shares of statistics -> statistics."""
        at, (_, parts, inner) = self.at, shape
        width = at.width if at.last else 1
        tiles = total_tiles(n_shares=parts * width, dtype=self.dtype)
        config = tiles.config(even=inner % 16 == 0, CENTRED=self.given != "norm", **self.constants)
        numbers = (inner, width, parts, at.units, at.count)
        return chip.merge.ready((-(-at.units // tiles["BLOCK_U"]), 1, 1), numbers, config)

    def total_units(self, shape: tuple[int, int, int]) -> Launch:
        """Shares of sums -> what the dx of groups takes."""
        at = self.at
        tiles = total_tiles(n_shares=shape[1] * at.width, dtype=self.dtype)
        config = tiles.config(even=at.c % 16 == 0, **self.constants)
        numbers = (at.c, at.width, shape[1], at.units, at.count)
        return chip.total_units.ready((-(-at.units // tiles["BLOCK_U"]), 1, 1), numbers, config)

    def total_channels(self, parts: int) -> Launch:
        """Shares of sums -> gradients of each channel."""
        at = self.at
        tiles = total_tiles(n_shares=parts, dtype=self.dtype)
        config = tiles.config(even=at.c % 16 == 0, **self.constants)
        numbers = (at.c, parts, 1 if self.given == "norm" else at.count)
        return chip.total_channels.ready((-(-at.c // tiles["BLOCK_U"]), 1, 1), numbers, config)

    def scale(self) -> Launch:
        """All elements, by statistics that are there."""
        at, constants = self.at, {"GIVEN": self.given, **self.constants}
        if at.last:
            outer, n_m = at.matrices
            tiles = column_tiles(n_c=at.c, backward=self.backward, dtype=self.dtype)
            grid = outer * -(-n_m // tiles["BLOCK_M"]) * -(-at.c // tiles["BLOCK_N"])
            launcher = chip.bwd_columns if self.backward else chip.columns
            return launcher.ready((grid, 1, 1), (at.c, n_m, at.width), tiles.config(even=at.c % 16 == 0, **constants))
        tiles = row_tiles(n_l=at.s, backward=self.backward, dtype=self.dtype)
        grid = -(-at.n * at.c // tiles["BLOCK_M"]) * -(-at.s // tiles["BLOCK_N"])
        launcher = chip.bwd_rows if self.backward else chip.rows
        config = tiles.config(even=at.s % 16 == 0, GROUPED=at.groups > 0, **constants)
        return launcher.ready((grid, 1, 1), (at.s, at.n * at.c, at.c, at.width), config)


def _look(op: str, size: int | None, x: Tensor) -> tuple[Extent, tuple[int, ...], OutputSpec, torch.memory_format]:
    """How an op cuts x into units, the shape of its statistics, and how results like x lie."""
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


def _loose(form: torch.memory_format, full: tuple[Tensor, ...], *others: Tensor | None) -> bool:
    """Whether some tensor must be packed first."""
    alike = all(t.is_contiguous(memory_format=form) for t in full)
    return not alike or not all(t is None or t.is_contiguous() for t in others)


def _packed(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


# ---- forward --------------------------------------------------------------------------------------------------------


class Forward(NamedTuple):
    """What a forward will do for tensors that look so: worked out once."""

    y: OutputSpec
    stat: OutputSpec
    new: tuple[OutputSpec, OutputSpec] | None
    form: torch.memory_format | None  # where some tensor must be packed first
    one: Launch | None = None  # all of it; or else, in turn:
    share: OutputSpec | None = None
    shares: Launch | None = None
    merge: Launch | None = None
    scale: Launch | None = None


@plans
def _plan_forward(
    op: str,
    size: int | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
) -> Forward:
    running = (running_mean, running_var)
    if op == "weight_norm":
        check(op, v=x, g=weight, dim=size)
    else:
        check(
            op, x=x, num_groups=size, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
        )  # fmt: skip
    at, shape, y, form = _look(op, size, x)
    stat = OutputSpec.of(shape, share_of(x.dtype))
    new = tuple(stat if t is None else OutputSpec.of(shape, t.dtype) for t in running) if op == "batch_norm" else None
    facts = (y, stat, new, form if _loose(form, (x,), weight, bias, *running) else None)
    if not x.numel():
        return Forward(*facts)
    job = Job(at, x.dtype, x.device, "norm" if op == "weight_norm" else "rstd", False)
    chosen = way(at, x.dtype, x.device, False)
    if chosen != "shares":
        return Forward(*facts, (job.whole if chosen == "whole" else job.pieces)()[0])
    launch, shares = job.shares()
    return Forward(*facts, None, OutputSpec.of(shares, stat.dtype), launch, job.merge(shares), job.scale())


def _forward(
    op: str,
    size: int | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    plan = _plan_forward(op, size, x, weight, bias, running_mean, running_var)
    y, rstd = plan.y.empty(x), plan.stat.empty(x)
    mean = None if op == "weight_norm" else plan.stat.empty(x)
    new_mean, new_var = (None, None) if plan.new is None else (plan.new[0].empty(x), plan.new[1].empty(x))
    if plan.form is not None:
        x = x.contiguous(memory_format=plan.form)
        weight, bias = _packed(weight), _packed(bias)
        running_mean, running_var = _packed(running_mean), _packed(running_var)
    moving = (running_mean, running_var, new_mean, new_var)
    if plan.one is not None:
        plan.one(x, weight, bias, y, mean, rstd, *moving, float(eps), float(momentum))
    elif plan.share is not None and plan.shares and plan.merge and plan.scale:
        n, means, squares = plan.share.empty(x), plan.share.empty(x), plan.share.empty(x)
        plan.shares(x, n, means, squares)
        plan.merge(n, means, squares, mean, rstd, *moving, float(eps), float(momentum))
        plan.scale(x, mean, rstd, weight, bias, y, float(eps))
    else:
        _of_nothing(mean, rstd, *moving, eps)
    return y, mean, rstd, new_mean, new_var


def _of_nothing(
    mean: Tensor | None,
    rstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    new_mean: Tensor | None,
    new_var: Tensor | None,
    eps: float,
) -> None:
    """The statistics of no elements: a mean and a variance of 0, a norm of 0; running ones stay as they are."""
    if mean is None:
        rstd.zero_()
        return
    mean.zero_()
    rstd.fill_(eps**-0.5)
    for new, old in ((new_mean, running_mean), (new_var, running_var)):
        if new is not None:
            new.zero_() if old is None else new.copy_(old)


@plans
def _plan_infer(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None) -> Forward:
    check("batch_norm_infer", x=x, mean=mean, var=var, weight=weight, bias=bias)
    at, _, y, form = _look("batch_norm", None, x)
    packing = form if _loose(form, (x,), mean, var, weight, bias) else None
    job = Job(at, x.dtype, x.device, "var", False)
    return Forward(y, y, None, packing, scale=job.scale() if x.numel() else None)


# ---- backward -------------------------------------------------------------------------------------------------------


class Backward(NamedTuple):
    """What a backward will do for tensors that look so."""

    dx: OutputSpec
    channels: tuple[OutputSpec, ...]  # dweight, dbias; of statistics that were given, their gradients too
    form: torch.memory_format | None
    one: Launch | None = None  # dx, with shares of the rest where there are some; or else, in turn:
    share: OutputSpec | None = None
    shares: Launch | None = None
    total: Launch | None = None
    unit: OutputSpec | None = None
    units: Launch | None = None  # where units are not channels
    scale: Launch | None = None


@plans
def _plan_backward(
    op: str, size: int | None, dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, stat: Tensor
) -> Backward:
    if op == "weight_norm_bwd":
        check(op, dw=dy, v=x, g=weight, norm=stat, dim=size)
    else:
        named = {"var" if op == "batch_norm_infer_bwd" else "rstd": stat}
        check(op, dy=dy, x=x, num_groups=size, weight=weight, mean=mean, **named)
    at, _, dx, form = _look(op, size, x)
    wide = share_of(x.dtype)
    of_weight = OutputSpec.of((at.c,), wide) if weight is None else OutputSpec.of(weight.shape, weight.dtype)
    given = {"weight_norm_bwd": "norm", "batch_norm_infer_bwd": "var"}.get(op, "rstd")
    channels = (of_weight,) if given == "norm" else (of_weight, of_weight)
    if given == "var" and mean is not None:
        channels = (*channels, OutputSpec.of(mean.shape, mean.dtype), OutputSpec.of(stat.shape, stat.dtype))
    facts = (dx, channels, form if _loose(form, (dy, x), weight, mean, stat) else None)
    if not x.numel():
        return Backward(*facts)
    job = Job(at, x.dtype, x.device, given, True)
    chosen = "shares" if given == "var" else way(at, x.dtype, x.device, True)
    if chosen != "shares":
        launch, parts = (job.whole if chosen == "whole" else job.pieces)()
        if not at.groups:
            return Backward(*facts, launch)
        return Backward(*facts, launch, OutputSpec.of((parts, at.c), wide), None, job.total_channels(parts))
    launch, shares = job.shares()
    output, total = OutputSpec.of(shares, wide), job.total_channels(shares[0] * shares[1])
    if given == "var":
        return Backward(*facts, None, output, launch, total)
    units = job.total_units(shares) if at.groups else None
    return Backward(*facts, None, output, launch, total, OutputSpec.of((at.units,), wide), units, job.scale())


def _backward(
    op: str,
    size: int | None,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    stat: Tensor,
    eps: float = 0.0,
) -> tuple[Any, ...]:
    plan = _plan_backward(op, size, dy, x, weight, mean, stat)
    like = x
    dx = plan.dx.empty(like)
    channels = [output.empty(like) for output in plan.channels]
    dweight, dbias, dmean, dvar = (*channels, None, None, None)[:4]
    if plan.one is None and plan.shares is None:
        for gradient in channels:
            gradient.zero_()
        return dx, *channels
    if plan.form is not None:
        dy, x = dy.contiguous(memory_format=plan.form), x.contiguous(memory_format=plan.form)
        weight, mean, stat = _packed(weight), _packed(mean), stat.contiguous()
    if plan.share is None:
        plan.one(dy, x, weight, mean, stat, dx, dweight, dbias)
        return dx, *channels
    ds, db = plan.share.empty(like), None if dbias is None else plan.share.empty(like)
    if plan.one is not None:
        plan.one(dy, x, weight, mean, stat, dx, ds, db)
        plan.total(ds, db, None, None, dweight, dbias, None, None, None, None, 0.0)
    elif plan.scale is None:  # the statistics were given: dx is but dy scaled, and comes with the shares
        plan.shares(dy, x, mean, stat, weight, dx, ds, db, float(eps))
        plan.total(ds, db, weight, stat, dweight, dbias, None, None, dmean, dvar, float(eps))
    else:
        plan.shares(dy, x, mean, stat, None, None, ds, db, 0.0)
        c1, c2 = None if db is None else plan.unit.empty(like), plan.unit.empty(like)
        if plan.units is not None:
            plan.total(ds, db, None, None, dweight, dbias, None, None, None, None, 0.0)
            plan.units(ds, db, weight, c1, c2)
        else:
            plan.total(ds, db, weight, None, dweight, dbias, c1, c2, None, None, 0.0)
        plan.scale(dy, x, mean, stat, weight, c1, c2, dx)
    return dx, *channels


# ---- the ops --------------------------------------------------------------------------------------------------------


@impl(spec.group_norm, devices=DEVICES)
def group_norm(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    return _forward("group_norm", num_groups, x, weight, bias, None, None, 0.0, eps)[:3]


@impl(spec.group_norm_bwd, devices=DEVICES)
def group_norm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int
) -> tuple[Any, ...]:
    return _backward("group_norm_bwd", num_groups, dy, x, weight, mean, rstd)


@impl(spec.batch_norm, devices=DEVICES)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    return _forward("batch_norm", None, x, weight, bias, running_mean, running_var, momentum, eps)


@impl(spec.batch_norm_bwd, devices=DEVICES)
def batch_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> tuple[Any, ...]:
    return _backward("batch_norm_bwd", None, dy, x, weight, mean, rstd)


@impl(spec.batch_norm_infer, devices=DEVICES)
def batch_norm_infer(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    plan = _plan_infer(x, mean, var, weight, bias)
    y = plan.y.empty(x)
    if plan.scale is None:
        return y
    if plan.form is not None:
        x, mean, var = x.contiguous(memory_format=plan.form), mean.contiguous(), var.contiguous()
        weight, bias = _packed(weight), _packed(bias)
    plan.scale(x, mean, var, weight, bias, y, float(eps))
    return y


@impl(spec.batch_norm_infer_bwd, devices=DEVICES)
def batch_norm_infer_bwd(
    dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, eps: float
) -> tuple[Any, ...]:
    dx, dweight, dbias, dmean, dvar = _backward("batch_norm_infer_bwd", None, dy, x, weight, mean, var, eps)
    return dx, dmean, dvar, dweight, dbias


@impl(spec.weight_norm, devices=DEVICES)
def weight_norm(v: Tensor, g: Tensor, dim: int | None) -> tuple[Any, ...]:
    w, _, norm, _, _ = _forward("weight_norm", dim, v, g, None, None, None, 0.0, 0.0)
    return w, norm


@impl(spec.weight_norm_bwd, devices=DEVICES)
def weight_norm_bwd(dw: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int | None) -> tuple[Any, ...]:
    return _backward("weight_norm_bwd", dim, dw, v, g, None, norm)

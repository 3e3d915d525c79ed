"""Reductions: each op is an entry of `OPS`. Four kernels serve all ops, and a fifth serves their gradients.

A tensor is viewed as a matrix of kept and reduced dimensions; elements are adjacent in memory along the last one. If
the last one is reduced, `_rows` holds whole rows in registers, and `_pieces` loops over a long row, or over a plane:
distant rows that are reduced together. If it is kept, `_columns` loops down columns. If there are too few results to
fill the chip, programs write partial results, which `_finish` combines in a fixed order, so that results are
deterministic. x is read once.

Gradients that need one pass over x have a kernel. Gradients that only broadcast a number, or compare for equality, are
left to torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.errors import NotSupported
from ...core.tensors import opmath_dtype
from ...specs import reduce as spec
from ..lib.config import Tiles, tunable
from ..lib.harness import Launch, Plan, planned, strided
from ..lib.launch import Launcher
from ..lib.rows import TRITON_DTYPES, OutputSpec, cores, fits, wide_of
from . import device
from .layout import SMALL, Level, View, unit, view

rows = Launcher(device._rows, sizes="")
pieces = Launcher(device._pieces, sizes="")
columns = Launcher(device._columns, sizes="")
finish = Launcher(device._finish, sizes="")
spread = Launcher(device._spread, sizes="")


# ---- the ops --------------------------------------------------------------------------------------------------------


class ReductionForm(NamedTuple):
    """How a lane's pair (a, b) is made from an element (`lift`) and updated (`step`), and how lanes combine (`settle`).

    `start` names the value of a lane without elements: see `limit`.
    """

    lift: Any
    step: Any
    settle: Any
    start: str
    side: str = ""  # what b is: "" (unused), "index" or "value"
    shift: bool = False  # whether elements are taken relative to a first element or a mean


FORMS = {
    "add": ReductionForm(device.lift_value, device.step_add, device.settle_add, "zero"),
    "mul": ReductionForm(device.lift_value, device.step_mul, device.settle_mul, "one"),
    "most": ReductionForm(device.lift_value, device.step_most, device.settle_most, "lowest"),
    "least": ReductionForm(device.lift_value, device.step_least, device.settle_least, "highest"),
    "first_most": ReductionForm(device.lift_index, device.step_first_most, device.settle_first_most, "lowest", "index"),
    "first_least": ReductionForm(
        device.lift_index, device.step_first_least, device.settle_first_least, "highest", "index"
    ),
    "exps": ReductionForm(device.lift_exps, device.step_exps, device.settle_exps, "lowest", "value"),
    "moments": ReductionForm(device.lift_moments, device.step_moments, device.settle_moments, "zero", "value", True),
}


class Op(NamedTuple):
    """A reduction: how elements are mapped, how they are combined (`form`), and what is returned (`give`)."""

    form: str
    give: Any
    map: Any = device.same
    outs: int = 1


NORMS = {
    0: Op("add", device.give_value, device.truth),
    1: Op("add", device.give_value, device.size),
    2: Op("add", device.give_root, device.square),
    math.inf: Op("most", device.give_value, device.size),
    -math.inf: Op("least", device.give_value, device.size),
}
POWER = Op("add", device.give_power, device.power)
OPS = {
    "sum": Op("add", device.give_value),
    "nansum": Op("add", device.give_value, device.no_nan),
    "mean": Op("add", device.give_mean),
    "prod": Op("mul", device.give_value),
    "amax": Op("most", device.give_value),
    "amin": Op("least", device.give_value),
    "any": Op("most", device.give_truth, device.truth),
    "all": Op("least", device.give_truth, device.truth),
    "count_nonzero": Op("add", device.give_value, device.truth),
    "max_dim": Op("first_most", device.give_both, outs=2),
    "min_dim": Op("first_least", device.give_both, outs=2),
    "argmax": Op("first_most", device.give_index),
    "argmin": Op("first_least", device.give_index),
    "var": Op("moments", device.give_var),
    "std": Op("moments", device.give_std),
    "var_mean": Op("moments", device.give_var, outs=2),
    "std_mean": Op("moments", device.give_std, outs=2),
    "logsumexp": Op("exps", device.give_log),
}

TL = {**TRITON_DTYPES, torch.bool: tl.int8}
OF_TL = {v: k for k, v in TL.items() if k is not torch.bool}


def limit(name: str, dtype: torch.dtype) -> float | int:
    """The neutral element that `name` stands for."""
    if name in ("zero", "one"):
        return ("zero", "one").index(name)
    if dtype.is_floating_point:
        return -math.inf if name == "lowest" else math.inf
    if dtype is torch.bool:
        return int(name == "highest")
    return torch.iinfo(dtype).min if name == "lowest" else torch.iinfo(dtype).max


class ReductionDtypes(NamedTuple):
    """The dtypes of an element after the cast (cast) and the map (work), of a lane, and of the combined lanes (sum)."""

    cast: tl.dtype
    work: tl.dtype
    lane: tl.dtype
    sum: tl.dtype


def types(op: Op, call: spec.ReductionCall, x: Tensor) -> ReductionDtypes:
    """Floats are accumulated in a wide dtype, integers in 64 bits, or in 32 bits if a lane cannot overflow."""
    if op.map is device.truth and call.gives in (torch.bool, torch.int64):
        work = wide_of(x.dtype) if x.is_floating_point() else TL[x.dtype]
        lane = tl.int32 if call.n < SMALL or call.gives is torch.bool else tl.int64
        return ReductionDtypes(work, work, lane, tl.int64 if call.gives is torch.int64 else tl.int32)
    cast = call.cast if call.gives is call.cast else x.dtype  # ops that return an index compare in the dtype of x
    if cast.is_floating_point:
        wide = wide_of(cast)
        return ReductionDtypes(TL[cast], wide, wide, wide)
    if op.form in ("add", "mul"):
        small = op.form == "add" and x.dtype.itemsize == 1 and call.n < 2**23
        lane = tl.int32 if small else tl.int64
        return ReductionDtypes(lane if small else TL[cast], lane, lane, tl.int64)
    lane = tl.int64 if cast is torch.int64 else tl.int32
    return ReductionDtypes(lane, lane, lane, lane)


# ---- tiles ----------------------------------------------------------------------------------------------------------

FEW = 256  # fewer programs than this do not fill a chip


@tunable("reduce.rows", free="BLOCK_M BLOCK_N")
def row_tiles(n: int, rows: int, dtype: torch.dtype, pair: bool, moments: bool) -> Tiles:
    """Programs hold whole rows in registers; but if BLOCK_N < n, a program reads one row in pieces."""
    block = triton.next_power_of_2(n)
    held = fits(16384 if pair or moments else 32768, dtype)
    if rows < FEW:
        block = min(block, fits(8192 if pair or moments else 32768, dtype))
        many = max(1, min(triton.next_power_of_2(rows), 512 // block))
        return Tiles(min(1024, max(128, many * block // 8)), BLOCK_M=many, BLOCK_N=block)
    if block > held:
        return Tiles(256 if pair or moments else 512, BLOCK_M=1, BLOCK_N=fits(4096, dtype))
    many = 1 if block > 4096 else 2 if block >= 2048 else max(4, min(4096, triton.next_power_of_2(rows) * 8) // block)
    return Tiles(min(256 if moments else 512, max(128, many * block // 32)), BLOCK_M=many, BLOCK_N=block)


@tunable("reduce.shares", free="BLOCK_N")
def share_tiles(n: int, dtype: torch.dtype, pair: bool) -> Tiles:
    """Several programs share a row, in pieces."""
    return Tiles(256 if pair else 512, BLOCK_N=fits(4096 if pair else 8192, dtype))


@tunable("reduce.planes", free="BLOCK_M BLOCK_N")
def plane_tiles(rows: int, n: int, dtype: torch.dtype) -> Tiles:
    """Tiles of planes: distant rows that are reduced to one result."""
    block = min(triton.next_power_of_2(n), fits(4096, dtype))
    many = min(triton.next_power_of_2(rows), fits(4096, dtype) // block)
    return Tiles(min(256, max(32, many * block // 16)), BLOCK_M=many, BLOCK_N=block)


@tunable("reduce.columns", free="BLOCK_M BLOCK_N")
def column_tiles(rows: int, n: int, outer: int, dtype: torch.dtype, pair: bool, moments: bool) -> Tiles:
    """A tile is 256 bytes wide.

    It has more rows for moments, or if there are few programs: then more loads are in flight.
    """
    line = 256 // max(dtype.itemsize, 2)
    down = triton.next_power_of_2(rows)
    few = outer * -(-n // line) < FEW and rows > 64
    block = min(triton.next_power_of_2(n), max(line, line * 16 // down))
    deep = few and not pair and outer * rows * n >= 2 * FEW * 16384  # otherwise there would be too few tiles
    held = min(fits(16384, dtype), 8192) if deep else fits(8192 if moments else 4096, dtype)
    many = max(1, min(down, held // block))
    return Tiles(min(512, max(64, many * block // (32 if deep or moments else 16))), BLOCK_M=many, BLOCK_N=block)


@tunable("reduce.finish", free="BLOCK_N")
def finish_tiles(parts: int, n: int) -> Tiles:
    """A program combines all parts of some results. One compiled kernel serves up to 16 parts."""
    down = max(16, triton.next_power_of_2(parts))
    block = max(1, min(triton.next_power_of_2(n), 4096 // down, 64))
    return Tiles(min(512, max(32, down * block // 8)), BLOCK_M=down, BLOCK_N=block)


MOST_PARTS = 1024  # at most this many parts, because one program combines all of them at once


def split(blocks: int, programs: int, least: int, per_core: int, chip: torch.device) -> int:
    """The number of parts into which to split `blocks`, so that parts * `programs` fill the chip.

    1 if there is enough work already, or too little for a second kernel to pay off. A core runs `per_core` programs at
    once. The number is chosen for few waves, with the last wave nearly full.
    """
    full = cores(chip)
    if programs >= 2 * full or blocks <= least:
        return 1
    at_once, best, busy = per_core * full, 1, 0.0
    for rounds in range(1, 5):
        parts = min(max(rounds * at_once // programs, 1), max(blocks // 2, 1), MOST_PARTS)
        parts = -(-blocks // -(-blocks // parts))  # no part is empty
        share = parts * programs / (at_once * -(-parts * programs // at_once))
        if share > busy:
            best, busy = parts, share
        if busy > 0.9:
            break
    return best


# ---- plans ----------------------------------------------------------------------------------------------------------

Dim = int | list[int] | None  # may also be a tuple


class Pass(NamedTuple):
    """The launch that reads x: its kernel, grid and number arguments. `parts`: how many programs share a result."""

    kernel: Launcher
    tiles: Tiles
    programs: int
    numbers: dict[str, int]
    layout: dict[str, Any]
    parts: int = 1
    part: int = 0  # elements per part


class Task(NamedTuple):
    """A reduction of tensors of one dtype, shape and stride: all values that a launch depends on."""

    op: Op
    form: ReductionForm
    x: Tensor
    view: View
    call: spec.ReductionCall
    types: ReductionDtypes
    extra: float

    def config(self, kernel: Launcher, tiles: Tiles, **more: Any) -> Any:
        """The config of a kernel: tiles, constants of the layout (`more`), and those of the op that the kernel has."""
        form, types = self.form, self.types
        known = dict(
            MAP=self.op.map,
            LIFT=form.lift,
            STEP=form.step,
            SETTLE=form.settle,
            FINISH=self.op.give,
            SHIFT=form.shift,
            PLACE=form.side == "index",
            FILL=self.fill(),
            START=limit(form.start, OF_TL[types.sum if kernel is finish else types.lane]),
            SIDE=tl.int32 if form.side == "index" else types.lane,
            CAST=types.cast,
            WORK=types.work,
            LANE=types.lane,
            SUM=types.sum,
        )
        constants = {n: known[n] for n in kernel.constants if n in known}
        return tiles.config(**constants, **more)

    def fill(self) -> float | int:
        """The value of masked elements: after the map, it does not change the result."""
        start = self.form.start
        if self.op is POWER:
            return 0.0 if self.extra > 0 else math.inf
        if self.op.map is not device.same and start == "lowest":
            return 0
        return limit(start, self.x.dtype)

    def plan(self, makes: Mapping[str, OutputSpec]) -> Plan:
        """The plan: one launch that writes the results, or one that writes parts and one that combines them."""
        over = self.columns() if self.view.columns else self.rows()
        order = self.view.copied
        before = {} if order is None else {"x": lambda x: x.permute(order).contiguous()}
        tail = {"count": self.call.n, "extra": self.extra}
        shares = {"SHARES": over.parts > 1} if "SHARES" in over.kernel.constants else {}
        config = self.config(over.kernel, over.tiles, **over.layout, **shares)
        results: dict[str, str | None] = {"z": None, **dict(zip("yz", makes))}
        launch = Launch(over.kernel, (over.programs, over.parts), config, {**over.numbers, **tail}, results)
        if over.parts == 1:
            return Plan(makes, [launch], before=before)
        n = self.view.outputs
        tiles = finish_tiles(parts=over.parts, n=n)
        numbers = {"parts": over.parts, "part": over.part, "n": n, **tail}
        last = Launch(finish, (-(-n // tiles["BLOCK_N"]),), self.config(finish, tiles), numbers, results)
        share = OutputSpec.of((over.parts, n), OF_TL[self.types.sum])
        held = {"share_a": share}
        if self.form.side:
            held["share_b"] = share._replace(dtype=torch.int64) if self.form.side == "index" else share
        side = "share_b" if self.form.side else None
        steps = [launch.named(y="share_a", z=side), last.named(a="share_a", b=side)]
        return Plan({**makes, **held}, steps, before=before)

    def rows(self) -> Pass:
        """The launch if the dimension with adjacent elements is reduced."""
        (k_0, k_1), (r_0, r_1) = self.view.kept, self.view.reduced
        dtype, n, out = self.x.dtype, r_1.size, self.view.outputs
        if r_0.size > 1:
            return self.pieces(plane_tiles(rows=r_0.size, n=n, dtype=dtype), planes=True)
        pair = self.form.side != ""
        # For moments, a lane has one value if rows are in registers, and two if they are read in pieces.
        moments = self.form.shift
        tiles = row_tiles(n=n, rows=out, dtype=dtype, pair=pair and not moments, moments=moments)
        if tiles["BLOCK_N"] < n:
            return self.pieces(tiles)
        per = min(unit(n, k_0.stride, k_1.stride, itemsize=dtype.itemsize) if r_1.stride == 1 else 1, tiles["BLOCK_N"])
        numbers = dict(rows=out, k_1=k_1.size, s_0=k_0.stride // per, s_1=k_1.stride // per, s_n=r_1.stride, n=n // per)
        layout = dict(UNIT=per, TWO=k_0.size > 1, DENSE=r_1.stride == 1)
        return Pass(rows, tiles, -(-out // tiles["BLOCK_M"]), numbers, layout)

    def _per_access(self, tiles: Tiles, n: int, inner: Level, *others: Level) -> int:
        """The elements of one memory access along the inner dimension, which has n elements."""
        if inner.stride != 1:
            return 1
        return min(unit(n, *(o.stride for o in others), itemsize=self.x.dtype.itemsize), tiles["BLOCK_N"])

    def pieces(self, tiles: Tiles, planes: bool = False) -> Pass:
        """One row (or plane) per program, or several programs per row."""
        (k_0, k_1), (r_0, r_1) = self.view.kept, self.view.reduced
        n, out, chip = r_1.size, self.view.outputs, self.x.device
        blocks = lambda: -(-r_0.size // tiles["BLOCK_M"]) if planes else -(-n // tiles["BLOCK_N"])
        parts = split(blocks(), out, 4, 3, chip)
        if parts > 1 and not planes:
            tiles = share_tiles(n=n, dtype=self.x.dtype, pair=self.form.side != "")
            parts = split(blocks(), out, 1, 3, chip)
        if not planes:  # the BLOCK_M of `tiles` is meant for whole rows
            tiles = Tiles(tiles.threads, tiles.stages, BLOCK_M=1, BLOCK_N=tiles["BLOCK_N"])
        chunk = -(-blocks() // parts)
        per = self._per_access(tiles, n, r_1, k_0, k_1, r_0)
        numbers = dict(
            k_1=k_1.size,
            s_0=k_0.stride // per,
            s_1=k_1.stride // per,
            s_m=r_0.stride // per,
            s_n=r_1.stride,
            n_m=r_0.size,
            n=n // per,
            chunk=chunk,
        )
        full = n <= tiles["BLOCK_N"] or n % tiles["BLOCK_N"] == 0
        layout = dict(
            UNIT=per, TWO=k_0.size > 1, DENSE=r_1.stride == 1, PLANES=planes, FULL=full, AHEAD=self.form.side != ""
        )
        part = chunk * (tiles["BLOCK_M"] * n if planes else tiles["BLOCK_N"])
        return Pass(pieces, tiles, out, numbers, layout, parts, part)

    def columns(self) -> Pass:
        """The launch if the dimension with adjacent elements is kept."""
        (k_0, k_1), (r_0, r_1) = self.view.kept, self.view.reduced
        n, down, outer = k_1.size, self.view.elements, k_0.size
        pair, moments = self.form.side != "", self.form.shift
        tiles = column_tiles(rows=down, n=n, outer=outer, dtype=self.x.dtype, pair=pair, moments=moments)
        programs = outer * -(-n // tiles["BLOCK_N"])
        blocks = -(-down // tiles["BLOCK_M"])
        parts = split(blocks, programs, 8, min(3, 1024 // tiles.threads), self.x.device)
        chunk = -(-blocks // parts)
        per = self._per_access(tiles, n, k_1, k_0, r_0, r_1)
        numbers = dict(
            r_1=r_1.size,
            s_k=k_0.stride // per,
            s_0=r_0.stride // per,
            s_1=r_1.stride // per,
            s_n=k_1.stride,
            rows=down,
            n=n // per,
            chunk=chunk,
            outer=outer,
        )
        # AHEAD makes a sum of 16-bit floats take 76 us instead of 93 (H200). Moments have larger tiles instead. Not
        # measured in float32.
        ahead = (pair or self.x.dtype.itemsize <= 2) and not moments
        layout = dict(UNIT=per, TWO=r_0.size > 1, DENSE=k_1.stride == 1, LOOP=chunk > 1, AHEAD=ahead)
        return Pass(columns, tiles, programs, numbers, layout, parts, chunk * tiles["BLOCK_M"])


def _reduced(
    name: str,
    x: Tensor,
    dim: Dim,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    extra: float = 0,
) -> Plan:
    asked = spec.reduction_call(name, x, dim, dtype)
    op = NORMS.get(extra, POWER) if name == "vector_norm" else OPS[name]
    shape = [1 if d in asked.dims else n for d, n in enumerate(x.shape) if keepdim or d not in asked.dims]
    gives = (asked.gives, torch.int64 if op.give is device.give_both else asked.gives)[: op.outs]
    makes = {out: OutputSpec.of(shape, g) for out, g in zip(getattr(spec, name).spec.out, gives, strict=True)}
    if not math.prod(shape) or not asked.n:
        value = spec.RULES[name].empty or 0  # the result of reducing no elements
        return Plan(makes, after=dict.fromkeys(makes, lambda y: y.fill_(value)))
    decline(name, asked, extra, x, op)
    form = FORMS[op.form]
    seen = view(x.shape, x.stride(), asked.dims if x.dim() else (), form.side == "index")
    number = whole(extra) if op is POWER or form.shift else 0
    return Task(op, form, x, seen, asked, types(op, asked, x), number).plan(makes)


def decline(name: str, asked: spec.ReductionCall, extra: float, x: Tensor, op: Op) -> None:
    if x.dim() > 64:
        raise NotSupported(f"torch reduces tensors of 64 dimensions at most; got {x.dim()}")
    if name == "logsumexp" and not x.is_floating_point():
        raise NotSupported("the kernel takes floats, not integers")
    if asked.cast is torch.bool and op.form in ("add", "mul") and op.map in (device.same, device.no_nan):
        raise NotSupported("the kernel adds up no bools as bools")
    if asked.cast is torch.float64 and not short(extra):
        raise NotSupported(f"the kernel takes numbers of 32 bits; got {extra}")


# ---- gradients ------------------------------------------------------------------------------------------------------


@tunable("reduce.spread", free="BLOCK_M BLOCK_N")
def spread_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Each thread has 16 elements: of one row if the row is long enough, else of several rows."""
    block = min(triton.next_power_of_2(n), 2048)
    return Tiles(128, BLOCK_M=max(1, fits(2048, dtype) // block), BLOCK_N=block)


SLOPES = {
    "logsumexp_bwd": device.slope_log,
    "var_bwd": device.slope_var,
    "var_mean_bwd": device.slope_var,
    "std_bwd": device.slope_std,
    "std_mean_bwd": device.slope_std,
}
CENTRED = (device.slope_var, device.slope_std)
NORM_SLOPES = {1: device.slope_size, 2: device.slope_root}


def _gradient(name: str, x: Tensor, dim: Dim, extra: float, names: Mapping[str, str], *per: Tensor) -> Plan:
    """dx of an op that needs one pass over x.

    `names`: the op's names for the kernel's g, h and y; `per`: these three tensors. If the kernel cannot read x in
    place, x is copied first, with the reduced dimensions last.
    """
    dims, per_name = spec.dims_of(x, dim), dict(zip(names.values(), per, strict=True))
    decline_back(name, extra, x, per)
    if not x.numel():
        return Plan({"dx": OutputSpec.of(x.shape, x.dtype)})
    seen = view(x.shape, x.stride(), dims if x.dim() else (), False)
    order = None
    if not x.is_contiguous() or seen.copied or seen.reduced[0].size > 1 or (not seen.columns and seen.kept[0].size > 1):
        order = (*(d for d in range(x.dim()) if d not in dims), *dims)
    columns = seen.columns and order is None
    n = seen.kept[1].size if columns else seen.elements
    tiles = spread_tiles(n=n, dtype=x.dtype)
    width = min(unit(n, itemsize=x.dtype.itemsize), tiles["BLOCK_N"])
    slope = NORM_SLOPES.get(extra, device.slope_power) if name == "vector_norm_bwd" else SLOPES[name]
    config = tiles.config(SLOPE=slope, WIDE=wide_of(x.dtype), UNIT=width, COLUMNS=columns)
    rows = x.numel() // n
    grid = (-(-rows // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"]),)
    numbers = dict(rows=rows, reduced=seen.elements, n=n // width, count=seen.elements, extra=whole(extra))
    launch = Launch(spread, grid, config, numbers, {"h": None, "y": None, **names})
    before: dict[str, Callable[..., Tensor]] = {}
    if slope in CENTRED:
        wide = opmath_dtype(x.dtype)
        before["mean"] = lambda x: mean(x, dims, False, wide)
    if order is None:
        return Plan({"dx": OutputSpec.of(x.shape, x.dtype)}, [launch], strided(**per_name), before)
    before["x"] = lambda x: x.permute(order).contiguous()
    back = [order.index(d) for d in range(len(order))]
    after = {"dx": lambda dx: dx.permute(back).contiguous()}
    makes = {"dx": OutputSpec.of([x.shape[d] for d in order], x.dtype)}
    return Plan(makes, [launch], strided(**per_name), before, after)


def decline_back(name: str, extra: float, x: Tensor, per: tuple[Tensor, ...]) -> None:
    if name == "vector_norm_bwd" and (extra == 0 or math.isinf(extra)):
        raise NotSupported(f"the kernel has no slope of a norm of order {extra}")
    if x.dtype is not torch.float64 and torch.float64 in [t.dtype for t in per]:
        raise NotSupported("the kernel computes in the precision of x")
    if x.dtype is torch.float64 and not short(extra):
        raise NotSupported(f"the kernel takes numbers of 32 bits; got {extra}")


def whole(number: float) -> float | int:
    """The number as an int if it is integral, because float arguments of a kernel have 32 bits."""
    return int(number) if float(number).is_integer() and abs(number) < 2**31 else float(number)


def short(number: float) -> bool:
    """Whether float32 represents a number exactly."""
    return float(torch.tensor(number, dtype=torch.float32)) == number


# ---- the ops --------------------------------------------------------------------------------------------------------


def declare_cast(name: str) -> Callable[..., Any]:
    @planned(getattr(spec, name))
    def plan(x: Tensor, dim: Dim, keepdim: bool, dtype: torch.dtype | None) -> Plan:
        return _reduced(name, x, dim, keepdim, dtype)

    return plan


def declare_plain(name: str) -> None:
    @planned(getattr(spec, name))
    def plan(x: Tensor, dim: Dim, keepdim: bool) -> Plan:
        return _reduced(name, x, dim, keepdim)


def declare_moments(name: str) -> None:
    @planned(getattr(spec, name))
    def plan(x: Tensor, dim: Dim, keepdim: bool, correction: float | None) -> Plan:
        return _reduced(name, x, dim, keepdim, None, _one(correction))


def _one(correction: float | None) -> float:
    return 1 if correction is None else correction


mean = declare_cast("mean")
for _declare, _names in (
    (declare_cast, "sum prod nansum"),
    (declare_plain, "amax amin any all logsumexp argmax argmin max_dim min_dim"),
    (declare_moments, "var std var_mean std_mean"),
):
    for _name in _names.split():
        _declare(_name)


@planned(spec.count_nonzero)
def count_nonzero(x: Tensor, dim: Dim) -> Plan:
    return _reduced("count_nonzero", x, dim)


@planned(spec.vector_norm)
def vector_norm(x: Tensor, ord: float, dim: Dim, keepdim: bool, dtype: torch.dtype | None) -> Plan:
    return _reduced("vector_norm", x, dim, keepdim, dtype, ord)


@planned(spec.logsumexp_bwd)
def logsumexp_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: Dim, keepdim: bool) -> Plan:
    return _gradient("logsumexp_bwd", x, dim, 0, {"g": "dy", "y": "y"}, dy, y)


@planned(spec.vector_norm_bwd)
def vector_norm_bwd(dy: Tensor, x: Tensor, y: Tensor, ord: float, dim: Dim, keepdim: bool) -> Plan:
    return _gradient("vector_norm_bwd", x, dim, ord, {"g": "dy", "y": "y"}, dy, y)


@planned(spec.var_bwd)
def var_bwd(dy: Tensor, x: Tensor, dim: Dim, keepdim: bool, correction: float | None) -> Plan:
    return _gradient("var_bwd", x, dim, _one(correction), {"g": "dy"}, dy)


@planned(spec.std_bwd)
def std_bwd(dy: Tensor, x: Tensor, y: Tensor, dim: Dim, keepdim: bool, correction: float | None) -> Plan:
    return _gradient("std_bwd", x, dim, _one(correction), {"g": "dy", "y": "y"}, dy, y)


@planned(spec.var_mean_bwd)
def var_mean_bwd(dvar: Tensor, dmean: Tensor, x: Tensor, dim: Dim, keepdim: bool, correction: float | None) -> Plan:
    return _gradient("var_mean_bwd", x, dim, _one(correction), {"g": "dvar", "h": "dmean"}, dvar, dmean)


@planned(spec.std_mean_bwd)
def std_mean_bwd(
    dstd: Tensor, dmean: Tensor, x: Tensor, std: Tensor, dim: Dim, keepdim: bool, correction: float | None
) -> Plan:
    names = {"g": "dstd", "h": "dmean", "y": "std"}
    return _gradient("std_mean_bwd", x, dim, _one(correction), names, dstd, dmean, std)

"""Ops that move elements: kernels and launches, generated from a function that lists which part is copied from where.

    @moves(spec.ops["stack"])
    def stack(y, tensors, dim):
        return [[(y.select(dim, i), t) for i, t in enumerate(tensors)]]

The function is called once for each combination of dtypes, shapes and strides of the tensors and values of the other
arguments. Tensors are replaced by meta tensors; `y` is the result of torch's own op for them, or a meta copy of `out`.
The function returns stages, which run in order. A stage is a `LaunchStage`, or a list of moves (part of the result,
source) in any order. A source is a view of an argument, a `Flipped` view, or a number. Up to eight moves form one
launch, and each of its programs works on one move.

If torch's op raises for the meta tensors, the call falls back to torch.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core import codegen
from ...core.errors import NotSupported
from ...core.registry import impl
from .indexing import LARGEST, Indexing, bytes_of, choose_indexing
from .jit_source import jit_from_source
from .launch import Config, Launcher
from .meta import as_meta, call_torch
from .plans import TENSOR_KEY, TENSOR_KEY_BELOW, or_refusal, refuse_negated, table
from .pointwise import DOOR, DTYPES
from .rows import DEVICES, OutputSpec

MOST_MOVES = 8  # moves per launch; each one is a branch of the kernel


class Flipped(NamedTuple):
    """A source with some dimensions reversed."""

    x: Tensor
    dims: Sequence[int]


class RuntimeNumber(NamedTuple):
    """A number that is not part of the plan: it is passed at each call of the op."""

    name: str


class LaunchStage(NamedTuple):
    """A launch of another kernel. It takes these tensors, and writes to the last one."""

    kernel: Launcher
    grid: tuple[int, int, int]
    config: Config
    numbers: tuple[int, ...]
    tensors: Sequence[Tensor | None]


Source = Tensor | Flipped | RuntimeNumber | int
Stage = LaunchStage | Sequence[tuple[Tensor, Source]]


class Piece(NamedTuple):
    """A move without tensors: y and x are indices into a list of tensors; strides and offsets are in elements."""

    y: int
    x: int | None
    value: RuntimeNumber | int | None
    shape: tuple[int, ...]
    y_strides: tuple[int, ...]
    x_strides: tuple[int, ...]
    y_offset: int
    x_offset: int


# ---- the kernel -----------------------------------------------------------------------------------------------------


@triton.jit
def converted(v, dtype: tl.constexpr):
    """Convert as C++ does: to bool by comparison, to uint8 through int64, to 16-bit floats through float32."""
    if v.dtype == dtype:
        y = v
    elif dtype == tl.int1:
        y = v != 0
    elif dtype == tl.uint8 and v.dtype.is_floating():
        y = v.to(tl.int64).to(dtype)
    elif (dtype == tl.float16 or dtype == tl.bfloat16) and v.dtype != tl.float32:
        y = v.to(tl.float32).to(dtype)
    else:
        y = v.to(dtype)
    return y


def _part_text(name: str, indexing: Indexing, step: int, numbers: dict[str, int], filled: bool) -> str:
    """The source text of the function of one move.

    Numbers that are multiples of `step` are passed divided by `step` and multiplied in the kernel: so Triton knows that
    they are multiples.
    """
    lines = []
    for number, value in numbers.items():
        if number in indexing.free or value % step:
            continue
        wide = ".to(tl.int64)" if value > LARGEST else ""
        lines.append(f"{number} = {number}{wide} * {step}")
    lines += [f"{p}_ptr += {p}_offset" for p in ("x", "y") if f"{p}_offset" in numbers]
    lines += [line.replace("tl.program_id(0)", "pid") for line in indexing.head]
    if indexing.name == "flat" and indexing.sizes["n"] % step:  # only the last block needs a mask
        lines += ["if (pid + 1).to(tl.int64) * BLOCK <= n:", f"    {_move(indexing, filled, masked=False)}", "else:"]
        lines += [f"    {_move(indexing, filled)}"]
    else:
        lines.append(_move(indexing, filled))
    first = "y_ptr, v" if filled else "x_ptr, y_ptr"
    params = ", ".join(["pid", first, *numbers, *(f"{n}: tl.constexpr" for n in indexing.tiles.sizes)])
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({params}):\n{body}"


def _move(indexing: Indexing, filled: bool, masked: bool = True) -> str:
    def at(pointer: str, place: tuple[str, str]) -> str:
        offset, mask = place
        plus, under = f" + {offset}" if offset else "", f", mask={mask}" if mask and masked else ""
        return f"{pointer}{plus}|{under}"

    y, under = at("y_ptr", indexing.places[-1]).split("|")
    value = "v" if filled else "tl.load({}{})".format(*at("x_ptr", indexing.places[0]).split("|"))
    return f"tl.store({y}, converted({value}, y_ptr.dtype.element_ty){under})"


class Launching(NamedTuple):
    """The kernel, grid and arguments of one launch."""

    kernel: Launcher
    grid: tuple[int, int, int]
    config: Config
    numbers: tuple[int, ...]
    places: list[int | None]  # the indices of its tensors; None for a null pointer
    value: RuntimeNumber | int | None


def launching(pieces: Sequence[Piece], dtypes: Sequence[torch.dtype]) -> Launching:
    """One launch for up to MOST_MOVES pieces. `dtypes`: the dtypes of the tensors, by index."""
    places: list[int | None] = [*sorted({p.x for p in pieces if p.x is not None} | {p.y for p in pieces})]
    parts: dict[str, str] = {}  # source text without the function's name -> name
    calls, params, values, constants, threads, programs = [], [], [], {}, 0, 0
    for k, piece in enumerate(pieces):
        y, x = dtypes[piece.y], None if piece.x is None else dtypes[piece.x]
        used = [y] if x is None else [x, y]
        strides = [piece.y_strides] if x is None else [piece.x_strides, piece.y_strides]
        indexing = choose_indexing(piece.shape, strides, used)
        step = 16 // min(d.itemsize for d in used)
        numbers = {**indexing.sizes, **indexing.free}
        numbers |= {f"{p}_offset": o for p, o in (("x", piece.x_offset), ("y", piece.y_offset)) if o}
        text = _part_text("{name}", indexing, step, numbers, filled=x is None)
        part = parts.setdefault(text, f"part_{len(parts)}")
        pid = "pid" if k == 0 else f"pid - first_{k}"
        operands = [f"y{piece.y}_ptr", "v"] if x is None else [f"x{piece.x}_ptr", f"y{piece.y}_ptr"]
        call = ", ".join([pid, *operands, *(f"{n}_{k}" for n in (*numbers, *indexing.tiles.sizes))])
        calls.append(f"{part}({call})")
        if k:
            params.append(f"first_{k}")
            values.append(programs)
        params += [f"{n}_{k}" for n in numbers]
        values += [v if n in indexing.free or v % step else v // step for n, v in numbers.items()]
        constants |= {f"{n}_{k}": v for n, v in indexing.tiles.sizes.items()}
        threads, programs = max(threads, indexing.tiles.threads), programs + indexing.grid[0]
    ys = {p.y for p in pieces}
    pointers = [f"{'y' if place in ys else 'x'}{place}_ptr" for place in places]
    value = next((p.value for p in pieces if p.x is None), None)
    wide = ("fp64", "float64") if dtypes[pieces[0].y].is_floating_point else ("i64", "int64")
    runtime = [f'v: "{wide[0]}"'] if value is not None else []
    name = f"{'copy' if any(p.x is not None for p in pieces) else 'fill'}_{len(pieces)}"
    text = f"def {name}({', '.join([*pointers, *params, *runtime, *(f'{c}: tl.constexpr' for c in constants)])}):\n"
    text += f"    v = tl.full([], v, tl.{wide[1]})\n" if runtime else ""
    text += "    pid = tl.program_id(0)\n" + _branches(calls)
    kernel = _launcher(text, tuple(parts.items()))
    return Launching(kernel, (programs, 1, 1), Config(constants, threads), tuple(values), places, value)


def _branches(calls: list[str]) -> str:
    """The source text of an if chain, in which each program calls the function of its move."""
    if len(calls) == 1:
        return f"    {calls[0]}\n"
    text = ""
    for k, call in enumerate(calls):
        last = k == len(calls) - 1
        head = "else:" if last else f"{'el' if k else ''}if pid < first_{k + 1}:"
        text += f"    {head}\n        {call}\n"
    return text


@functools.cache
def _launcher(text: str, parts: tuple[tuple[str, str], ...]) -> Launcher:
    known = {name: triton.jit(jit_from_source(part.format(name=name), converted=converted)) for part, name in parts}
    return Launcher(jit_from_source(text, **known), sizes="")


# ---- numbers --------------------------------------------------------------------------------------------------------


@functools.cache
def number_for(dtype: torch.dtype) -> Callable[[Any], int | float]:
    """A function that converts a number to a dtype as torch does; raises NotSupported where torch would raise."""

    def refused(value: Any) -> NotSupported:
        return NotSupported(f"{value!r} does not fit in {dtype}")

    def floating(value: Any) -> float:
        if isinstance(value, complex) or most < abs(value) < torch.inf:
            raise refused(value)
        return float(value)

    def integer(value: Any) -> int:
        if isinstance(value, complex) or not least <= value <= most:  # this is also true for NaN
            raise refused(value)
        return int(value)

    def truth(value: Any) -> int:
        return int(value != 0)

    if dtype is torch.bool:
        return truth
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    least, most = info.min, info.max
    return floating if dtype.is_floating_point else integer


# ---- from a description to a function -------------------------------------------------------------------------------


def moves(op: Any, unless: str = "") -> Callable[[Callable[..., Iterable[Stage]]], Callable[..., Any]]:
    """Make an impl of an ATen op from a function that describes it.

    `unless`: Python source, an expression of the arguments; if it is true, the call falls back to torch.
    """

    def declare(describe: Callable[..., Iterable[Stage]]) -> Callable[..., Any]:
        fn, below, into = doors(op.spec, functools.partial(_plan, op.spec, describe), unless)
        impl(op, devices=DEVICES, below=below, into=into)(fn)
        return describe

    return declare


def role_of(annotation: Any) -> str:
    """The role of an argument in a plan: "tensor", "tensors", "number" (passed at the call), "list" or "choice"."""
    parts = typing.get_args(annotation) or (annotation,)
    if annotation is Tensor:
        return "tensor"
    if typing.get_origin(annotation) is list:
        return "tensors" if Tensor in parts else "list"
    if float in parts:
        return "number"
    return "list" if any(typing.get_origin(p) is list for p in parts) else "choice"


def _key(role: str, name: str, tensor_key: str) -> str:
    return {
        "tensor": tensor_key.format(name),
        "tensors": f"tuple([({tensor_key.format('t')}) for t in {name}])",
        "number": f"{name}.__class__",
        "list": f"tuple({name}) if {name}.__class__ is list else {name}",
        "choice": name,
    }[role]


def doors(spec: Any, make: Callable[..., Callable[..., Any]], unless: str = "") -> tuple[Callable[..., Any], ...]:
    """Three functions: the op, the op for calls from ATen kernels, and the op that writes to an existing tensor."""
    params = list(spec.signature.parameters.values())
    roles = {p.name: role_of(p.annotation) for p in params}
    plain = [p.name for p in params if p.kind is not p.KEYWORD_ONLY]
    keyword = [p.name for p in params if p.kind is p.KEYWORD_ONLY]
    names: dict[str, Any] = {**table(or_refusal(make)), "_NotSupported": NotSupported, "__name__": __name__}
    passed = ", ".join(roles)
    judged = f"if {unless}:\n        raise _NotSupported('left to torch')" if unless else ""
    fields = {"unless": judged, "args": f"{passed},"}
    listed = ", ".join([*plain, *(["*", *keyword] if keyword else [])])
    text = ""
    for name, tensor_key in ((spec.name, TENSOR_KEY), (f"{spec.name}_below", TENSOR_KEY_BELOW)):
        key = ", ".join(_key(role, n, tensor_key) for n, role in roles.items())
        text += DOOR.format(name=name, params=listed, key=key, out="None", passed=passed, **fields)
    keys = [
        f"_y is {n} or ({_key(r, n, TENSOR_KEY)})" if r == "tensor" else _key(r, n, TENSOR_KEY)
        for n, r in roles.items()
    ]
    several = f"({_key('tensors', '_y', TENSOR_KEY)}) if _y.__class__ is list else ({TENSOR_KEY.format('_y')})"
    text += DOOR.format(
        name=f"{spec.name}_into",
        params=f"_y, {passed}",
        key=", ".join([several, *keys]),
        out="_y",
        passed=f"_y, {passed}",
        **fields,
    )
    codegen.function(text, spec.name, f"call of aten::{spec.name}", names)
    return names[spec.name], names[f"{spec.name}_below"], names[f"{spec.name}_into"]


class _Tensors:
    """The tensors of a call. Each has a meta tensor that stands for it, and an expression in the generated source."""

    def __init__(self) -> None:
        self.metas: list[Tensor] = []
        self.sources: list[str] = []  # expressions in the generated call
        self.reals: list[Tensor | None] = []
        self._places: dict[int, int] = {}  # storage of a meta tensor -> index

    def add(self, source: str, meta: Tensor, real: Tensor | None) -> Tensor:
        self._places[meta.untyped_storage()._cdata] = len(self.metas)
        self.metas.append(meta)
        self.sources.append(source)
        self.reals.append(real)
        return meta

    def alike(self, source: str, t: Tensor) -> Tensor:
        if t.dtype not in DTYPES or t.layout is not torch.strided:
            raise NotSupported(f"a tensor of {t.dtype}, {t.layout}")
        return self.add(source, as_meta(t), t)

    def index_of(self, view: Tensor) -> int:
        found = self._places.get(view.untyped_storage()._cdata)
        if found is None:
            raise NotSupported("a part that is not a view of an argument")
        if view.storage_offset() * view.element_size() + bytes_of(view) > bytes_of(self.metas[found]):
            raise NotSupported("a move reads or writes beyond its tensor")  # torch does not check meta tensors
        return found


def _plan(spec: Any, describe: Callable[..., Iterable[Stage]], args: tuple, out: Any) -> Callable[..., Any]:
    """The function for all calls with the same key. It takes `out`, if given, and then the op's arguments."""
    params = list(spec.signature.parameters.values())
    tensors = _Tensors()
    values: list[Any] = []
    meta_args: list[Any] = []
    for p, value in zip(params, args, strict=True):
        role = role_of(p.annotation)
        if role == "tensor":
            value = tensors.alike(p.name, value)
        elif role == "tensors":
            value = [tensors.alike(f"{p.name}[{i}]", t) for i, t in enumerate(value)]
        meta_args.append(None if p.name == "device" else value)
        values.append(RuntimeNumber(p.name) if role == "number" else value)
    reals = [t for t in tensors.reals if t is not None]
    if not reals:
        raise NotSupported("no tensors")
    refuse_negated(*reals)
    _check_options(reals, dict(zip((p.name for p in params), args, strict=True)))
    natural = _on_meta(spec, params, meta_args)
    ours = _results(tensors, natural, out, reals[0])
    try:
        with torch.no_grad():
            stages = list(describe(ours, *values))
    except (RuntimeError, IndexError, ValueError) as error:
        raise NotSupported(f"not described: {error}") from error
    return _Function(spec, tensors, natural, out, stages).function()


def _check_options(reals: list[Tensor], named: dict[str, Any]) -> None:
    """Raise NotSupported for another device or layout, or tensors on several devices."""
    home = reals[0].device
    device = named.get("device")
    if any(t.device != home for t in reals) or (device is not None and torch.device(device) != home):
        raise NotSupported("tensors on several devices")
    if named.get("pin_memory") or named.get("layout") not in (None, torch.strided):
        raise NotSupported("pinned memory and other layouts")


def _on_meta(spec: Any, params: list[inspect.Parameter], args: list[Any]) -> Any:
    """The result of torch's own op for meta tensors."""
    plain = [v for p, v in zip(params, args, strict=True) if p.kind is not p.KEYWORD_ONLY]
    keyword = {p.name: v for p, v in zip(params, args, strict=True) if p.kind is p.KEYWORD_ONLY}
    return call_torch(spec.reference, *plain, **keyword)


def _results(tensors: _Tensors, natural: Any, out: Any, like: Tensor) -> Any:
    """Meta tensors for the results. Their layout is that of `out`, or the one that torch gives the results."""
    many = isinstance(natural, (list, tuple))
    listed: list[Tensor] = list(natural) if many else [natural]
    if out is None:
        made = [tensors.add(f"y[{i}]" if many else "y", t, None) for i, t in enumerate(listed)]
        if any(t.dtype not in DTYPES or torch._debug_has_internal_overlap(t) == 1 for t in made):
            raise NotSupported(f"a result of {listed[0].dtype}")
        return made if many else made[0]
    outs: list[Tensor] = list(out) if many else [out]
    if len(outs) != len(listed):
        raise NotSupported(f"{len(outs)} tensors for {len(listed)} results")
    for y, t in zip(outs, listed, strict=True):
        if y.shape != t.shape or y.dtype is not t.dtype or y.device != like.device:
            raise NotSupported(f"out is {y.dtype} {tuple(y.shape)}, the result {t.dtype} {tuple(t.shape)}")
        if torch._debug_has_internal_overlap(y) == 1:
            raise NotSupported("elements of out share memory")
    if many:
        return [tensors.alike(f"y[{i}]", y) for i, y in enumerate(outs)]
    # `out` may be an argument of the op. The plan's key records that, except for tensors in lists.
    same = [
        m for m, t, s in zip(tensors.metas, tensors.reals, tensors.sources, strict=True) if t is out and s[-1] != "]"
    ]
    return same[0] if same else tensors.alike("y", out)


class _Function:
    """Generates the source text of a plan, which allocates and launches."""

    def __init__(self, spec: Any, tensors: _Tensors, natural: Any, out: Any, stages: list[Stage]):
        self.spec, self.tensors, self.out = spec, tensors, out
        self.many = isinstance(natural, (list, tuple))
        self.natural: list[Tensor] = list(natural) if self.many else [natural]
        self.globals: dict[str, Any] = {}
        self.read: set[int] = set()  # the indices of tensors
        self.written: set[int] = set()
        self.launches = [one for stage in stages for one in self._of_stage(stage)]

    def _of_stage(self, stage: Stage) -> list[Launching]:
        if isinstance(stage, LaunchStage):
            places = [None if t is None else self.tensors.index_of(t) for t in stage.tensors]
            self.read |= {p for p in places if p is not None}
            self.written |= {p for p in places[-1:] if p is not None}
            return [Launching(stage.kernel, stage.grid, stage.config, stage.numbers, places, None)]
        pieces = [p for p in (self._piece(y, source) for y, source in stage) if p is not None]
        dtypes = [t.dtype for t in self.tensors.metas]
        parts = [pieces[i : i + MOST_MOVES] for i in range(0, len(pieces), MOST_MOVES)]
        return [launching(part, dtypes) for part in parts]

    def _piece(self, y: Tensor, source: Source) -> Piece | None:
        if not y.numel():
            return None
        at = (tuple(y.shape), tuple(y.stride()))
        self.written.add(self.tensors.index_of(y))
        if isinstance(source, (RuntimeNumber, int)):
            return Piece(self.tensors.index_of(y), None, source, *at, (), int(y.storage_offset()), 0)
        x, dims = source if isinstance(source, Flipped) else (source, ())
        place = self.tensors.index_of(x)
        self.read.add(place)
        flipped = {d % max(x.dim(), 1) for d in dims}
        strides = [-s if d in flipped else s for d, s in enumerate(x.stride())]
        offset = int(x.storage_offset()) + sum((x.shape[d] - 1) * x.stride(d) for d in flipped if x.dim())
        strides = [0] * (y.dim() - x.dim()) + strides
        sizes = [1] * (y.dim() - x.dim()) + list(x.shape)
        if any(n not in (1, m) for n, m in zip(sizes, y.shape, strict=True)):
            raise NotSupported(f"{tuple(x.shape)} into {tuple(y.shape)}")
        strides = [0 if n == 1 else s for n, s in zip(sizes, strides, strict=True)]
        return Piece(self.tensors.index_of(y), place, None, *at, tuple(strides), int(y.storage_offset()), offset)

    def function(self) -> Callable[..., Any]:
        params = ", ".join([*(["y"] if self.out is not None else []), *self.spec.names])
        lines = self._into() if self.out is not None else self._new()
        text = f"def call({params}):\n" + "".join(f"    {line}\n" for line in lines)
        return codegen.function(text, "call", f"plan of aten::{self.spec.name}", self.globals)

    def _new(self) -> list[str]:
        like = next(s for s, t in zip(self.tensors.sources, self.tensors.reals, strict=True) if t is not None)
        specs = [OutputSpec.like(t) for t in self.natural]
        if len(self.launches) == 1 and not self.many:
            (one,) = self.launches
            (y,) = [p for p in one.places if p is not None and self.tensors.reals[p] is None]
            if any(p not in (None, y) for p in one.places):
                self._launch(0, one, {one.places.index(y): specs[0]})
                return [f"return {self._call(0, one, without=y)}"]
        for i, spec in enumerate(specs):
            self.globals[f"_output_{i}"] = spec
        outputs = ", ".join(f"_output_{i}.empty({like})" for i in range(len(specs)))
        lines = [f"y = [{outputs}]" if self.many else f"y = {outputs}"]
        return [*lines, *self._calls(), "return y"]

    def _into(self) -> list[str]:
        self.globals["_apart"] = apart
        spans = list(zip(self.tensors.sources, map(bytes_of, self.tensors.metas), strict=True))
        pairs = [(y, x) for x in sorted(self.read - self.written) for y in sorted(self.written)]
        checks = ["_apart({}, {}, {}, {})".format(*spans[y], *spans[x]) for y, x in pairs]
        return [*checks, *self._calls(), "return None" if self.many else "return y"]

    def _calls(self) -> list[str]:
        for i, one in enumerate(self.launches):
            self._launch(i, one, {})
        return [self._call(i, one) for i, one in enumerate(self.launches)]

    def _launch(self, i: int, one: Launching, makes: dict[int, OutputSpec]) -> None:
        self.globals[f"_launch_{i}"] = one.kernel.ready(one.grid, one.numbers, one.config, makes)

    def _call(self, i: int, one: Launching, without: int = -1) -> str:
        passed = ["None" if p is None else self.tensors.sources[p] for p in one.places if p != without]
        if isinstance(one.value, RuntimeNumber):
            self.globals["_number"] = number_for(self.natural[0].dtype)
            passed.append(f"_number({one.value.name})")
        elif one.value is not None:
            passed.append(repr(float(one.value) if self.natural[0].is_floating_point() else one.value))
        return f"_launch_{i}({', '.join(passed)})"


def apart(y: Tensor, y_span: int, x: Tensor, x_span: int) -> None:
    """Raise NotSupported if y overlaps x, because x is read after y is written; torch handles such calls."""
    start, other = y.data_ptr(), x.data_ptr()
    if start and other and other < start + y_span and start < other + x_span:
        raise NotSupported("out and an argument share memory")

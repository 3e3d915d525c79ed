"""Elementwise ops from scalar functions: broadcasting, any strides and ATen's type promotion, from one table.

A `Row` is an ATen op and the scalar function that computes it. `run(row, args)` returns the result; `run(row, args,
out=y)` writes it to y (in place if y is the first argument). Both take all arguments of the op, in the order of its
signature.

The op itself computes shape, strides and dtype of the result on meta tensors, once per call key (dtypes, shapes,
strides). If torch's op raises for the meta tensors, the call falls back to torch. For a number, the key has only the
type: the value is passed to the kernel at each call, as a 64-bit argument. A 0-dim CPU tensor among device tensors is
treated as a number, and read at each call.

    operand's dtype -> dtype ATen computes in (P) -> dtype we compute in (C) -> result's dtype (R) -> dtype of `out`

C is P widened: float32 for 16-bit floats, int32 for narrow integers and bool, as in C++, so that integers wrap alike.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ...core import codegen
from ...core.errors import NotSupported
from .indexing import Indexing, broadcast_strides, bytes_of, choose_indexing
from .jit_source import jit_from_source
from .launch import Launcher, Output
from .meta import as_meta, call_torch
from .plans import TENSOR_KEY, TENSOR_KEY_BELOW, keep, or_refusal, refuse_negated, table
from .rows import OutputSpec

# dtype -> (Triton's name for it, the dtype that kernels compute in (C))
DTYPES = {
    torch.bool: (tl.int1, tl.int32),
    torch.uint8: (tl.uint8, tl.int32),
    torch.int8: (tl.int8, tl.int32),
    torch.int16: (tl.int16, tl.int32),
    torch.int32: (tl.int32, tl.int32),
    torch.int64: (tl.int64, tl.int64),
    torch.float16: (tl.float16, tl.float32),
    torch.bfloat16: (tl.bfloat16, tl.float32),
    torch.float32: (tl.float32, tl.float32),
    torch.float64: (tl.float64, tl.float64),
}
MASKS = ("condition", "mask")  # arguments that select elements and do not affect type promotion

ROWS: dict[str, Row] = {}  # ATen's name -> row


@dataclass(eq=False)
class Row:
    """An ATen op, and the scalar function that computes it."""

    name: str
    reference: Callable[..., Any]  # torch's own op, with ATen's signature
    function: Any  # the scalar function: takes the op's arguments, each as a block, a number, a constexpr or None
    dtypes: frozenset[torch.dtype]  # the dtypes that P may be; other calls fall back to torch, which may raise
    typed: bool = False  # the function takes P as its last argument
    # `baked`: argument -> values that get a specialized kernel. `baked_function`: the scalar function of that kernel.
    baked: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    baked_function: Any = None
    rounds: bool = False  # whether ATen rounds a number to the dtype of 16-bit tensors before computing
    unless: str = ""  # Python source, an expression of the arguments; if it is true, the call falls back to torch
    names: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    call: Callable[..., Tensor] = field(init=False)  # the op, with its exact signature
    write: Callable[..., Tensor] = field(init=False)  # write(out, *args)
    below: Callable[..., Tensor] = field(init=False)  # the op, for calls from ATen kernels

    def __post_init__(self) -> None:
        params = inspect.signature(self.reference, eval_str=True).parameters.values()
        self.names = tuple(p.name for p in params)
        self.roles = tuple(_role(p.annotation) for p in params)
        self.keywords = tuple(p.name for p in params if p.kind is p.KEYWORD_ONLY)
        self.call, self.write, self.below = _doors(self)


def run(row: Row, args: tuple, out: Tensor | None = None) -> Tensor:
    """Compute the op. If `out` is given, cast the result to its dtype and write it there.

    `args`: all arguments of the op, in order. Raises NotSupported before anything is written if torch must run the
    call: unsupported dtypes, an `out` of another shape or dtype class, overlapping memory.
    """
    if out is not None:
        return row.write(out, *args)
    split = len(args) - len(row.keywords)
    return row.call(*args[:split], **dict(zip(row.keywords, args[split:], strict=True)))


# ---- the entry points -----------------------------------------------------------------------------------------------


def _keys(tensor_key: str) -> dict[str, str]:
    return {
        "tensor": tensor_key,
        "either": f"({tensor_key}) if isinstance({{0}}, _Tensor) else {{0}}.__class__",
        "baked": f"({tensor_key}) if isinstance({{0}}, _Tensor) "
        "else ({0}, {0}.__class__) if {0} in _baked else {0}.__class__",
        "number": "{0}.__class__",
        "choice": "{0}",
    }


DOOR = """\
def {name}({params}):
    {unless}
    try:
        _call = _found[{key},]
    except KeyError:
        _call = _make(({key},), ({args}), {out})
    except RuntimeError:
        raise _NotSupported("a tensor without strides")
    return _call({passed})
"""


def _role(annotation: Any) -> str:
    parts = typing.get_args(annotation) or (annotation,)
    if Tensor in parts:
        return "tensor" if len(parts) == 1 else "either"
    return "number" if float in parts else "choice"


def _doors(row: Row) -> tuple[Callable[..., Tensor], ...]:
    """The entry points, generated with the op's parameters: each looks up the plan for its arguments and calls it."""
    words = "left to torch, which raises or computes differently for these values"
    judged = f"if {row.unless}:\n        raise _NotSupported({words!r})" if row.unless else ""
    params = [n for n in row.names if n not in row.keywords] + (["*", *row.keywords] if row.keywords else [])
    names: dict[str, Any] = {
        **table(or_refusal(functools.partial(_plan, row))),
        "_Tensor": Tensor,
        "_NotSupported": NotSupported,
        "__name__": __name__,
        "_baked": next(iter(row.baked.values()), ()),
    }
    fields = {"unless": judged, "args": "".join(f"{n}, " for n in row.names)}
    kinds = ["baked" if n in row.baked else r for n, r in zip(row.names, row.roles, strict=True)]
    key = lambda tensor_key: [_keys(tensor_key)[kind].format(n) for n, kind in zip(row.names, kinds, strict=True)]
    text = ""
    params, passed = ", ".join(params), ", ".join(row.names)
    for name, tensor_key in ((row.name, TENSOR_KEY), (f"{row.name}_below", TENSOR_KEY_BELOW)):
        text += DOOR.format(
            name=name, params=params, key=", ".join(key(tensor_key)), out="None", passed=passed, **fields
        )
    first = row.names[0]
    keys = [
        f"_y is {first} or ({k})" if n == first and kinds[0] == "tensor" else k
        for n, k in zip(row.names, key(TENSOR_KEY))
    ]
    text += DOOR.format(
        name=f"{row.name}_to",
        params=", ".join(["_y", *row.names]),
        key=", ".join([TENSOR_KEY.format("_y"), *keys]),
        out="_y",
        passed=", ".join([*row.names, "_y"]),
        **fields,
    )
    codegen.function(text, row.name, f"call of aten::{row.name}", names)
    return names[row.name], names[f"{row.name}_to"], names[f"{row.name}_below"]


# ---- a plan ---------------------------------------------------------------------------------------------------------


class Arg(NamedTuple):
    """How a kernel receives one argument of the op."""

    name: str
    kind: str  # "t" tensor, "i" integer or bool, "f" float, "c" constant, "-" absent
    value: Any
    read: str  # the expression for its value in the generated source of the call
    role: str


class PointwiseDtypes(NamedTuple):
    promoted: torch.dtype  # P
    result: torch.dtype  # R


def _plan(row: Row, args: tuple, out: Tensor | None) -> Callable[..., Tensor]:
    """The function for all calls with the same key as this one. It takes the arguments, and `out` if given."""
    refuse_negated(*args, out)
    kernel_args = _kernel_args(row, args)
    tensors = [a.value for a in kernel_args if a.kind == "t"]
    like = tensors[0]
    result = _on_meta(row, args)
    types = PointwiseDtypes(_promoted(kernel_args, result.dtype), result.dtype)
    if types.promoted not in row.dtypes:
        raise NotSupported(f"{row.name} does not support {types.promoted}")
    if row.rounds and types.promoted.itemsize == 2:
        kernel_args = [a._replace(read=f"_near({a.read})") if a.kind == "f" else a for a in kernel_args]
    if out is not None:
        _check_out(out, result, like, in_place=out is args[0])
    output = OutputSpec.like(result)
    makes = {len(tensors): output} if out is None else {}
    launch = _launch(row, kernel_args, types, out if out is not None else result, makes) if result.numel() else None
    return _caller(kernel_args, output, launch, out)


def _kernel_args(row: Row, args: tuple) -> list[Arg]:
    tensors = [a for a in args if isinstance(a, Tensor)]
    if not tensors:
        raise NotSupported("no argument is a tensor")
    device = next((t for t in tensors if not t.is_cpu), tensors[0]).device
    kernel_args = []
    ints = torch.int32 in row.dtypes
    for i, (name, role, value) in enumerate(zip(row.names, row.roles, args, strict=True)):
        kind, read = _kind(value, role, device), f"a{i}"
        if ints and isinstance(value, Tensor) and name not in MASKS and value.dtype not in row.dtypes:
            raise NotSupported(f"{row.name} does not support tensors of {value.dtype}")
        if name in row.baked and not isinstance(value, Tensor) and value in row.baked[name]:
            kind = "c"
        elif kind in "if" and isinstance(value, Tensor):
            read = f"a{i}.item()"
        kernel_args.append(Arg(name, kind, value, read, role))
    return kernel_args


def _kind(value: Any, role: str, home: torch.device) -> str:
    if isinstance(value, Tensor):
        if value.dtype not in DTYPES or value.layout is not torch.strided:
            raise NotSupported(f"a tensor of {value.dtype}, {value.layout}")
        if value.device == home:
            return "t"
        if value.is_cpu and value.dim() == 0:
            return "f" if value.dtype.is_floating_point else "i"
        raise NotSupported(f"tensors on {home} and {value.device}")
    if role == "choice":
        return "c"
    for kinds, kind in (((bool, int), "i"), (float, "f"), (types.NoneType, "-")):
        if isinstance(value, kinds):
            return kind
    raise NotSupported(f"a {type(value).__name__} as a number")


def _on_meta(row: Row, args: tuple) -> Tensor:
    """What torch's op returns for these arguments, as a meta tensor.

    Shape and strides come from meta tensors. The dtype and errors come from torch's real kernels, on tensors with at
    most one element: meta functions accept some invalid calls, and promote differently in a few ops. Meta functions
    also cast operands that need promotion, which changes the strides of expanded operands. Real kernels do not cast, so
    all meta tensors here have the same dtype.
    """
    dtype, shape = _result_dtype(row, args), _common_shape(args)
    if shape is not None:  # skips torch's meta functions: some are Python decompositions and take 1 ms
        return torch.empty(shape, dtype=dtype, device="meta")
    one = next((d for d in (torch.float32, torch.float64, torch.int32) if d in row.dtypes), None)

    def without_contents(t: Tensor, name: str) -> Tensor:
        return as_meta(t, None if name in MASKS else one)

    result = _call_torch(row, args, without_contents)
    return result if dtype == result.dtype else result.to(dtype)


def _common_shape(args: tuple) -> torch.Size | None:
    """The shape of the result if all tensors have it and are contiguous, so that the result is too; else None."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    shape = tensors[0].shape
    stride = OutputSpec.of(shape, tensors[0].dtype).stride  # `is_contiguous` ignores strides of size-1 dimensions
    alike = all(t.shape == shape and t.stride() == stride for t in tensors)
    return shape if alike and 0 not in shape else None


_dtypes: dict[tuple, torch.dtype] = keep({})
_MOST_DTYPES = 4096


def _result_dtype(row: Row, args: tuple) -> torch.dtype:
    """The dtype of the result, from torch's real kernel on tensors with at most one element; cached."""

    def as_few(t: Tensor, name: str) -> Tensor:
        device = "cpu" if t.is_meta else t.device  # meta tensors: the kernel is only compiled
        return torch.ones([int(n == 1) for n in t.shape], dtype=t.dtype, device=device)

    dtype_key = lambda a: (a.dtype, a.device, *(n == 1 for n in a.shape)) if isinstance(a, Tensor) else (a.__class__, a)
    settings = torch.get_default_dtype(), torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
    try:
        key = row, settings, *map(dtype_key, args)
        dtype = _dtypes.get(key)
    except TypeError:  # an unhashable argument, such as a list
        return _call_torch(row, args, as_few).dtype
    if dtype is None:
        if len(_dtypes) >= _MOST_DTYPES:
            _dtypes.clear()
        dtype = _dtypes[key] = _call_torch(row, args, as_few).dtype
    return dtype


def _call_torch(row: Row, args: tuple, instead: Callable[[Tensor, str], Tensor]) -> Tensor:
    values = [instead(a, n) if isinstance(a, Tensor) else a for a, n in zip(args, row.names, strict=True)]
    split = len(values) - len(row.keywords)
    return call_torch(row.reference, *values[:split], **dict(zip(row.keywords, values[split:], strict=True)))


def _promoted(kernel_args: list[Arg], result: torch.dtype) -> torch.dtype:
    """The dtype in which ATen computes: the result's dtype or, for a comparison, the promoted dtype of its operands."""
    if result is not torch.bool:
        return result
    values = [
        a.value for a in kernel_args if a.role in ("tensor", "either") and a.kind in "tif" and a.name not in MASKS
    ]
    return torch.result_type(*values) if len(values) == 2 else values[0].dtype


def _check_out(out: Tensor, result: Tensor, like: Tensor, in_place: bool) -> None:
    """Raise NotSupported for an `out` that torch would resize, reject or warn about, or with an unsupported dtype."""
    if out.shape != result.shape or out.device != like.device or out.dtype not in DTYPES:
        raise NotSupported(f"out is {out.dtype} {tuple(out.shape)} on {out.device}")
    if out.dtype != result.dtype and not (in_place and torch.can_cast(result.dtype, out.dtype)):
        raise NotSupported(f"a result of {result.dtype}, and an out of {out.dtype}")
    if torch._debug_has_internal_overlap(out) == 1:
        raise NotSupported("elements of out share memory")


_CALLS = {
    "new": "def call({args}):\n    return _launch({tensors}{runtime})\n",
    "new empty": "def call({args}):\n    return _output.empty({like})\n",
    "out": "def call({args}, y):\n    {apart}\n    _launch({tensors}y, {runtime})\n    return y\n",
    "out empty": "def call({args}, y):\n    return y\n",
}


def _caller(kernel_args: list[Arg], output: OutputSpec, launch: Callable[..., None] | None, out: Tensor | None) -> Any:
    tensors = [a for a in kernel_args if a.kind == "t"]
    form = ("new" if out is None else "out") + ("" if launch else " empty")
    in_order = [a.kind == "t" for a in kernel_args] == sorted((a.kind == "t" for a in kernel_args), reverse=True)
    as_given = all(a.kind in "tif" and a.read == f"a{i}" for i, a in enumerate(kernel_args))
    if form == "new" and in_order and as_given:
        return launch  # the launch takes the same arguments in the same order
    text = _CALLS[form].format(
        args=", ".join(f"a{i}" for i in range(len(kernel_args))),
        like=tensors[0].read,
        tensors="".join(f"{a.read}, " for a in tensors),
        runtime=", ".join(a.read for a in kernel_args if a.kind in "if"),
        apart="; ".join(
            f"{x} is y or not -_span_{x} < {x}.data_ptr() - y.data_ptr() < _span_y or _apart(y, {x})"
            for x in (a.read for a in tensors)
        ),
    )
    near = functools.lru_cache(maxsize=64)(lambda number: torch.tensor(number, dtype=output.dtype).item())
    spans = {f"_span_{a.read}": bytes_of(a.value) for a in tensors} if out is not None else {}
    spans |= {"_span_y": bytes_of(out)} if out is not None else {}
    names = {"_output": output, "_launch": launch, "_apart": _apart, "_near": near, **spans}
    return types.FunctionType(_compiled(text), names)


@functools.cache
def _compiled(text: str) -> types.CodeType:
    return codegen.function(text, "call", "pointwise plan", {}).__code__


def _apart(y: Tensor, x: Tensor) -> None:
    """Raise NotSupported if y overlaps x, unless both are the same view: torch handles such calls."""
    if not y.data_ptr():  # meta tensors have no memory
        return
    if x.data_ptr() != y.data_ptr() or x.dtype != y.dtype or x.shape != y.shape or x.stride() != y.stride():
        raise NotSupported("out and an argument share memory")


# ---- a kernel -------------------------------------------------------------------------------------------------------


def _launch(
    row: Row, kernel_args: list[Arg], types: PointwiseDtypes, y: Tensor, makes: dict[int, Output]
) -> Callable[..., Any]:
    tensors = [a.value for a in kernel_args if a.kind == "t"]
    strides = [broadcast_strides(t.shape, t.stride(), y.shape) for t in tensors]
    indexing = choose_indexing(y.shape, [*strides, tuple(y.stride())], [*(t.dtype for t in tensors), y.dtype])
    baked = any(a.kind == "c" and a.name in row.baked for a in kernel_args)
    constants = {
        "FN": row.baked_function if baked else row.function,
        "P": DTYPES[types.promoted][0],
        "C": DTYPES[types.promoted][1],
        "R": DTYPES[types.result][0],
        **{f"c{i}": a.value for i, a in enumerate(kernel_args) if a.kind == "c"},
    }
    launcher = _launcher_of(row, kernel_args, types, indexing)
    config = indexing.tiles.config(even=all(n % 16 == 0 for n in indexing.sizes.values()), **constants)
    return launcher.ready(indexing.grid, (*indexing.sizes.values(), *indexing.free.values()), config, makes)


_KERNEL = """\
def {name}({params}):
    {head}
    {body}
    tl.store(y_ptr{y_at}, FN({passed}).to(R).to(y_ptr.dtype.element_ty){y_mask})
"""


def _text(row: Row, kernel_args: list[Arg], types: PointwiseDtypes, indexing: Indexing) -> str:
    """The source text of the kernel."""
    narrow = DTYPES[types.promoted][0] != DTYPES[types.promoted][1]
    exact = " .to(P).to(C)".strip() if narrow else ""
    # Round numbers to P only for integers and comparisons: in `x * 0.1`, ATen keeps 0.1 in float32 (opmath).
    rounded = exact if not types.promoted.is_floating_point or types.result is torch.bool else ""
    pointers, runtime, constants, body, passed = [], [], [], [], []
    *places, last = indexing.places
    # all operands are single numbers: make a block of the first, because some functions reduce over a block
    if not any(at for at, _ in places):
        places[0] = (f"({last[0]}) * 0", last[1])
    for i, a in enumerate(kernel_args):
        if a.kind == "t":
            at, mask = places[len(pointers)]
            cast = ".to(tl.int1)" if a.name in MASKS else ".to(C)" + (exact if a.value.dtype != types.promoted else "")
            body.append(f"x{i} = tl.load(x{i}_ptr{_plus(at)}{_under(mask)}){cast}")
            pointers.append(f"x{i}_ptr")
        elif a.kind in "if":
            runtime.append(f'v{i}: "{"i64" if a.kind == "i" else "fp64"}"')
            body.append(f"x{i} = tl.full([], v{i}, C){rounded}")
        elif a.kind == "c":
            constants.append(f"c{i}: tl.constexpr")
        passed.append({"c": f"c{i}", "-": "None"}.get(a.kind, f"x{i}"))
    fixed = ["FN", "P", "C", "R"]
    numbers = [*indexing.sizes, *indexing.free, *runtime]
    constants = [f"{n}: tl.constexpr" for n in fixed] + constants + [f"{n}: tl.constexpr" for n in indexing.tiles.sizes]
    at, mask = last
    return _KERNEL.format(
        name=f"{row.name}_{indexing.name}",
        params=", ".join([*pointers, "y_ptr", *numbers, *constants]),
        head="\n    ".join(indexing.head),
        body="\n    ".join(body),
        passed=", ".join([*passed, "P"] if row.typed else passed),
        y_at=_plus(at),
        y_mask=_under(mask),
    )


def _plus(at: str) -> str:
    return f" + {at}" if at else ""


def _under(mask: str) -> str:
    return f", mask={mask}" if mask else ""


_launchers: dict[tuple, Launcher] = {}


def _launcher_of(row: Row, kernel_args: list[Arg], types: PointwiseDtypes, indexing: Indexing) -> Launcher:
    """The launcher of a kernel, cached by everything that its text depends on."""
    kinds = tuple((a.kind, a.value.dtype if a.kind == "t" else None) for a in kernel_args)
    tiles = tuple(indexing.tiles.sizes)
    places = (indexing.name, *indexing.head, *indexing.places)
    key = (row, kinds, types, places, tuple(indexing.sizes), tuple(indexing.free), tiles)
    launcher = _launchers.get(key)
    if launcher is None:
        text = _text(row, kernel_args, types, indexing)
        launcher = _launchers[key] = _launcher(text, " ".join(indexing.sizes))
    return launcher


@functools.cache
def _launcher(text: str, sizes: str) -> Launcher:
    return Launcher(jit_from_source(text), sizes=sizes)

"""ATen's ops over lists of tensors: one launch for a whole list, with the tables of `lib/lists.py`.

A kernel is generated from `STEP`, a function of one element of each list, and from the kind of each argument of STEP:

    t  a list of tensors               s  one number per tensor     n  a number
    h  a list of one-element tensors   p  a one-element tensor      d  a number, passed to STEP in float64
                                                                    -  absent

Elementwise ops use the functions of the pointwise table; each optimizer has its own function.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import FLOATS
from ..core.errors import NotSupported
from ..core.registry import impl
from ..core.spec import specs
from ..specs import foreach as spec
from .lib.config import Tiles
from .lib.jit_source import jit_from_source
from .lib.launch import Launcher
from .lib.list_kernels import (
    TYPES,
    ListPlan,
    lanes,
    norm_tiles,
    part,
    planned,
    run_chunks,
    scale_lists,
    squares,
    squares_of_each,
)
from .lib.lists import MORE, TensorGroup, chunks_of, group_of, table_of
from .lib.maths import div, sqrt
from .lib.pointwise import DTYPES, ROWS, Row
from .lib.rows import DEVICES, OutputSpec

INF = tl.constexpr(float("inf"))
Lists = Sequence[Sequence[Tensor]]

# ---- kernels from functions -----------------------------------------------------------------------------------------


class StepForm(NamedTuple):
    """The inputs and outputs of a kernel: the kinds of STEP's arguments, and the list that each result goes to."""

    name: str
    kinds: str
    writes: tuple[tuple[int, int], ...]  # (index of the result, index of the list that it is written to)
    lists: int  # the number of lists, including those that are only written
    constants: tuple[tuple[str, Any], ...] = ()  # constexprs that STEP takes after the others
    several: bool = False  # STEP returns a tuple


_KERNEL = """\
def {name}({params}):
    row = table_ptr + tl.load(chunk_ptr + tl.program_id(0)).to(tl.int64) * {width}
    start = (tl.program_id(0) - tl.load(row + {first})) * BLOCK
    left = tl.load(row + {size}) - start
    if skip_ptr is not None:
        left = tl.where(tl.load(skip_ptr) == 1, 0, left)
    o = tl.arange(0, BLOCK)
    {numbers}
    if (tl.load(row + {aligned}) != 0) & (left >= BLOCK):
        {whole}
    else:
        {masked}
"""


@functools.cache
def kernel_of(form: StepForm) -> Launcher:
    """Generate the kernel that runs STEP with these inputs and outputs."""
    params = ["table_ptr", "chunk_ptr"]
    held = [f"p{i}_ptr" for i, kind in enumerate(form.kinds) if kind == "p"]
    runtime = [f'v{i}: "fp64"' for i, kind in enumerate(form.kinds) if kind in "nd"]
    types = [f"T{i}: tl.constexpr" for i in range(form.lists)]
    params += [*held, "skip_ptr", *runtime, "STEP: tl.constexpr", "C: tl.constexpr", *types]
    params += [f"{name}: tl.constexpr" for name, _ in form.constants]
    params += ["LANES: tl.constexpr", "BLOCK: tl.constexpr"]
    column = form.lists + MORE
    numbers, passed, blocks = ["pass"], [], []
    for i, kind in enumerate(form.kinds):
        if kind == "t":
            blocks.append(len(blocks))
            passed.append(f"a{blocks[-1]}")
            continue
        if kind == "s":
            numbers.append(f"x{i} = tl.load(row + {column}).to(tl.float64, bitcast=True).to(C)")
            column += 1
        elif kind == "h":
            numbers.append(f"x{i} = tl.load(tl.load(row + {column}).to(tl.pointer_type(tl.float32)))")
            column += 1
        elif kind == "p":
            numbers.append(f"x{i} = tl.load(p{i}_ptr).to(C)")
        elif kind in "nd":
            numbers.append(f"x{i} = tl.full([], v{i}, C)" if kind == "n" else f"x{i} = v{i}")
        passed.append("None" if kind == "-" else f"x{i}")
    passed += [name for name, _ in form.constants]
    call = f"STEP({', '.join(passed)})"

    def body(lanes: str, mask: str) -> str:
        at = lambda i: f"part(tl.load(row + {i}), start, T{i}, {lanes}) + o"
        lines = [f"a{i} = tl.load({at(i)}{mask}).to(C)" for i in blocks]
        lines.append(f"r = {call}" if form.several else f"r = ({call},)")
        lines += [f"tl.store({at(to)}, r[{i}].to(T{to}){mask})" for i, to in form.writes]
        return "\n        ".join(lines)

    text = _KERNEL.format(
        name=form.name,
        params=", ".join(params),
        width=column,
        first=form.lists + 1,
        size=form.lists,
        aligned=form.lists + 2,
        numbers="\n    ".join(numbers),
        whole=body("LANES", ""),
        masked=body("0", ", mask=o < left"),
    )
    return Launcher(jit_from_source(text, part=part), sizes="")


def run(
    form: StepForm,
    step: Any,
    group: TensorGroup,
    args: tuple,
    skip: Tensor | None = None,
    wide: torch.dtype | None = None,
) -> None:
    """Launch the kernel of a form with this STEP; `args`: first the one-element tensors, then the numbers."""
    held = form.kinds.count("p")
    dtype = wide or group.dtypes[0]
    constants = {"STEP": step, "C": DTYPES[dtype][1], **dict(form.constants), "LANES": lanes(group.dtypes)}
    types = " ".join(f"T{i}" for i in range(form.lists))
    run_chunks(kernel_of(form), group, (*args[:held], skip, *args[held:]), constants, types)


# ---- elementwise ----------------------------------------------------------------------------------------------------


def row_of(name: str) -> Row:
    """The pointwise op that is applied to each tensor: its entry in the table of kernels/pointwise.py."""
    specs.load_implementers("pointwise")
    return ROWS["true_divide" if name == "div" else name]


# ATen's overloads have several names for the same operand. Of each group, the first argument that is given is used.
OPERANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(spec.UNARY, (("self",),)),
    **dict.fromkeys(spec.BINARY, (("self",), ("scalars", "scalar", "other"))),
    **dict.fromkeys(("add", "sub"), (("self",), ("scalars", "scalar", "other"), ("alpha",))),
    "round": (("self",), ("decimals",)),
    "pow": (("self",), ("exponent",)),
    **dict.fromkeys(("addcmul", "addcdiv"), (("self",), ("tensor1",), ("tensor2",), ("scalars", "value"))),
    "lerp": (("self",), ("tensors1",), ("weights", "weight")),
}


class Operands(NamedTuple):
    """The arguments of a call, by kind."""

    kinds: str
    lists: list[Sequence[Tensor]]
    more: tuple[tuple[int, ...], ...]  # tuples of one number per tensor, as the bits of a float64
    held: tuple[Tensor, ...]
    numbers: tuple[float, ...]


def operands(values: Sequence[Any], dtype: torch.dtype, count: int) -> Operands:
    kinds, lists, more, held, numbers = "", [], [], [], []
    for value in values:
        kind, value = _kind(value, dtype, count)
        kinds += kind
        if kind == "t":
            lists.append(value)
        elif kind == "s":
            more.append(tuple(array("q", array("d", value).tobytes())))
        elif kind == "p":
            held.append(value)
        elif kind == "n":
            numbers.append(value)
    return Operands(kinds, lists, tuple(more), tuple(held), tuple(numbers))


def _kind(value: Any, dtype: torch.dtype, count: int) -> tuple[str, Any]:
    if value is None:
        return "-", None
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise NotSupported("lists of different lengths")
        if isinstance(value[0], Tensor):
            return "t", value
        return "s", _real(value)
    if isinstance(value, Tensor):
        # the scalars of `addcmul.Tensor`, one per tensor
        if value.is_cpu and value.dim() == 1 and value.numel() == count:
            return "s", _real(value.tolist())
        if value.dim():
            raise NotSupported(f"a tensor of {tuple(value.shape)} for all tensors of a list")
        if value.dtype is not dtype:
            raise NotSupported(f"a number of {value.dtype} beside {dtype}")
        return ("n", float(value.item())) if value.is_cpu else ("p", value)
    return "n", _real([value])[0]


def _real(values: Sequence[Any]) -> list[float]:
    if any(type(v) not in (int, float) for v in values):
        raise NotSupported("numbers that are neither integers nor floats")
    return [float(v) for v in values]


def _first_list(values: Sequence[Any]) -> Sequence[Tensor]:
    """The first argument that is a list of tensors."""
    for value in values:
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return value
    raise NotSupported("no list of tensors")


def elementwise(name: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Two functions: one allocates the op's results, the other writes them to given tensors."""
    names = spec.ops[f"_foreach_{name}"].spec.names
    groups = [[names.index(n) for n in group if n in names] for group in OPERANDS[name]]
    found: list[Row] = []

    def picked(args: tuple) -> list[Any]:
        return [next((args[i] for i in group if args[i] is not None), None) for group in groups]

    def write(out: Any, *args: Any) -> None:
        values = picked(args)
        lead = _first_list(values)
        if not isinstance(out, (list, tuple)) or len(out) != len(lead):
            raise NotSupported("out is no list of as many tensors")
        dtype = lead[0].dtype
        if not found:
            found.append(row_of(name))
        if dtype not in FLOATS or dtype not in found[0].dtypes:
            raise NotSupported(f"{name} of {dtype}")
        given = operands(values, dtype, len(lead))
        at = next((i for i, items in enumerate(given.lists) if items is out), None)
        lists = given.lists if at is not None else [*given.lists, out]
        if any(items[0].dtype is not dtype for items in lists) or any(h.device != lead[0].device for h in given.held):
            raise NotSupported("tensors of several dtypes or devices")
        form = StepForm(f"foreach_{name}", given.kinds, ((0, len(lists) - 1 if at is None else at),), len(lists))
        run(form, found[0].function, group_of(lists, given.more), (*given.held, *given.numbers))

    def call(*args: Any, **keywords: Any) -> Any:
        args = (*args, *(keywords[n] for n in names[len(args) :] if n in keywords))
        out = [torch.empty_like(t) for t in _first_list(picked(args))]
        write(out, *args)
        return out

    return call, write


for _name in spec.ELEMENTWISE:
    _call, _write = elementwise(_name)
    impl(spec.ops[f"_foreach_{_name}"], devices=DEVICES, into=_write)(_call)


# ---- copies and norms -----------------------------------------------------------------------------------------------


@triton.jit
def same(x):
    return x


@triton.jit
def nothing(x):
    return tl.zeros_like(x)


COPY = StepForm("foreach_copy", "t", ((0, 1),), 2)
ZERO = StepForm("foreach_zero", "t", ((0, 0),), 1)


def copy_to(out: Any, self: Any, src: Any, non_blocking: bool = False) -> None:
    _check_lists(out, src)
    a, b = src[0].dtype, out[0].dtype
    if a not in TYPES or b not in TYPES or not (a is b or (a in FLOATS and b in FLOATS)):
        raise NotSupported(f"a copy from {a} to {b}")
    wide = torch.int32 if a is torch.bool else a
    run(COPY, same, group_of([src, out]), (), wide=torch.float64 if torch.float64 in (a, b) else wide)


def zero_to(out: Any, self: Any) -> None:
    _check_lists(out)
    if out[0].dtype not in TYPES:
        raise NotSupported(f"zeros of {out[0].dtype}")
    run(ZERO, nothing, group_of([out]), (), wide=torch.int32 if out[0].dtype is torch.bool else None)


def _check_lists(*lists: Any) -> None:
    if any(not isinstance(items, (list, tuple)) or not items or len(items) != len(lists[0]) for items in lists):
        raise NotSupported("no tensors, or lists of different lengths")
    if any(not isinstance(t, Tensor) or t.layout is not torch.strided for items in lists for t in items):
        raise NotSupported("a list of something else than strided tensors")


@impl(spec.ops["_foreach_copy"], devices=DEVICES, into=copy_to)
def foreach_copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    _check_lists(self, src)
    out = [torch.empty_like(t) for t in self]
    copy_to(out, self, src)
    return out


@impl(spec.ops["_foreach_zero"], devices=DEVICES, into=zero_to)
def foreach_zero(self: Any) -> Any:
    _check_lists(self)
    out = [torch.empty_like(t) for t in self]
    zero_to(out, self)
    return out


@impl(spec.ops["_foreach_norm"], devices=DEVICES)
def foreach_norm(self: Any, ord: Any = 2, dtype: Any = None) -> Any:
    """Euclidean norms. Squares are summed per chunk, then per tensor, in a fixed order."""
    _check_lists(self)
    kind = self[0].dtype
    if ord != 2 or dtype is not None or kind not in FLOATS[:3]:
        raise NotSupported(f"norms of order {ord}, of {kind} as {dtype}")
    group, n = group_of([self]), len(self)
    plan = planned(squares, group, ("foreach_norm",), lambda: _norm_plan(group))
    if not plan.launches:
        raise NotSupported("no elements")
    chunks = chunks_of(group, plan.block)
    table = table_of(group, chunks)
    shares, sums = (OutputSpec.of((k,), torch.float32).empty(self[0]) for k in (chunks.count, n))
    first, second = plan.launches
    first(table, chunks.rows, None, shares)
    second(table, shares, sums)
    return list(sums.sqrt_().to(kind).unbind())


def _norm_plan(group: TensorGroup) -> ListPlan:
    tiles = norm_tiles(width=group.dtypes[0].itemsize)
    count = sum(-(-k // tiles["BLOCK"]) for k in group.sizes)
    if not count:
        return ListPlan(tiles["BLOCK"], ())
    config = tiles.config(I=TYPES[group.dtypes[0]], LANES=lanes(group.dtypes))
    launches = (
        squares.ready((count, 1, 1), (), config),
        squares_of_each.ready((len(group.sizes), 1, 1), (), Tiles(512, BLOCK=4096).config(CHUNK=tiles["BLOCK"])),
    )
    return ListPlan(tiles["BLOCK"], launches)


# ---- optimizers -----------------------------------------------------------------------------------------------------


@triton.jit
def unscaled(g, scale):
    return g if scale is None else div(g, scale)


@triton.jit
def adam(
    p,
    g,
    m,
    v,
    most,
    step,
    lr,
    beta1,
    beta2,
    decay,
    eps,
    log1,
    log2,
    scale,
    MAXIMIZE: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    """log1, log2: logarithms of the betas. Bias corrections use float64, because float32 loses digits of 1 - beta."""
    stored = unscaled(g, scale)
    g = -stored if MAXIMIZE else stored
    lr = lr.to(p.dtype)
    decay = decay.to(p.dtype)
    if DECOUPLED:
        p = p - lr * decay * p
    else:
        g = g + decay * p
    m = m + (1 - beta1).to(p.dtype) * (g - m)
    v = beta2.to(p.dtype) * v + (1 - beta2).to(p.dtype) * g * g
    c1 = (1 - tl.exp(step.to(tl.float64) * log1)).to(p.dtype)
    c2 = sqrt((1 - tl.exp(step.to(tl.float64) * log2)).to(p.dtype))
    if most is None:
        top = v
    else:
        top = tl.maximum(most, v)
    p = p - div(lr, c1) * div(m, div(sqrt(top), c2) + eps.to(p.dtype))
    return p, stored, m, v, top


@triton.jit
def sgd(
    p, g, b, lr, momentum, dampening, decay, scale, MAXIMIZE: tl.constexpr, NESTEROV: tl.constexpr, FIRST: tl.constexpr
):
    stored = unscaled(g, scale)
    g = -stored if MAXIMIZE else stored
    g = g + decay.to(p.dtype) * p
    if b is None:
        moved = g
        new = g
    else:
        new = g if FIRST else momentum.to(p.dtype) * b + (1 - dampening).to(p.dtype) * g
        moved = g + momentum.to(p.dtype) * new if NESTEROV else new
    return p - lr.to(p.dtype) * moved, stored, new


@triton.jit
def adagrad(p, g, total, step, lr, lr_decay, decay, eps, scale, MAXIMIZE: tl.constexpr):
    stored = unscaled(g, scale)
    g = -stored if MAXIMIZE else stored
    g = g + decay.to(p.dtype) * p
    rate = (lr / (1 + (step.to(tl.float64) - 1) * lr_decay)).to(p.dtype)
    total = total + g * g
    return p - rate * div(g, sqrt(total) + eps.to(p.dtype)), stored, total


def _stepped(
    name: str,
    step: Any,
    lists: Lists,
    states: Any,
    numbers: Sequence[Any],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    absent: int,
    **constants: Any,
) -> None:
    """One optimizer step over lists of one dtype.

    `states`: a list of one-element tensors, or None; `absent`: the number of absent lists. STEP takes the lists, the
    states (if any), the numbers and the scale.
    """
    _check_lists(*lists)
    dtype, home = lists[0][0].dtype, lists[0][0].device
    if dtype not in FLOATS or any(items[0].dtype is not dtype for items in lists):
        raise NotSupported("tensors of several dtypes, or of integers")
    for t in (grad_scale, found_inf):
        if t is not None and (t.device != home or t.dtype is not torch.float32 or t.numel() != 1):
            raise NotSupported("a scale or flag on another device")
    more: tuple[tuple[int, ...], ...] = ()
    kinds = "t" * len(lists) + "-" * absent
    if states is not None:
        if len(states) != len(lists[0]) or any(
            t.dtype is not torch.float32 or t.device != home or t.numel() != 1 for t in states
        ):
            raise NotSupported("step counts that are not float32 numbers on the device")
        more, kinds = (tuple(t.data_ptr() for t in states),), kinds + "h"
    held: list[Tensor] = []
    runtime: list[float] = []
    for number in numbers:
        if isinstance(number, Tensor):
            if number.dtype is not torch.float32 or number.numel() != 1:
                raise NotSupported("a learning rate must be one float32 element")
            if number.is_cpu:
                number = number.item()
            elif number.device != home:
                raise NotSupported("a learning rate on another device")
        kinds += "p" if isinstance(number, Tensor) else "d"
        held += [number] if isinstance(number, Tensor) else []
        runtime += [] if isinstance(number, Tensor) else [float(number)]
    kinds += "-" if grad_scale is None else "p"
    held += [] if grad_scale is None else [grad_scale]
    writes = tuple((i, i) for i in range(len(lists)) if i != 1 or grad_scale is not None)
    form = StepForm(name, kinds, writes, len(lists), tuple(constants.items()), True)
    run(form, step, group_of(lists, more), (*held, *runtime), found_inf)


def _adam(
    decoupled: bool,
    self: Any,
    grads: Any,
    exp_avgs: Any,
    exp_avg_sqs: Any,
    max_exp_avg_sqs: Any,
    state_steps: Any,
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    lists = [self, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
    if not (0 < beta1 < 1 and 0 < beta2 < 1):
        raise NotSupported(f"betas of {beta1} and {beta2}")
    numbers = (lr, beta1, beta2, weight_decay, eps, math.log(beta1), math.log(beta2))
    _stepped(
        "fused_adam",
        adam,
        lists,
        state_steps,
        numbers,
        grad_scale,
        found_inf,
        not amsgrad,
        MAXIMIZE=bool(maximize),
        DECOUPLED=decoupled,
    )


def _sgd(
    self: Any,
    grads: Any,
    momentum_buffer_list: Any,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    moves = bool(momentum_buffer_list)
    lists = [self, grads, *([momentum_buffer_list] if moves else [])]
    numbers = (lr, momentum, dampening, weight_decay)
    _stepped(
        "fused_sgd",
        sgd,
        lists,
        None,
        numbers,
        grad_scale,
        found_inf,
        not moves,
        MAXIMIZE=bool(maximize),
        NESTEROV=bool(nesterov),
        FIRST=bool(is_first_step),
    )


def _adagrad(
    self: Any,
    grads: Any,
    state_sums: Any,
    state_steps: Any,
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    lists, numbers = [self, grads, state_sums], (lr, lr_decay, weight_decay, eps)
    _stepped("fused_adagrad", adagrad, lists, state_steps, numbers, grad_scale, found_inf, 0, MAXIMIZE=bool(maximize))


def mutating(name: str, fn: Callable[..., Any], result: Callable[..., Any] = lambda *args: None) -> None:
    """Register a function that writes to its arguments, both as the op and as its in-place overload."""
    named = spec.ops[name].spec.names
    positional = [p.name for p in spec.ops[name].spec.signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]

    def call(*args: Any, **keywords: Any) -> Any:
        fn(*args, **keywords)
        return result(*args)

    def into(out: Any, *args: Any) -> Any:
        named_args = dict(zip(named, args, strict=True))
        split = len(positional)
        fn(*args[:split], **{n: named_args[n] for n in named[split:]})
        return result(*args)

    impl(spec.ops[name], devices=DEVICES, into=into)(call)


mutating("_fused_adam_", functools.partial(_adam, False))
mutating("_fused_adamw_", functools.partial(_adam, True))
mutating("_fused_sgd_", _sgd)
mutating("_fused_adagrad_", _adagrad)


# ---- gradient scaling -----------------------------------------------------------------------------------------------


def _unscale(self: Any, found_inf: Tensor, inv_scale: Tensor) -> None:
    """x *= inv_scale; sets found_inf to 1 if an element of x is not finite."""
    _check_lists(self)
    home = self[0].device
    if self[0].dtype not in FLOATS[:3]:
        raise NotSupported(f"gradients of {self[0].dtype}")
    for t in (found_inf, inv_scale):
        if t.dtype is not torch.float32 or t.numel() != 1 or t.device != home:
            raise NotSupported("found_inf and inv_scale must be one float32 element on the gradients' device")
    group = group_of([self, self])
    run_chunks(scale_lists, group, (found_inf, inv_scale, 1.0), {"LANES": lanes(group.dtypes)}, "I O")


def _update_scale(scale_ptr, tracker_ptr, found_ptr, growth: tl.float64, backoff: tl.float64, interval):
    """Reduce the scale after an overflow. Increase it after `interval` steps without overflow, if it stays finite."""
    scale = tl.load(scale_ptr)
    count = tl.load(tracker_ptr)
    found = tl.load(found_ptr) != 0
    next_count = count + 1
    due = next_count == interval
    up = (scale * growth).to(tl.float32)
    up = tl.where(tl.abs(up) < INF, up, scale)
    tl.store(scale_ptr, tl.where(found, (scale * backoff).to(tl.float32), tl.where(due, up, scale)))
    tl.store(tracker_ptr, tl.where(found | due, 0, next_count))


update_scale = Launcher(_update_scale, sizes="")


def _update(
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> None:
    kinds = ((self, torch.float32), (growth_tracker, torch.int32), (found_inf, torch.float32))
    if any(t.numel() != 1 or t.dtype is not kind or t.device != self.device for t, kind in kinds):
        raise NotSupported("a scale, tracker or flag that is no number on the device")
    launch = update_scale.ready((1, 1, 1), (), Tiles(32).config())
    launch(
        self, growth_tracker, found_inf, float(scale_growth_factor), float(scale_backoff_factor), int(growth_interval)
    )


mutating("_amp_foreach_non_finite_check_and_unscale_", _unscale)
mutating("_amp_update_scale_", _update, lambda self, *rest: self)

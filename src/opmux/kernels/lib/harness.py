"""Generates an op's host code from a plan, which names the tensors to make contiguous, to allocate and to launch with.

    @planned(spec.rms_norm)
    def rms_norm(x: Tensor, weight: Tensor) -> Plan:
        rows = RowSizes.of(x=x)
        launch = rows.launch(kernel, tiles_of(n=rows.n, dtype=x.dtype), WIDE=wide_of(x.dtype))
        y, rstd = OutputSpec.of(x.shape, x.dtype), OutputSpec.of(x.shape[:-1], torch.float32)
        return Plan({"y": y, "rstd": rstd}, [launch], [*rows.strided, *strided(weight=weight)])

The planning function names the arguments of the op that its plan depends on. It is called once for each combination of
tensor dtypes, shapes, strides and devices, and of values of its other arguments. Before that, all arguments of the op
are checked against the op's signature, also those that the function does not name. The plan becomes one flat function
of all arguments of the op; a plan with a single launch becomes just this launch.

The kernel's parameter `x_ptr` is the argument, the result or the workspace named `x`. Numbers of the kernel that the
plan lacks (`eps`) are the op's arguments of the same name.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ...core import codegen
from ...core.registry import impl
from ...core.spec import Spec
from ...core.support import Support
from .config import Tiles
from .launch import Config, Launcher
from .plans import TENSOR_KEY, TENSOR_KEY_BELOW, table
from .rows import DEVICES, OutputSpec, Rows, even_rows


class Zeros(NamedTuple):
    """A tensor that is zeroed before the first launch, from index `begin` of its first dimension on."""

    output: OutputSpec
    begin: int = 0

    def empty(self, like: Tensor) -> Tensor:
        tensor = self.output.empty(like)
        (tensor[self.begin :] if self.begin else tensor).zero_()
        return tensor


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: Launcher
    grid: tuple[int, ...]
    config: Config
    # Entries that the kernel does not take are ignored. A function computes its number from the op's arguments per
    # call.
    numbers: Mapping[str, Any]
    # the kernel's name of a tensor -> the op's name if it differs, None if the tensor is absent
    names: Mapping[str, str | None] = {}

    def named(self, **names: str | None) -> Launch:
        return self._replace(names={**self.names, **names})

    def with_numbers(self, **numbers: Any) -> Launch:
        return self._replace(numbers={**self.numbers, **numbers})


Step = Launch | Callable[..., Any]


@dataclass
class Plan:
    """The work of an op for tensors of one dtype, shape, stride and device."""

    makes: Mapping[str, OutputSpec | Zeros]  # results and workspaces
    steps: Iterable[Step] = ()  # launches, and functions that write to the tensors named by their parameters
    strided: Iterable[str] = ()  # arguments that must be made contiguous
    # Name -> a function. It converts the argument of this name; if there is none, it computes a new value of this name
    # from the values that its parameters name.
    before: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    # name of a result -> a function that converts it
    after: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    # The names of the results, if they differ from the op's; "None" for a result that is not computed.
    returns: Sequence[str] | None = None

    @property
    def single(self) -> Launch | None:
        """The launch, if the plan is a single launch that needs no other work; else None."""
        steps = list(self.steps)
        if len(steps) != 1 or not isinstance(steps[0], Launch) or self.strided or self.before or self.after:
            return None
        if "None" in (self.returns or ()):
            return None
        whole = all(name in _tensors(steps[0]) and not isinstance(o, Zeros) for name, o in self.makes.items())
        return steps[0] if whole and not any(map(callable, steps[0].numbers.values())) else None


def planned(
    op: Any,
    *,
    below: bool = False,
    state: Mapping[str, Callable[[], Any]] = {},
    varying: Sequence[str] = (),
    **fields: Any,
) -> Callable[[Callable[..., Plan]], Callable[..., Any]]:
    """Turn a planning function into an impl of an op. `fields` are fields of `OpImpl`.

    `below`: also register a second function, for calls from ATen kernels. It makes one check fewer per tensor, because
    these calls never pass a negated view. `state`: settings of torch that the plan depends on. Each function is called
    at every call of the op, and its result is a parameter of the planning function. `varying`: arguments whose values
    differ in most calls. They are not part of the cache key; a step of the plan checks them.
    """

    def declare(make: Callable[..., Plan]) -> Callable[..., Any]:
        fn, fn_below = _functions(op.spec, make, state, varying)
        fields.setdefault("devices", DEVICES)
        return impl(op, below=fn_below if below else None, **fields)(fn)

    return declare


def planned_by(make: Callable[..., Plan], op: Any) -> Callable[..., Any]:
    """`planned` for a function that plans ops of different signatures: it takes the op's name and arguments."""

    support = Support(make)

    def plan(*args: Any) -> Plan:
        given = dict(zip(op.spec.names, args, strict=True))
        support.require(given)
        return make(op.spec.name, **given)

    plan.__signature__ = op.spec.signature  # type: ignore[attr-defined]
    plan.__module__, plan.__doc__ = make.__module__, make.__doc__
    return planned(op)(plan)


def host_code(
    op: Any, *, state: Mapping[str, Callable[[], Any]] = {}
) -> Callable[[Callable[..., Plan]], Callable[..., Any]]:
    """`planned` without registration, for a vendor that exports the function under the op's name."""
    return lambda make: _functions(op.spec, make, state)[0]


def _functions(
    spec: Spec, make: Callable[..., Plan], state: Mapping[str, Callable[[], Any]], varying: Sequence[str] = ()
) -> list[Callable[..., Any]]:
    """Two functions that find and call the plan for their arguments: the op's, and one for calls from ATen kernels.

    All of the op's arguments are checked against its contract. Arguments that the planning function takes are also
    checked against its annotations, which say what calls it supports. The other arguments are part of the cache key
    too: by value if they have rules, else by type.
    """
    decides, support = inspect.signature(make, eval_str=True), Support(make)
    others = {a.name: a for a in spec.contract.arguments if a.name not in (*decides.parameters, *varying)}
    names = [*decides.parameters, *others]

    def flat(*args: Any) -> Callable[..., Any]:
        arguments = dict(zip(names, args, strict=True))
        spec.contract.check(arguments)
        planned = {name: arguments[name] for name in decides.parameters}
        support.require(planned)
        return compiled(spec, make(*map(_builtin, planned.values())), planned)

    calls = {name: f"_{name}()" for name in state}
    scope = table(flat) | {f"_{name}": fn for name, fn in state.items()}
    shown = {n: f"float({n})" if _is_float(p.annotation) else n for n, p in spec.signature.parameters.items()}
    call = f"({', '.join(shown.values())})"
    also = {name: "{0}" if a.rules else "type({0})" for name, a in others.items()}
    fns = [
        codegen.lookup(make, look, scope, then=call, params=shown, calls=calls, also=also)
        for look in (TENSOR_KEY, TENSOR_KEY_BELOW)
    ]
    for fn in fns:
        fn.__name__ = fn.__qualname__ = spec.name
        fn.__module__, fn.__doc__ = make.__module__, make.__doc__
    return fns


def _is_float(annotation: Any) -> bool:
    """Whether an annotation is float or Annotated[float, ...].

    These arguments are converted to float, because Triton rejects numpy's numbers.
    """
    return annotation is float or getattr(annotation, "__origin__", None) is float


def _builtin(value: Any) -> Any:
    """Convert a numpy number to a Python number: Triton accepts only the latter as a constexpr."""
    return value.item() if type(value).__module__ == "numpy" else value


def compiled(spec: Spec, plan: Plan, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """A plan as a function of the op's arguments. `arguments`: the arguments that the plan was made for, by name."""
    return _Body(spec, plan, arguments).function()


class _Body:
    """Generates the source of a plan, line by line."""

    def __init__(self, spec: Spec, plan: Plan, arguments: Mapping[str, Any]):
        self.spec, self.plan, self.returns = spec, plan, spec.out if plan.returns is None else plan.returns
        self.like = next(name for name, value in arguments.items() if isinstance(value, Tensor))
        # names that have a value so far
        self.scope = {name for name in spec.names if arguments.get(name, 0) is not None}
        self.lines: list[str] = []
        # imports from C read `__builtins__` from the caller's globals
        self.globals: dict[str, Any] = {"__builtins__": __builtins__}

    def function(self) -> Callable[..., Any]:
        spec, plan, steps = self.spec, self.plan, list(self.plan.steps)
        if plan.single is not None:
            return self.bound(plan.single, spec.names, self.returns)
        for name in plan.strided:
            self.add(f"{name} = {name}.contiguous()")
        for name, fn in plan.before.items():
            self.add(f"{name} = {self.call(fn, [name] if name in self.scope else None)}")
            self.scope.add(name)
        launched = {name for step in steps if isinstance(step, Launch) for name in _tensors(step)}
        for name, output in plan.makes.items():
            if isinstance(output, Zeros) or name not in launched:
                self.allocate(name)
        for step in steps:
            self.step(step)
        for name, fn in plan.after.items():
            self.add(f"{name} = {self.call(fn, [name])}")
        self.add(f"return {', '.join(self.returns)}")
        text = f"def {spec.name}({', '.join(spec.names)}):\n" + "".join(f"    {line}\n" for line in self.lines)
        return types.FunctionType(_code(text, spec.name), self.globals)

    def add(self, line: str) -> None:
        self.lines.append(line)

    def call(self, fn: Callable[..., Any], args: Iterable[str] | None = None) -> str:
        """The source text of a call of `fn`. By default, its arguments are the values that its parameters name."""
        name = f"_{len(self.globals)}"
        self.globals[name] = fn
        return f"{name}({', '.join(inspect.signature(fn).parameters if args is None else args)})"

    def allocate(self, name: str) -> None:
        self.add(f"{name} = {self.call(self.plan.makes[name].empty, [self.like])}")
        self.scope.add(name)

    def step(self, step: Step) -> None:
        if not isinstance(step, Launch):
            self.add(self.call(step))
            return
        runtime = [n for n in step.kernel.numbers if callable(step.numbers.get(n)) or n not in step.numbers]
        values = [self.call(step.numbers[n]) if n in step.numbers else n for n in runtime]
        tensors = _tensors(step)
        if not self.scope.intersection(tensors):  # a launch that allocates needs a tensor argument, for the device
            self.allocate(next(n for n in self.plan.makes if n in tensors))
        used = list(dict.fromkeys(n for n in tensors if n in self.scope))
        makes = [n for n in self.plan.makes if n not in self.scope and n in tensors]
        call = self.call(self.bound(step, (*used, *runtime), makes), (*used, *values))
        self.add(f"{', '.join(makes)} = {call}" if makes else call)
        self.scope |= {*makes}

    def bound(self, step: Launch, takes: Iterable[str], returns: Iterable[str]) -> Callable[..., Any]:
        numbers = {name: value for name, value in step.numbers.items() if not callable(value)}
        makes: Any = {n: o for n, o in self.plan.makes.items() if n not in self.scope}
        grid = (*step.grid, 1, 1)[:3]
        return step.kernel.bind(takes, grid, step.config, numbers, makes, step.names, returns)


@functools.cache
def _code(text: str, name: str) -> types.CodeType:
    return codegen.function(text, name, f"host code of {name}", {}).__code__


def _tensors(step: Launch) -> list[str]:
    """The names of the tensors that a launch takes or allocates."""
    names = (step.names.get(name, name) for name in step.kernel.bare)
    return [name for name in names if name is not None]


# ---- sizes of rows --------------------------------------------------------------------------------------------------


def strided(**tensors: Tensor | None) -> list[str]:
    """The names of the tensors that are not contiguous."""
    return [name for name, t in tensors.items() if t is not None and not t.is_contiguous()]


class RowSizes(NamedTuple):
    """The rows of tensors of one shape [.., n]; there may be gaps between rows, as in one half of [.., 2n].

    A 0-dim tensor is one row of one element.
    """

    count: int
    n: int
    strides: dict[str, int]  # elements from one row to the next; 0 for a tensor that is None
    strided: list[str]  # tensors that must be made contiguous, because their rows are not evenly spaced

    @classmethod
    def of(cls, **tensors: Tensor | None) -> RowSizes:
        first = next(t for t in tensors.values() if t is not None)
        uneven = [name for name, t in tensors.items() if t is not None and not even_rows(t)]
        length = lambda t: t.shape[-1] if t.dim() else 1
        step = lambda name, t: length(t) if name in uneven or not t.dim() else Rows.of(t).stride
        strides = {name: 0 if t is None else step(name, t) for name, t in tensors.items()}
        return cls(first.shape[:-1].numel(), length(first), strides, uneven)

    def packed(self) -> RowSizes:
        """The sizes of contiguous copies: the same rows without gaps."""
        return RowSizes(self.count, self.n, dict.fromkeys(self.strides, self.n), [])

    @property
    def numbers(self) -> dict[str, int]:
        return {**{f"{name}_stride": s for name, s in self.strides.items()}, "n_rows": self.count, "n": self.n}

    def launch(self, kernel: Launcher, tiles: Tiles, *grid: int, **constants: Any) -> Launch:
        """A launch over the rows; without a grid, one program for every BLOCK_M rows."""
        if not grid and "BLOCK_M" not in tiles.sizes:
            raise TypeError(
                f"rows.launch of {kernel.kernel.__name__}: without a grid, one program computes BLOCK_M rows, and the "
                f"tiles have no BLOCK_M ({tiles}). Add BLOCK_M to the tiles, or pass a grid: "
                f"rows.launch(kernel, tiles, rows.count)"
            )
        programs = grid or (-(-self.count // tiles["BLOCK_M"]),)
        return Launch(kernel, programs, tiles.config(**constants), self.numbers)

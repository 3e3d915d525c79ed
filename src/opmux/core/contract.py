"""The argument contract of an op: reads the op's signature, checks arguments against it, and raises errors.

    def rms_norm(x: Float[Tensor, "*rows n"], weight: Float[Tensor, "n"], eps: Annotated[float, at_least(0)] = 1e-6)

A tensor annotation gives dtypes and dimensions in the notation of jaxtyping. Dimensions of the same name must have the
same size. `*rows` is any number of dimensions, `#n` is n or 1, `2*n` is twice n, `n+1` is n plus 1, `3` is 3, `_` is
any size, and `...` is any dimensions.
All tensors must be on one device. If a dimension has the name of an int argument, that argument gives its size (`topk`,
`topk*tokens`). Other sizes come from the first tensor that names them. Gradients (`Grad`) and tensors whose shape is
computed from other arguments (`shape`) are checked last.
Further rules, such as `same_dtype("x")` or `between(0, 1)`, are listed after a tensor's dimensions. For an argument of
another type, `Annotated` lists them.

A check takes microseconds, so it never runs on the fast path to a kernel. It runs when a launch for new shapes is
planned, before a reference runs, and after an implementation has failed.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
import numbers
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from .errors import BadArgument
from .lock import cached_property
from .shapes import Dims, Size
from .tensors import FLOATS, dtype_name

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


# ---- rules ----------------------------------------------------------------------------------------------------------


class Rule:
    """One requirement on an argument. `problem` returns the text after "must", or None if the value is valid.

    The text may name other arguments in braces: "be float32, the dtype of {x}". If the error must name a part of the
    argument (an item of a list), the rule overrides `check` instead.
    """

    error: type[Exception] = ValueError
    late = False  # whether the rule reads other tensors, so that they must be checked first

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        raise NotImplementedError

    def got(self, value: Any) -> str:
        return shown(value)

    def check(self, op: str, name: str, value: Any, given: Mapping[str, Any]) -> None:
        """Raise BadArgument if the value is invalid."""
        problem = self.problem(value, given)
        if problem is not None:
            raise BadArgument.of(op, name, problem, self.got(value), self.error)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        """For tests: invalid values, each with a few words on what is wrong."""
        return iter(())

    def doc(self) -> str:
        """A few words for the documentation of the argument."""
        return ""


@dataclass(frozen=True)
class dtypes(Rule):
    """A tensor of one of these dtypes."""

    allowed: tuple[torch.dtype, ...]
    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if value.dtype in self.allowed else "be " + either(map(dtype_name, self.allowed))

    def got(self, value: Any) -> str:
        return dtype_name(value.dtype)

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        for other in (torch.int32, torch.float32, torch.bool, torch.complex64):
            if other not in self.allowed:
                yield dtype_name(other), torch.zeros(value.shape, dtype=other, device=value.device)
                return


@dataclass(frozen=True)
class real(Rule):
    """A tensor of any dtype that is not complex."""

    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return "be bool, an integer or a float" if value.dtype.is_complex else None

    def got(self, value: Any) -> str:
        return dtype_name(value.dtype)

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "complex", torch.zeros(value.shape, dtype=torch.complex64, device=value.device)

    def doc(self) -> str:
        return "not complex"


@dataclass(frozen=True)
class or_cpu(Rule):
    """A tensor that may be on the CPU even if the op's other tensors are not."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None  # `Contract` compares devices

    def doc(self) -> str:
        return "on the same device or on the CPU"


@dataclass(frozen=True)
class same_dtype(Rule):
    """A tensor of the dtype of another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, Tensor) or value.dtype == other.dtype:
            return None
        return f"be {dtype_name(other.dtype)}, the dtype of {{{self.of}}}"

    def got(self, value: Any) -> str:
        return dtype_name(value.dtype)

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        other = torch.bfloat16 if value.dtype is not torch.bfloat16 else torch.float32
        yield "another dtype", value.to(other)

    def doc(self) -> str:
        return f"of the dtype of {self.of}"


@dataclass(frozen=True)
class between(Rule):
    """A number from `low` to `high`; with `open`, the bounds themselves are excluded."""

    low: float | None = None
    high: float | None = None
    open: bool = False

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        low = self.low is None or (value > self.low if self.open else value >= self.low)
        high = self.high is None or (value < self.high if self.open else value <= self.high)
        return None if low and high else f"be {self.doc()}"

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        if self.low is not None:
            yield "too small", self.low if self.open else self.low - 1
        if self.high is not None:
            yield "too large", self.high if self.open else self.high + 1
        yield "NaN", math.nan

    def doc(self) -> str:
        if self.low is not None and self.high is not None:
            return f"between {self.low} and {self.high}" + (", exclusive" if self.open else "")
        if self.low is not None:
            return f"{'greater than' if self.open else 'at least'} {self.low}"
        return f"{'less than' if self.open else 'at most'} {self.high}"


def at_least(low: float) -> between:
    return between(low)


@dataclass(frozen=True)
class below(Rule):
    """A number less than another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        most = given.get(self.of)
        return None if most is None or value < most else f"be less than {most}, the {{{self.of}}}"

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "too large", 1 << 20

    def doc(self) -> str:
        return f"less than {self.of}"


@dataclass(frozen=True, eq=False)  # members of two int enums compare equal, and `Annotated` drops equal duplicates
class one_of(Rule):
    """One of these values."""

    allowed: tuple[Any, ...]

    def __init__(self, *allowed: Any):
        object.__setattr__(self, "allowed", allowed)
        object.__setattr__(self, "error", TypeError if isinstance(allowed[0], torch.dtype) else ValueError)

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        try:
            return None if value in self.allowed else f"be {self.doc()}"
        except (TypeError, RuntimeError):  # a tensor: `==` is elementwise
            return f"be {self.doc()}"

    def got(self, value: Any) -> str:
        return name_of(value)

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        others = (torch.int8, torch.bool, torch.complex64) if isinstance(value, torch.dtype) else ("no such thing",)
        yield "unknown", next(o for o in others if o not in self.allowed)

    def doc(self) -> str:
        return "one of " + ", ".join(map(name_of, self.allowed))


@dataclass(frozen=True)
class dim_of(Rule):
    """A dimension of another argument; negative values count from the last. A 0-dim tensor counts as 1-dim.

    With `new`, the value is a position where a dimension can be inserted, from 0 to `dim()`.
    """

    of: str
    new: bool = False

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, Tensor):
            return None
        rank = max(other.dim(), 1)
        low, high = (0, other.dim()) if self.new else (-rank, rank - 1)
        if low <= value <= high:
            return None
        return f"be between {low} and {high}, as {{{self.of}}} is {tuple(other.shape)}"

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield "too large", 99
        yield "too small", -99

    def doc(self) -> str:
        return f"a dimension of {self.of}" if not self.new else f"from 0 to the number of dimensions of {self.of}"


@dataclass(frozen=True)
class broadcasts_to(Rule):
    """A tensor that broadcasts to the shape of another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, Tensor):
            return None
        own, to = tuple(value.shape), tuple(other.shape)
        if len(own) <= len(to) and all(a in (1, b) for a, b in zip(own, to[len(to) - len(own) :], strict=True)):
            return None
        return f"broadcast to {to}, the shape of {{{self.of}}}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "too many dimensions", value[(None,) * 9]
        if value.dim() and value.shape[-1] > 2:
            yield "short", value[..., :-1]

    def doc(self) -> str:
        return f"broadcasts to {self.of}"


@dataclass(frozen=True)
class each_row(Rule):
    """A tensor of any shape with one element for each row of another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if not isinstance(other, Tensor):
            return None
        rows = math.prod(other.shape[:-1])
        if value.numel() == rows:
            return None
        return f"have {rows} elements, one for each row of {{{self.of}}} {tuple(other.shape)}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "one more", value.new_zeros(value.numel() + 1)

    def doc(self) -> str:
        return f"one element for each row of {self.of}"


@dataclass(frozen=True)
class single(Rule):
    """A tensor of any shape with one element."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if value.numel() == 1 else "have shape (1,)"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "two elements", value.new_zeros(2)

    def doc(self) -> str:
        return "one element"


@dataclass(frozen=True)
class one_or_each_row(Rule):
    """A tensor of any shape with one element, or with one element per row of another argument."""

    of: str

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        other = given.get(self.of)
        if value.numel() == 1 or not isinstance(other, Tensor):
            return None
        rows = math.prod(other.shape[:-1])
        if value.numel() == rows:
            return None
        return f"have one element, or {rows}, one for each row of {{{self.of}}} {tuple(other.shape)}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "neither", value.new_zeros(1_000_003)

    def doc(self) -> str:
        return f"one element, or one for each row of {self.of}"


@dataclass(frozen=True)
class contiguous(Rule):
    """A contiguous tensor."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return None if value.is_contiguous() else "be contiguous"

    def got(self, value: Any) -> str:
        return f"strides {tuple(value.stride())}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        if value.numel() > 1:
            yield "strided", value.new_empty((*value.shape, 2)).copy_(value[..., None].expand(*value.shape, 2))[..., 0]

    def doc(self) -> str:
        return "contiguous"


@dataclass(frozen=True)
class each(Rule):
    """A list whose items all satisfy a rule: `Annotated[list[int], each(at_least(0))]`."""

    rule: Rule

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", self.rule.error)

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        return next((f"{p} in every item" for p in (self.rule.problem(v, given) for v in value) if p), None)

    def got(self, value: Any) -> str:
        wrong = (f"{self.rule.got(v)} at index {i}" for i, v in enumerate(value) if self.rule.problem(v, {}))
        return next(wrong, shown(value))  # nothing is found if the rule needs another argument

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        for word, item in self.rule.wrong(value[0]) if value else ():
            yield f"an item {word}", [*value[:-1], item]

    def doc(self) -> str:
        return f"each {self.rule.doc()}"


@dataclass(frozen=True)
class shape(Rule):
    """A shape computed from other arguments: `shape(lambda x, two_d: block_scales(x.shape, two_d))`.

    None in the computed shape accepts any size.
    """

    of: Callable[..., tuple[int | None, ...]]
    text: str = ""  # shown in the documentation
    none: bool = False  # whether `of` accepts None; if not, an argument that is None disables the check
    least: bool = False  # whether a larger size is accepted
    late = True

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        names = parameters(self.of)
        if not all(n in given and (self.none or given[n] is not None) for n in names):
            return None
        wanted = tuple(self.of(*(given[n] for n in names)))
        if len(wanted) == value.dim() and all(map(self._fits, value.shape, wanted)):
            return None
        text = str(tuple("any" if n is None else n for n in wanted)).replace("'", "")
        return f"have shape {text}{' or larger' if self.least else ''}{because(names, given)}"

    def _fits(self, size: int, wanted: int | None) -> bool:
        return wanted is None or size == wanted or (self.least and size > wanted)

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "one dimension more", value[None]
        for at in range(value.dim()):
            if value.shape[at] > 1:
                yield f"short in dimension {at}", value.narrow(at, 0, value.shape[at] - 1)

    def doc(self) -> str:
        return self.text


def because(names: Iterable[str], given: Mapping[str, Any]) -> str:
    """Why an error expects a size: the shapes of the tensors it was computed from; without tensors, the ints."""
    tensors = [f"{{{n}}} is {tuple(given[n].shape)}" for n in names if isinstance(given[n], Tensor)]
    ints = [f"{{{n}}} is {given[n]}" for n in names if type(given[n]) is int]
    found = " and ".join(tensors or ints)
    return f", as {found}" if found else ""


# ---- annotations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorForm:
    """The annotation of a tensor."""

    kind: DtypeKind
    dims: Dims
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class DtypeKind:
    """A set of dtypes: `Float[Tensor, "*rows n"]` is a tensor of one of them."""

    name: str
    dtypes: tuple[torch.dtype, ...] | None  # None: any
    last: bool = False  # checked last, so that sizes are taken from other arguments

    def __getitem__(self, item: Any) -> Any:
        of, text, *rules = item if isinstance(item, tuple) else (item, "...")
        kind = self
        if self.dtypes is not None:
            rules = [dtypes(self.dtypes), *rules]
        elif rules and type(rules[0]) is dtypes:  # shown in the documentation
            kind = DtypeKind(either(map(dtype_name, rules[0].allowed)), None, self.last)
        return Annotated[of, TensorForm(kind, Dims.of(text), tuple(rules))]


if TYPE_CHECKING:  # a type checker sees `Annotated`, with "*rows n" as metadata
    from typing import Annotated as AnyGrad
    from typing import Annotated as AnyTensor
    from typing import Annotated as Bool
    from typing import Annotated as Byte
    from typing import Annotated as Float
    from typing import Annotated as Float32
    from typing import Annotated as Grad
    from typing import Annotated as Index
    from typing import Annotated as Int
    from typing import Annotated as Int8
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as Mask
    from typing import Annotated as Number
else:
    AnyTensor = DtypeKind("any", None)
    AnyGrad = DtypeKind("any", None, last=True)
    Float = DtypeKind("float", FLOATS)
    Grad = DtypeKind("float", FLOATS, last=True)
    Float32 = DtypeKind("float32", (torch.float32,))
    Int = DtypeKind("int", INTS)
    Int8 = DtypeKind("int8", (torch.int8,))
    Int32 = DtypeKind("int32", (torch.int32,))
    Int64 = DtypeKind("int64", (torch.int64,))
    Index = DtypeKind("index", (torch.int32, torch.int64))
    Bool = DtypeKind("bool", (torch.bool,))
    Mask = DtypeKind("bool or uint8", (torch.bool, torch.uint8))
    Byte = DtypeKind("uint8", (torch.uint8,))
    Number = DtypeKind("float, int or bool", (*FLOATS, *INTS, torch.bool))


# ---- an op's arguments ----------------------------------------------------------------------------------------------

REAL, INTEGRAL = (numbers.Real, torch.SymFloat, torch.SymInt), (numbers.Integral, torch.SymInt)


def _is_list_of(kind: Any, value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(TYPES[kind][0], value))


TYPES: dict[Any, tuple[Callable[[Any], bool], str]] = {
    float: (lambda v: type(v) in (float, int) or (isinstance(v, REAL) and type(v) is not bool), "a number"),
    int: (lambda v: type(v) is int or (isinstance(v, INTEGRAL) and type(v) is not bool), "an int"),
    bool: (lambda v: type(v) is bool or isinstance(v, (torch.SymBool, *INTEGRAL)), "a bool"),
    str: (lambda v: isinstance(v, str), "a str"),
    torch.dtype: (lambda v: isinstance(v, torch.dtype), "a torch.dtype"),
    torch.Tensor: (lambda v: isinstance(v, Tensor), "a Tensor"),
    list[Any]: (lambda v: isinstance(v, (list, tuple)), "a list"),
}
for _type, _words in (
    (int, "ints"),
    (float, "numbers"),
    (bool, "bools"),
    (Tensor, "Tensors"),
    (list[int], "lists of ints"),
):
    TYPES[list[_type]] = (functools.partial(_is_list_of, _type), f"a list of {_words}")


@dataclass(frozen=True)
class Argument:
    """One argument of an op: its Python type, and for a tensor its dtypes and shape."""

    name: str
    type: type | None  # a key of TYPES, or None for any other annotation
    optional: bool
    form: TensorForm | None
    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, name: str, hint: Any) -> Argument:
        options = [h for h in typing.get_args(hint) if h is not type(None)] if is_union(hint) else [hint]
        optional = is_union(hint) and type(None) in typing.get_args(hint)
        if len(options) != 1:  # a tensor or a number
            return cls(name, None, optional, None, ())
        (one,) = options
        notes = getattr(one, "__metadata__", ())
        plain = typing.get_args(one)[0] if notes else one
        form = next((n for n in notes if isinstance(n, TensorForm)), None)
        rules = form.rules if form is not None else tuple(n for n in notes if isinstance(n, Rule))
        return cls(name, plain if plain in TYPES else None, optional, form, rules)

    @cached_property
    def or_cpu(self) -> bool:
        return any(isinstance(r, or_cpu) for r in self.rules)

    def type_problem(self, value: Any) -> str | None:
        if self.type is None or TYPES[self.type][0](value):
            return None
        return f"be {TYPES[self.type][1]}" + (" or None" if self.optional else "")

    def type_got(self, value: Any) -> str:
        """The wrong value for the error message; for a list, its first wrong item."""
        item_type = next(iter(typing.get_args(self.type)), None)
        if item_type is None or not isinstance(value, (list, tuple)):
            return shown(value)
        return next(f"{shown(v)} at index {i}" for i, v in enumerate(value) if not TYPES[item_type][0](v))

    def doc(self) -> str:
        """Dtype, shape and rules in a few words."""
        if self.form is None:
            return ", ".join(filter(None, (r.doc() for r in self.rules)))
        explicit_shape = any(isinstance(r, shape) and r.text for r in self.form.rules)
        head = self.form.kind.name + ("" if explicit_shape else f" {self.form.dims}")
        words = [head, *(r.doc() for r in self.form.rules)]
        return ", ".join(filter(None, [*words, "optional" if self.optional else ""]))


Where = Callable[..., None]  # called with the op's name, and with the arguments that its parameters name, by keyword


@dataclass(frozen=True, eq=False)
class Contract:
    """The requirements on the arguments of an op."""

    op: str
    arguments: tuple[Argument, ...]
    where: tuple[Where, ...] = ()  # checks that annotations cannot express
    _order: tuple[Argument, ...] = field(init=False)

    def __post_init__(self) -> None:
        late = lambda a: a.form.kind.last or any(r.late for r in a.rules)
        object.__setattr__(self, "_order", tuple(sorted((a for a in self.arguments if a.form is not None), key=late)))

    @classmethod
    def of(cls, op: str, hints: Mapping[str, Any], where: Iterable[Where] = ()) -> Contract:
        made = tuple(Argument.of(n, h) for n, h in hints.items() if n != "return")
        return cls(op, made, tuple(where))

    @property
    def plain(self) -> bool:
        """Whether all arguments are tensors, numbers, strings or dtypes, so that they can be a cache key."""
        return all(a.type is not None and (a.type == list[int] or not is_list(a.type)) for a in self.arguments)

    def check(self, given: Mapping[str, Any], op: str | None = None) -> None:
        """Raise BadArgument for the first invalid argument. Names missing from `given` are not checked."""
        op = op or self.op
        for a, right in self._typed:  # types first, as rules may read other arguments
            value = given.get(a.name, a)  # `a` marks a missing argument
            if value is not a and not right(value) and not (value is None and a.optional):
                raise BadArgument.of(op, a.name, str(a.type_problem(value)), a.type_got(value), TypeError)
        for a in self._ruled:
            value = given.get(a.name, a)
            if value is not a and not (value is None and a.optional):
                self._rules(op, a, value, given)
        self._tensors(op, given)
        for where in self.where:
            wanted = parameters(where)[1:]
            if all(n in given for n in wanted):
                where(op, **{n: given[n] for n in wanted})

    @cached_property
    def declared(self) -> bool:
        """Whether any argument has rules beyond its Python type."""
        return bool(self.where) or any(a.form is not None or a.rules for a in self.arguments)

    @cached_property
    def _typed(self) -> tuple[tuple[Argument, Callable[[Any], bool]], ...]:
        """The arguments of a known Python type, each with a function that tests whether a value has that type."""
        return tuple((a, TYPES[a.type][0]) for a in self.arguments if a.type is not None)

    @cached_property
    def _ruled(self) -> tuple[Argument, ...]:
        """The non-tensor arguments with rules."""
        return tuple(a for a in self.arguments if a.form is None and a.rules)

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        """The int arguments whose names are used as dimensions."""
        dims = [w for a in self._order if a.form is not None for w in a.form.dims.words]
        dim_names = {name for w in dims for name in (w.name, w.factor)}
        return tuple(a.name for a in self.arguments if a.type is int and a.name in dim_names)

    def _tensors(self, op: str, given: Mapping[str, Any]) -> None:
        sizes = {n: Size(given[n], n) for n in self._numbers if given.get(n) is not None}
        first: tuple[str, Tensor] | None = None
        for a in self._order:
            value = given.get(a.name)
            if value is None:
                continue
            assert a.form is not None
            self._rules(op, a, value, given)
            if not a.form.dims.match(value.shape, sizes, a.name):
                known = {n: s for n, s in sizes.items() if s.of != a.name}
                raise BadArgument.of(op, a.name, self._shape(a.form.dims, known, given, value.dim()), shown(value))
            if first is None:
                first = None if a.or_cpu else (a.name, value)
            elif value.device != first[1].device and not (a.or_cpu and value.is_cpu):
                on = f"be on {first[1].device}, the device of {{{first[0]}}}" + (", or on the CPU" if a.or_cpu else "")
                raise BadArgument.of(op, a.name, on, str(value.device), ValueError)

    @staticmethod
    def _rules(op: str, a: Argument, value: Any, given: Mapping[str, Any]) -> None:
        for rule in a.rules:
            rule.check(op, a.name, value, given)

    def _shape(self, dims: Dims, sizes: Mapping[str, Size], given: Mapping[str, Any], rank: int) -> str:
        """The expected shape and the reason. Unknown sizes are shown by name."""
        wanted, fixed = dims.wanted(sizes), dims.fixed
        sources = {s.of for n, s in sizes.items() if any(n in (w.name, w.factor) for w in dims.words)}
        if wanted is None and (rank < fixed or (rank > fixed and dims.star is None)):
            least = "at least " if dims.star is not None else ""
            return f"have {least}{fixed} dimension{'s'[: fixed != 1]}, {dims}"
        if wanted is None and not sources:
            return f"have shape {dims}"
        shape = wanted if wanted is not None else dims.partly(sizes)
        forms = {a.name: a.form.dims for a in self._order if a.form is not None}
        if len(sources) == 1 and forms.get(next(iter(sources))) == dims:
            return f"have shape {shape}, that of {{{next(iter(sources))}}}"
        of = [f"{{{n}}} is {given[n]}" for n in self._numbers if n in sources]
        of = " and ".join([*of, *(f"{{{n}}} {tuple(given[n].shape)} is {forms[n]}" for n in forms if n in sources)])
        return f"have shape {shape}" + (f", {dims} where {of}" if of else f", {dims}")

    def documented(self, doc: str) -> str:
        """The docstring with dtypes and shapes added to its `Args:`. Without `Args:`, a new one lists the arguments."""
        notes = {a.name: f"{a.name} ({a.doc()})" for a in self.arguments if a.doc()}
        head, found, tail = doc.partition("Args:\n")
        if not found:
            if not notes:
                return doc
            return f"{doc}\n\nArgs:\n" + "\n".join(f"    {note}" for note in notes.values())
        lines = tail.split("\n")
        for i, line in enumerate(lines):
            name, colon, text = line.strip().partition(":")
            if line.startswith("    ") and colon and name in notes:
                lines[i] = f"    {notes.pop(name)}:{text}"
        return head + found + "\n".join(lines)

    def bad(self, a: Argument, good: Mapping[str, Any]) -> Iterator[tuple[str, bool, dict[str, Any]]]:
        """For tests: calls that must raise. Each is a copy of the valid call `good` with another value of argument `a`.

        Yields (what is wrong, whether all Python types are right, the arguments).
        """
        value = good[a.name]
        types: list[tuple[str, Any]] = []
        if a.type is not None:
            types = [("a list", [value])] if a.type is Tensor else [("an object", object())]
            types += [] if a.optional or a.type is bool else [("None", None)]  # torch accepts None for False
        for word, wrong in types:
            yield word, False, {**good, a.name: wrong}
        for word, wrong in self._wrong(a, value, good):
            yield word, a.type is not None and a.type_problem(wrong) is None, {**good, a.name: wrong}

    def _wrong(self, a: Argument, value: Any, good: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for rule in a.rules:
            for word, wrong in rule.wrong(value):
                if not rule.late or rule.problem(wrong, good) is not None:  # the rule may accept this size
                    yield word, wrong
        if a.form is None:
            return
        others = [o for o in self._order if o.name != a.name and isinstance(good.get(o.name), Tensor)]
        if others and (a.or_cpu or not all(o.or_cpu for o in others)):
            away = "meta" if value.is_cpu or a.or_cpu else "cpu"
            yield "another device", torch.empty_like(value, device=away)
        yield from self._wrong_shapes(a.form.dims, value, others)

    def _wrong_shapes(self, dims: Dims, value: Tensor, others: list[Argument]) -> Iterator[tuple[str, Tensor]]:
        fixed = dims.fixed
        if fixed and value.dim():
            yield "0-dim", value.new_zeros(())
        if dims.star is None:
            yield "one dimension more", value[None]
        shared = {w.name for o in others if o.form is not None for w in o.form.dims.words if w.name}
        shared.update(self._numbers)
        for at, word in enumerate(dims.words):
            before = dims.star is None or at <= dims.star
            axis = at if before else at - len(dims.words)
            checked = word.name in shared or word.size is not None or word.factor not in (1, *self._numbers)
            if word.star and value.dim() == fixed:
                continue
            if checked and not word.broadcast and value.shape[axis] > 1:
                yield f"short {word}", value.narrow(axis, 0, value.shape[axis] - 1)


@functools.cache
def parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(fn).parameters)


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union or type(hint).__name__ == "UnionType"


def is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def name_of(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return dtype_name(value) if isinstance(value, torch.dtype) else repr(value)


def shown(value: Any) -> str:
    """A value in an error message: a tensor's shape, a number or short string itself, otherwise its type's name."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape)) if value.dim() else "a 0-dim tensor"
    if (
        value is None
        or isinstance(value, (bool, int, float, torch.dtype))
        or (isinstance(value, str) and len(value) < 60)
    ):
        return name_of(value)
    return type(value).__name__

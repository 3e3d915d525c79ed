"""Derives Liger's Functions, functions and modules from one declaration of their arguments.

Each Function of Liger declares its arguments: in the signature of `apply`, or as text if `apply` only passes them on by
name. The arguments of its function in `liger_kernel.transformers.functional` (`functional`) and of its module
(`LigerModule`) are derived from them.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .names import ops

REQUIRED = inspect.Parameter.empty
# Arguments that select how Liger's kernels run; they have no effect here.
WITHOUT_EFFECT = {"allow_fp32", "chunk_size", "compiled", "m_tiles_per_cluster"}


class LigerArguments:
    """The parameters of one of Liger's functions, in order, with their defaults."""

    def __init__(self, owner: str, defaults: Mapping[str, Any]):
        self.owner, self.names, self.defaults = owner, tuple(defaults), tuple(defaults.values())
        self.plain = tuple(map(plain, self.names))
        self.required = sum(default is REQUIRED for default in self.defaults)

    @classmethod
    def parse(
        cls, owner: str, text: str, like: LigerArguments | None = None, names: Mapping[str, str] = {}
    ) -> LigerArguments:
        """Parse text such as "x, weight, eps=1e-6".

        A name without a default gets the default that its parameter has in `like`. `names` maps the name to this
        parameter's name if they differ. "=required" means no default.
        """
        known = {} if like is None else like.by_name(like.defaults)
        defaults = {}
        for argument in text.split(", "):
            name, _, value = argument.partition("=")
            if value == "required":
                defaults[name] = REQUIRED
            else:
                defaults[name] = ast.literal_eval(value) if value else known.get(plain(names.get(name, name)), REQUIRED)
        return cls(owner, defaults)

    def in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of all parameters, in order, for a call with these arguments."""
        count = len(args)
        if not kwargs and self.required <= count <= len(self.names):
            return args + self.defaults[count:]
        names = self.names[count:]
        values = args + tuple(kwargs.get(name, default) for name, default in zip(names, self.defaults[count:]))
        if count > len(self.names) or not kwargs.keys() <= set(names) or any(v is REQUIRED for v in values):
            try:
                self.signature().bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.owner}() {error}") from None
        return values

    def by_name(self, values: Iterable[Any]) -> dict[str, Any]:
        """Map each parameter's plain name to its value; `values` are in the order of the parameters."""
        return dict(zip(self.plain, values))

    def signature(self, *first: str) -> inspect.Signature:
        """An inspect.Signature of the names in `first` (for example "self"), followed by the parameters."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = [*((name, REQUIRED) for name in first), *zip(self.names, self.defaults)]
        return inspect.Signature([inspect.Parameter(name, kind, default=default) for name, default in defaults])

    def describe(self, fn: Callable[..., Any], doc: str | None = None, *first: str) -> Any:
        """Give `fn(*args, **kwargs)` these parameters as its signature, and a name and a docstring."""
        function: Any = fn
        function.__signature__ = self.signature(*first)
        function.__name__, function.__qualname__, function.__doc__ = self.owner.rpartition(".")[2], self.owner, doc
        return function


def plain(name: str) -> str:
    """Remove the leading _ that some of Liger's argument names have (`_input`), to compare names."""
    return name.lstrip("_")


class LigerFunction:
    """A Function of Liger: `apply` is a differentiable function of opmux, with Liger's arguments.

    It is not an autograd.Function, because opmux's functions have their own gradients.

    A subclass either defines `apply`, or is declared with `calls`, a function of opmux, and `takes`, Liger's arguments
    as text. Arguments are passed to `calls` by name; further keywords map Liger's name of an argument to its name in
    `calls`. Arguments in `reads` are not passed to `calls`; the subclass's `call` reads them.
    """

    apply: Callable[..., Any]
    calls: ClassVar[Callable[..., Any]]
    arguments: ClassVar[LigerArguments]
    targets: ClassVar[dict[str, str]]  # Liger's plain name -> the argument's name in `calls`
    in_ops: ClassVar[bool] = True  # whether the Function is in liger_kernel.ops, where a vendor may replace it

    def __init_subclass__(
        cls, calls: Callable[..., Any] | None = None, takes: str = "", reads: str = "", **names: str
    ) -> None:
        if not {"forward", "backward"}.isdisjoint(vars(cls)):
            raise TypeError(
                f"{cls.__name__}: Functions of opmux's liger_kernel have `apply` alone; "
                f"derive from torch.autograd.Function to write a forward and a backward"
            )
        owner = f"{cls.__qualname__}.apply"
        if calls is not None:
            cls.calls, cls.arguments, known = staticmethod(calls), LigerArguments.parse(owner, takes), parameters(calls)
            targets = {plain(name): names.get(name, plain(name)) for name in cls.arguments.names}
            cls.targets = {name: target for name, target in targets.items() if target in known}
            unknown = targets.keys() - cls.targets.keys() - WITHOUT_EFFECT - set(reads.split())
            if unknown:
                raise TypeError(f"{cls.__name__}: {calls.__name__} has no {', '.join(sorted(unknown))}")
            apply = lambda *args, **kwargs: cls.call(cls.arguments.by_name(cls.arguments.in_order(args, kwargs)))
            cls.apply = staticmethod(cls.arguments.describe(apply, cls.__doc__))
        elif "apply" in vars(cls):
            cls.arguments = LigerArguments(owner, parameters(cls.apply))

    @classmethod
    def passed(cls, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for `calls`, by their names there."""
        return {target: args[name] for name, target in cls.targets.items()}

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        """Compute the result from Liger's arguments by name. Subclasses override it if more than the names differ."""
        return cls.calls(**cls.passed(args))

    @classmethod
    def home(cls) -> Any:
        """The module to read the Function from, at each call, because a vendor may replace it in `liger_kernel.ops`."""
        return ops if cls.in_ops else sys.modules[cls.__module__]


def parameters(fn: Callable[..., Any]) -> dict[str, Any]:
    """Parameter name -> default, for a function."""
    return {name: parameter.default for name, parameter in inspect.signature(fn).parameters.items()}


def functional(
    name: str,
    function: type[LigerFunction],
    takes: str | None = None,
    result: Callable[[Any], Any] | None = None,
    **names: str,
) -> Any:
    """Create a function of `liger_kernel.transformers.functional` that calls a Function.

    Functions that models call in every layer are written by hand: a derived function takes 0.5 us more per call.

    Args:
        name: the name of the function to create.
        function: the Function; it gets all arguments by position, as an autograd.Function does.
        takes: the arguments as text, if they differ from the Function's. An argument without a default gets the
            Function's default.
        result: computes the result from the Function's result.
        names: argument name -> its name in the Function, where they differ.
    """
    theirs, home = function.arguments, function.home()
    declared = LigerArguments.parse(name, ", ".join(theirs.names) if takes is None else takes, theirs, names)
    required, count, function_name = declared.required, len(declared.names), function.__name__
    order = {plain(names.get(n, n)): i for i, n in enumerate(declared.names)}
    remaining = {plain(n): default for n, default in zip(theirs.names, theirs.defaults) if plain(n) not in order}
    order |= {n: count + i for i, n in enumerate(remaining)}
    defaults, positions = (*declared.defaults, *remaining.values()), [order[plain(n)] for n in theirs.names]
    reordered = None if positions == list(range(len(order))) else operator.itemgetter(*positions)

    def call(*args: Any, **kwargs: Any) -> Any:
        passed = len(args)
        if kwargs or not required <= passed <= count:
            args, passed = declared.in_order(args, kwargs), count
        args += defaults[passed:]
        output = getattr(home, function_name).apply(*(args if reordered is None else reordered(args)))
        return output if result is None else result(output)

    return declared.describe(call, function.__doc__)


# ---- modules ---------------------------------------------------------------------------------------------------------


class Alias(property):
    """A property that gives a module's attribute Liger's name."""

    def __init__(self, name: str):
        super().__init__(lambda module: getattr(module, name), lambda module, value: setattr(module, name, value))
        self.name = name


def constructor(base: type, takes: str, **names: str) -> Any:
    """An `__init__` that calls the base's `__init__` by name. `names`: argument name -> its name in the base."""
    arguments = LigerArguments.parse("__init__", takes)
    targets = [names.get(name, name) for name in arguments.names]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, **dict(zip(targets, arguments.in_order(args, kwargs))))  # pyright: ignore[reportCallIssue]

    return arguments.describe(init, None, "self")


class LigerModule(nn.Module):
    """A module of Liger that calls a Function; its options are attributes, read at each call.

    Arguments of the class:
        function: the Function.
        options: the constructor's arguments as text. An argument without a default gets the Function's default.
        inputs: the arguments of the call, as text in the same format.
        names: input name -> its name in the Function, where they differ.

    The constructor of the first base that is not a LigerModule gets those options that it accepts; an `Alias` in the
    class gives an option's name in the base. Buffers are not in the state dict.
    """

    function: ClassVar[type[LigerFunction]]
    settings: ClassVar[LigerArguments]
    result: Callable[[Any], Any] = staticmethod(lambda made: made)

    def __init_subclass__(
        cls, function: type[LigerFunction] | None = None, options: str = "", inputs: str = "", **names: str
    ) -> None:
        if function is not None:
            cls.function = function
            declared = LigerArguments.parse(f"{cls.__name__}.forward", inputs, function.arguments, names)
            targets = [plain(names.get(name, name)) for name in declared.names]
            home, function_name = function.home(), function.__name__
            defaults = tuple(function.arguments.by_name(function.arguments.defaults).items())

            def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
                named = dict(zip(targets, declared.in_order(args, kwargs)))
                for name in self.settings.names:
                    named[name] = getattr(self, name)
                values = [named.get(name, default) for name, default in defaults]
                return self.result(getattr(home, function_name).apply(*values))

            cls.forward = declared.describe(forward, None, "self")
        if options:
            cls.settings = LigerArguments.parse(f"{cls.__name__}.__init__", options, cls.function.arguments)
            base: Any = next(c for c in cls.__mro__ if not issubclass(c, LigerModule))
            known = {} if base is nn.Module else parameters(base)

            def init(self: Any, *args: Any, **kwargs: Any) -> None:
                named = self.settings.by_name(self.settings.in_order(args, kwargs))
                aliases = {name: getattr(getattr(type(self), name, None), "name", name) for name in named}
                base.__init__(self, **{aliases[n]: value for n, value in named.items() if aliases[n] in known})
                for name, value in named.items():
                    if aliases[name] not in known:
                        setattr(self, name, value)
                self.check()

            cls.__init__ = cls.settings.describe(init, None, "self")
            if hasattr(base, "__signature__"):  # inspect.signature would return this one
                cls.__signature__ = cls.settings.signature()  # pyright: ignore[reportAttributeAccessIssue]

    def check(self) -> None:
        """Raise if the options are invalid."""

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor, persistent=False)


# ---- losses with their gradients -------------------------------------------------------------------------------------


def with_gradients(fn: Callable[..., Tensor], *inputs: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """A loss, and the gradient of its sum for each input; None for inputs that are None or need no gradient."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs]
        needed = [t for t in leaves if t is not None and t.requires_grad]
        loss = fn(*leaves)
        gradients = iter(torch.autograd.grad(loss.sum(), needed) if needed else ())
    return loss.detach(), [next(gradients) if t is not None and t.requires_grad else None for t in leaves]


def scaled(gradient: Tensor | None, by: Tensor) -> Tensor | None:
    """Multiply a gradient by the gradient of the loss, which is a scalar or has one element per row."""
    if gradient is None:
        return None
    return (gradient * (by if by.dim() == 0 else by.unsqueeze(-1))).to(gradient.dtype)

"""The public functions of ATen's face: `enable`, `disable`, `use`, `enabled_ops`, `native`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch

from ...core.errors import OpmuxError, UnknownName
from ...core.loading import on_failure
from ...core.lock import lock
from ...core.tensors import first_tensor
from . import engine
from .overloads import Overload
from .schema import Shape, overloads

Names = str | Iterable[str] | None
MODES = ("all",)


class BadMode(OpmuxError, ValueError):
    """A mode that does not exist."""


class Selection:
    """What one `enable()` or `use()` turns on."""

    def __init__(self, include: Names, exclude: Names, mode: str):
        if mode not in MODES:
            raise BadMode(f"mode = {mode!r}. Allowed: {', '.join(map(repr, MODES))}")
        self.include, self.exclude = _listed(include, "include"), _listed(exclude, "exclude")
        self.names: frozenset[str] = frozenset()
        self._of = -1  # the generation of what is registered

    def turn_on(self, apply: Callable[[], Any]) -> None:
        """Register an override for every overload of this selection, and apply it.

        Overloads are chosen without a lock, as that loads plugins and kernels; if `disable()` is called or a vendor is
        registered meanwhile, they are chosen again.
        """
        while True:
            generation = engine.generation()
            if self._of != generation:
                self.names = resolved(self.include, self.exclude)
                engine.register(self.names)
            with lock.held:
                if generation == engine.generation():
                    self._of = generation
                    apply()
                    return


_base: Selection | None = None
_stack: list[Selection] = []  # of live `use()` blocks; the innermost decides


def enable(include: Names = None, exclude: Names = None, mode: str = "all") -> list[str]:
    """Override torch's own ops with our kernels, for the whole process; returns the names of the overloads.

    `include` and `exclude` take ATen's names (`add`: all its overloads and in-place forms; `add.Tensor`: that
    overload), globs (`*softmax*`) and families (`family:norm`). An unknown name raises. The selection replaces an
    earlier one.
    """
    made = Selection(include, exclude, mode)
    made.turn_on(lambda: _set_base(made))
    return enabled_ops()


def _set_base(made: Selection | None) -> None:
    global _base
    before = _base
    on_failure(lambda: _set_base(before) if _base is made else None)
    with lock.held:
        _base = made
        _apply()


def disable() -> None:
    """Undo `enable`: every op runs torch's own kernel again."""
    global _base
    with lock.held:
        _base = None
        _stack.clear()
        _apply()
        engine.remove()


class use:
    """`with opmux.use():` or `@opmux.use(include=["softmax"])`: override torch's ops in a block or function.

    It applies to the whole process, because backward passes run on other threads. Blocks nest, and the innermost
    decides; the same object may be entered again.
    """

    def __init__(self, include: Names = None, exclude: Names = None, mode: str = "all"):
        self._selection = Selection(include, exclude, mode)

    def __enter__(self) -> use:
        self._selection.turn_on(lambda: (_stack.append(self._selection), _apply()))
        return self

    def __exit__(self, *error: Any) -> None:
        with lock.held:
            for at in range(len(_stack) - 1, -1, -1):
                if _stack[at] is self._selection:
                    del _stack[at]
                    break
            _apply()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return inside


def enabled_ops() -> list[str]:
    """The overloads of ATen that currently run our kernels, on some device."""
    return sorted(n for n in engine.STATE.wanted if engine.registered(n))


def native(op: Any) -> Callable[..., Any]:
    """ATen's own kernel of an op, even if it is overridden: `opmux.native("add.Tensor")` or of `torch.ops.aten.relu`.

    It runs below autograd, as a kernel does. For a packet (`"add"`) the overload is chosen by the arguments.
    """
    name = _name_of(op)
    if "." not in name and len(overloads(name)) > 1 and not isinstance(op, torch._ops.OpOverload):
        return engine.off_inside(getattr(torch.ops.aten, name))
    shape = Shape(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        x = first_tensor(args, kwargs)
        kept = None if x is None else engine.native_of(name, x.device.type)
        return engine.off_inside(kept or shape.op)(*args, **kwargs)

    run.__name__ = run.__qualname__ = name
    return run


def _name_of(op: Any) -> str:
    if isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        text = str(op).removeprefix("aten.")
    elif isinstance(op, str):
        text = op.removeprefix("aten::")
    else:
        raise TypeError(f"native takes 'add.Tensor' or torch.ops.aten.add.Tensor; got {op!r}")
    name = text.removesuffix(".default")
    packet, dot, _ = name.partition(".")
    known = [s.name for s in overloads(packet)]
    if not known or (dot and name not in known):
        from ...runtime.vendor_ops import aten_names

        raise UnknownName("op of ATen", name, known or aten_names())
    return name


def _apply() -> None:
    live = _stack[-1] if _stack else _base
    engine.STATE.want(frozenset() if live is None else live.names)


# ---- names ----------------------------------------------------------------------------------------------------------


def _listed(value: Names, what: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(i, str) for i in items):
        raise TypeError(f"{what} takes names such as 'add', 'add.Tensor', '*softmax*', 'family:norm'; got {value!r}")
    return tuple(items)


def resolved(include: tuple[str, ...] | None, exclude: tuple[str, ...] | None) -> frozenset[str]:
    """The overloads of a selection that some device of this machine can compute."""
    known = {n: o for can in engine.choosable().values() for n, o in can.items()}
    chosen = set(known) if include is None else _matching(include, known)
    return frozenset(chosen - (_matching(exclude, known) if exclude else set()))


def _matching(asked: Iterable[str], known: dict[str, Overload]) -> set[str]:
    found: set[str] = set()
    for name in asked:
        plain = name.strip().removeprefix("aten::")
        hits = {n for n, o in known.items() if _refers_to(plain, n, o)}
        if not hits and not _exists(plain):
            raise UnknownName("op or family", name, _names(known))
        found |= hits
    return found


def _refers_to(asked: str, name: str, overload: Overload) -> bool:
    """Whether a name refers to an overload: by its name, its op (all overloads and the in-place form), our op that
    computes it, a glob, or its family."""
    if asked.startswith("family:"):
        return overload.family == asked.removeprefix("family:")
    if asked.endswith(".default"):
        return name == asked.removesuffix(".default")
    packet = overload.shape.packet
    spoken = {name, packet, packet.strip("_"), *(b.rpartition("::")[2] for b in overload.bases)}
    if any(c in asked for c in "*?["):
        return any(fnmatchcase(n, asked) for n in spoken)
    return asked in spoken


def _exists(name: str) -> bool:
    """Whether a name is valid although no kernel of this machine computes it."""
    from .overloads import table

    if any(_refers_to(name, n, o) for n, o in table().items()):
        return True
    packet, dot, _ = name.partition(".")
    have = overloads(packet)
    return bool(have) and (not dot or any(s.name == name.removesuffix(".default") for s in have))


def _names(known: dict[str, Overload]) -> list[str]:
    from .overloads import table

    packets = {o.shape.packet for o in table().values()}
    return sorted({*known, *packets, *(f"family:{o.family}" for o in table().values())})

"""One class per kind of error. A message says what was given, what is allowed, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class OpmuxError(Exception):
    """The base class of all opmux errors."""


class NotSupported(OpmuxError, NotImplementedError):
    """An implementation declines these arguments and has written nothing.

    Raise it from an implementation, before its first write or launch, to pass the call to the next candidate.
    """


class NoImplementation(OpmuxError, NotImplementedError):
    """Every candidate was skipped or declined; the message lists each with its reason."""

    op_key: str | None = None  # the op's key, if dispatch raised the error


class DispatchError(OpmuxError, RuntimeError):
    """Several candidates ran and all failed; `errors` holds their exceptions, first cause first."""

    def __init__(self, message: str, errors: tuple[BaseException, ...] = ()):
        super().__init__(message)
        self.errors = errors


class WrongResult(OpmuxError, RuntimeError):
    """The results of an implementation do not match what its op returns."""


class UnknownName(OpmuxError, LookupError):
    """An unknown name of an op, a vendor, an impl or a plugin."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = ""):
        super().__init__(unknown(what, name, known, hint))
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:  # pickles the message, without the list of known names
        return _unknown_again, (self.args[0], self.name)


def _unknown_again(message: str, name: str) -> UnknownName:
    error = UnknownName.__new__(UnknownName)
    error.args, error.name = (message,), name
    return error


class BadArgument(OpmuxError):
    """An invalid argument. Every instance is also a TypeError or a ValueError.

    `expected` is the text after "must" ("be float32, the dtype of {x}"), with other arguments in braces. A function
    that calls the op under other argument names raises the error with its own names: `raise
    error.renamed("rmsnorm_fwd", {"x": "input"}) from None`.
    """

    def __init__(self, op: str, argument: str, expected: str, got: str, names: Mapping[str, str] | None = None):
        self.op, self.argument, self.expected, self.got, self.names = op, argument, expected, got, dict(names or {})
        super().__init__(op, argument, expected, got, self.names)
        self.__suppress_context__ = True  # hide the impl's error that led to this check

    @classmethod
    def of(cls, op: str, argument: str, expected: str, got: str, kind: type[Exception] = ValueError) -> BadArgument:
        """The subclass of BadArgument that is also a TypeError or a ValueError, depending on `kind`."""
        return (BadArgumentType if kind is TypeError else BadArgumentValue)(op, argument, expected, got)

    def renamed(self, op: str, names: Mapping[str, str]) -> BadArgument:
        """The same error with another function's name and argument names."""
        before = {k: names.get(v, v) for k, v in self.names.items()}
        return type(self)(op, self.argument, self.expected, self.got, {**names, **before})

    @property
    def problem(self) -> str:
        """The message without the function's name."""
        name = self.names.get(self.argument, self.argument)
        return f"{name} must {self.expected.format_map(_ArgumentNames(self.names))}; got {self.got}"

    def __str__(self) -> str:
        return f"{self.op}: {self.problem}"


class BadArgumentType(BadArgument, TypeError):
    """An argument of the wrong type or dtype."""


class BadArgumentValue(BadArgument, ValueError):
    """An argument of the wrong shape, device or value."""


class _ArgumentNames(dict):
    """The op's argument name -> the name in a message. An unmapped name maps to itself."""

    def __missing__(self, name: str) -> str:
        return name


class BadLayout(OpmuxError, TypeError):
    """A tensor that an op cannot read: nested, sparse, mkldnn or quantized."""


class BackendNotFound(OpmuxError, RuntimeError):
    """A setting or `set_backend` named a backend that does not exist."""


class BadPolicy(OpmuxError, ValueError):
    """An invalid policy, order or token."""


class BadKnob(OpmuxError, ValueError):
    """An environment variable or a line of opmux.toml with an invalid value."""


class BadImpl(OpmuxError, ValueError):
    """An `OpImpl` that is incomplete, or cannot be called with the arguments of its op."""


class BadSpec(OpmuxError, ValueError):
    """A declaration of an op that contradicts itself."""


class DuplicateImpl(OpmuxError, ValueError):
    """The same impl_id registered twice for one op."""


class PluginError(OpmuxError, RuntimeError):
    """A plugin could not be loaded; none of its impls is registered."""


class RanksDiffer(OpmuxError, RuntimeError):
    """Two ranks of a job would run different implementations."""


def quoted(text: str, most: int = 200) -> str:
    """User input for a message: in quotes, on one line, truncated to `most` characters."""
    cut = text if len(text) <= most else f"{text[:most]}..."
    shown = f"'{cut}'" if cut.isprintable() else repr(cut)
    return shown if cut == text else f"{shown} ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one, or None if none is close."""
    by_fold = {k.casefold(): k for k in known}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else None


def suggestion(name: str, known: Iterable[str], text: str = "; did you mean '{}'?") -> str:
    """The end of a message: `text` with the known name closest to a misspelt one; "" if no name is close."""
    close = nearest(name, known)
    return text.format(close) if close else ""


def unknown(what: str, name: str, known: Iterable[str], hint: str = "") -> str:
    """The message for an unknown name: suggests the closest valid name, or lists the valid names."""
    known = sorted(set(known))
    text = f"unknown {what} {quoted(name)}"
    close = nearest(name, known)
    if close is not None:
        text += f": did you mean '{close}'?"
    elif known:
        shown = ", ".join(known[:12]) + (f", ... ({len(known)} in all)" if len(known) > 12 else "")
        text += f". Known: {shown}"
    else:
        text += ": none is registered"
    return f"{text} {hint}".rstrip()

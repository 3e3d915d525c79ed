"""The kinds of impls, and the tokens of a policy's order."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from .errors import BadPolicy, suggestion


class BackendImplKind(str, Enum):  # noqa: UP042 - the value is what str() and comparison see
    """The kind of an impl; its value is a token of policies. The token `flagos` (alias `opmux`) also stands for CPP."""

    DEFAULT = "flagos"  # our own Triton kernels
    VENDOR = "vendor"  # a chip vendor's library or a plugin
    REFERENCE = "reference"  # plain PyTorch
    CPP = "cpp"  # our own kernels in C++, for the CPU

    def __str__(self) -> str:
        return self.value


KINDS = tuple(k.value for k in BackendImplKind)
ALIASES = {"opmux": "flagos", "default": "flagos", "triton": "flagos"}
GRAMMAR = "opmux, vendor, vendor:NAME, reference, cpp, impl:ID, !token (never), * (the rest)"


def shown(token: str) -> str:
    """A token or a kind as users see it: `opmux` in place of `flagos`, a name that exists for compatible programs."""
    return {"flagos": "opmux", "!flagos": "!opmux"}.get(str(token), str(token))


def parse_token(text: str) -> str:
    """A token in canonical form: case-folded, aliases resolved."""
    token = text.strip().casefold()
    never = token.startswith("!")
    body = token[1:].strip() if never else token
    head, colon, name = (part.strip() for part in body.partition(":"))
    if colon:
        if head not in ("vendor", "impl") or not name:
            raise BadPolicy(f"'{text.strip()}' is not a token. Tokens: {GRAMMAR}")
        body = f"{head}:{name}"
    else:
        body = ALIASES.get(body, body)
        if body not in KINDS and (body != "*" or never):
            hint = suggestion(body, [*KINDS, *ALIASES], " Did you mean '{}'?")
            raise BadPolicy(f"'{text.strip()}' is not a token.{hint} Tokens: {GRAMMAR}")
    return "!" + body if never else body


def parse_order(value: str | Iterable[str]) -> tuple[str, ...]:
    """Parse an order: `"vendor:acme|flagos"`, or a list of tokens."""
    parts = value.split("|") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, str) for p in parts):
        raise BadPolicy(f"an order is a list of tokens, or tokens separated by |; got {value!r}")
    parts = [p for p in parts if p.strip()]
    if not parts:
        raise BadPolicy(f"an order needs at least one token; got {value!r}. Tokens: {GRAMMAR}")
    return tuple(dict.fromkeys(parse_token(p) for p in parts))


def parse_prefer(value: Any) -> str:
    """Parse a preference: a kind, `vendor:NAME` or `impl:ID`. The last two come before the usual order."""
    if not isinstance(value, str):
        raise BadPolicy(f"prefer is one of {', '.join(map(shown, KINDS))}, vendor:NAME or impl:ID; got {value!r}")
    try:
        token = parse_token(value)
    except BadPolicy:
        token = "*"
    if token == "*" or token.startswith("!"):
        hint = suggestion(value, [*KINDS, *ALIASES], " Did you mean '{}'?")
        if set(value) & set("!|*"):
            hint = f". An order is for single ops: per_op={{'rms_norm': {value!r}}}"
        allowed = ", ".join(map(shown, KINDS))
        raise BadPolicy(f"'{value}' is not a preference: expected {allowed}, vendor:NAME or impl:ID.{hint}")
    return token


def fold_names(value: Any, what: str) -> frozenset[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = value.split(",")
    try:
        names = [v.strip().casefold() for v in value]
    except (TypeError, AttributeError):
        raise BadPolicy(f"{what} takes names of vendors; got {value!r}") from None
    return frozenset(n for n in names if n)

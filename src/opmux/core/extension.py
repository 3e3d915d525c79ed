"""What a layer above core adds to it: a space of ops, settings under other names, plugins written for another library.

Core names no face and no vendor. The package's root lists the extensions; core asks for them when it first reads a
setting, looks up a bare name, or loads plugins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import wiring

if TYPE_CHECKING:
    from .knobs import Knob
    from .manager import OpManager


class SpaceOrder(NamedTuple):
    """Tokens for the ops of one space: `first` is tried before all others, `fallback` after flagos."""

    first: str | None = None
    fallback: str | None = None


@dataclass(frozen=True)
class Extension:
    """One layer's additions. Everything is optional; functions are called when the answer is needed."""

    space: str = ""  # bare names of ops are looked up in this space too
    # The tokens that the settings ask for, for the ops of the space. It is given a function: setting -> value or None.
    order: Callable[[Callable[[Any], Any]], SpaceOrder] | None = None
    # Raises where a token of the space's order cannot be used on this machine.
    check_token: Callable[[OpManager, str], None] | None = None
    # Vendors whose impls of kind VENDOR the settings leave out, and the reason; the vendors' own kernels stay.
    left_out: Callable[[], Mapping[str, str]] = dict
    settings: tuple[Knob[Any], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # a setting's other name -> its name
    prefixes: tuple[str, ...] = ()  # of environment variables: one that is no setting is reported as misspelt
    plugin_groups: tuple[str, ...] = ()  # entry point groups
    register_names: tuple[str, ...] = ()  # what a plugin may call its register(registry)


@functools.cache
def extensions() -> tuple[Extension, ...]:
    return wiring.extensions()


def spaces() -> tuple[str, ...]:
    """The spaces of ops that extensions bring."""
    return tuple(e.space for e in extensions() if e.space)


def of_space(space: str) -> Extension | None:
    return next((e for e in extensions() if e.space == space), None)

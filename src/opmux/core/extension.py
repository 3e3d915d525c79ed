"""What a layer above core adds: a namespace of ops, aliases of settings, plugins written for other libraries.

Core has no code for any vendor or any other library's interface. `opmux/__init__.py` lists the extensions. Core imports
them when it first reads a setting, looks up an unqualified name, or loads plugins.
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


NATIVE = "native"  # the impl_id of torch's own kernel


class Remark(NamedTuple):
    """What a layer says about an op in an explanation."""

    text: str = ""
    torch_runs: bool = False  # torch's own kernel runs in place of the chosen impl, because no override is enabled


class SpaceOrder(NamedTuple):
    """Tokens for the ops of one namespace: `first` comes before all others, `fallback` comes after flagos."""

    first: str | None = None
    fallback: str | None = None


@dataclass(frozen=True)
class Extension:
    """One layer's additions. Every field is optional; functions are called on first use."""

    space: str = ""  # a namespace in which unqualified op names are looked up too
    # Returns the tokens for the namespace's ops from settings. Its argument is a function: setting -> value or None.
    order: Callable[[Callable[[Any], Any]], SpaceOrder] | None = None
    # Raises if a token for the ops of the namespace cannot be used on this machine.
    check_token: Callable[[OpManager, str], None] | None = None
    # Returns the vendors whose impls of kind VENDOR are disabled by settings, with the reasons.
    left_out: Callable[[], Mapping[str, str]] = dict
    settings: tuple[Knob[Any], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # a setting's other name -> its name
    prefixes: tuple[str, ...] = ()  # unknown environment variables with these prefixes are reported
    plugin_groups: tuple[str, ...] = ()  # entry point groups
    register_names: tuple[str, ...] = ()  # other names of a plugin's register(registry)
    # Returns the key of the derived op (`Derived`) of a name, which the layer makes on demand; None if there is none.
    find_derived: Callable[[str], str | None] = lambda name: None
    # Returns a remark for `explain`, from the op's key, device type, impl_id of the choice, and first tensor or None.
    remark: Callable[[str, str, str | None, Any], Remark] = lambda key, device, chosen, first: Remark()


@functools.cache
def extensions() -> tuple[Extension, ...]:
    return wiring.extensions()


def spaces() -> tuple[str, ...]:
    """The namespaces of ops that extensions add."""
    return tuple(e.space for e in extensions() if e.space)


def of_space(space: str) -> Extension | None:
    return next((e for e in extensions() if e.space == space), None)

"""Registers with core: tex's namespace of ops, tex's settings, and TransformerEngine-FL's names of settings.

Core imports this module when it first reads a setting, so this module imports only core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core import knobs
from ...core.extension import Extension, SpaceOrder
from ...core.knobs import flag, knob, word
from .names import backend_token

if TYPE_CHECKING:
    from ...core.manager import OpManager

BACKEND = knob("OPMUX_BACKEND", word, doc="the preferred backend for tex ops: flaggems, torch, or a vendor")
PLUGIN = knob("OPMUX_PLUGIN", word, doc="the same as OPMUX_BACKEND, which overrides it")
FALLBACK_BACKEND = knob("OPMUX_FALLBACK_BACKEND", word, doc="the backend tried for tex ops after flaggems")
TEX_VERSION = knob(
    "OPMUX_TEX_VERSION",
    word,
    doc="the version of tex's interface: 2.9 or 2.20 [default: that of the installed transformer_engine, else 2.20]",
    example="2.20",
)
TE_STARTUP = knob(
    "OPMUX_TE_STARTUP",
    flag,
    default=True,
    doc="0 leaves `import transformer_engine` to NVIDIA's loader; read at the start of Python",
    in_file=False,
)


def _space_order(value_of: Callable[[knobs.Knob[Any]], Any]) -> SpaceOrder:
    first, fallback = value_of(BACKEND) or value_of(PLUGIN), value_of(FALLBACK_BACKEND)
    return SpaceOrder(backend_token(first) if first else None, backend_token(fallback) if fallback else None)


def _check_token(manager: OpManager, token: str) -> None:
    from .registry import check

    check(token)


EXTENSION = Extension(
    space="tex",
    order=_space_order,
    check_token=_check_token,
    settings=(BACKEND, PLUGIN, FALLBACK_BACKEND, TEX_VERSION, TE_STARTUP),
    aliases={
        "TE_FL_PREFER": "OPMUX_PREFER",
        "TE_FL_PREFER_VENDOR": "OPMUX_PREFER_VENDOR",
        "TE_FL_STRICT": "OPMUX_STRICT",
        "TE_FL_ALLOW_VENDORS": "OPMUX_ALLOW_VENDORS",
        "TE_FL_DENY_VENDORS": "OPMUX_DENY_VENDORS",
        "TE_FL_PER_OP": "OPMUX_PER_OP",
        "TE_FL_PLUGIN_MODULES": "OPMUX_PLUGIN_MODULES",
        "TE_FL_SKIP_CUDA": "OPMUX_SKIP_CUDA",
        "TE_FL_DEBUG": "OPMUX_DEBUG",
        "TEFL_LOG_LEVEL": "OPMUX_LOG_LEVEL",
        "TE_BACKEND": "OPMUX_BACKEND",
        "TE_PLUGIN": "OPMUX_PLUGIN",
        "TE_FALLBACK_BACKEND": "OPMUX_FALLBACK_BACKEND",
    },
    prefixes=("TE_FL_", "TEFL_"),
    plugin_groups=("te_fl.plugin",),
    register_names=("te_fl_register",),
)

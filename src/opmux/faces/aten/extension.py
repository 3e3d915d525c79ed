"""Tells core about torch's overloads, so that `explain` accepts their names even before `enable()`.

Core imports this module when it first reads a setting, so the module imports the other ATen modules on demand.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ...core.errors import UnknownName
from ...core.extension import NATIVE, Extension, Remark
from ...core.spec import specs


def _find_derived(name: str) -> str | None:
    """The key of the overload that a user names (`add.Tensor`, `_softmax.default`); for `add_`, its first overload."""
    from . import engine
    from .overloads import left_to_torch, table
    from .schema import overloads

    plain = name.strip().removeprefix("aten::").removesuffix(".default")
    if plain not in table():
        engine.choosable()  # this adds the overloads that only a vendor computes
    overload = table().get(plain)
    if overload is None and plain.isprintable():
        packet, dot, _ = plain.partition(".")
        known = [s.name for s in overloads(packet)]
        if not dot and known and plain not in known:
            plain = next((n for n in known if n in table()), known[0])
        if known and plain not in known:
            raise UnknownName("op", name, known)
        overload = (table().get(plain) or left_to_torch(plain)) if known else None
    return None if overload is None else overload.key


def _remark(key: str, device: str, chosen: str | None, first: Any) -> Remark:
    if key not in specs.derived:
        return Remark(_of_the_same_name(key, device, first))
    text, torch_runs = _who_runs(key, device, chosen, first)
    return Remark("; ".join(filter(None, (text, _of_torch_native(key, device)))), torch_runs)


def _who_runs(key: str, device: str, chosen: str | None, first: Any) -> Remark:
    from . import decisions, engine
    from .overloads import table

    name = key.removeprefix("aten::").removesuffix(".default")
    overload = table().get(name)
    if overload is None:
        return Remark(f"torch's own kernel runs, because {_reason(name)}")
    if chosen == NATIVE:
        return Remark("native is torch's own kernel")
    if chosen is None:
        return Remark()
    decision = decisions.decide(overload, device)
    on = engine.is_on(name, device)
    if on and not engine.STATE.auto:
        return Remark()
    if on and first is not None and not decision.takes(first):
        return Remark(f"torch's own kernel runs for this size: {decision.why}", True)
    if on and decision.waits(first):
        text = "torch's own kernel runs for this size until C++ launches ours, after some calls that look the same"
        return Remark(text, True)
    if on:
        return Remark()
    ours = f"'{chosen}'" if chosen else "ours"
    if decision.taken:
        why = f"opmux.enable() makes {ours} run, because {decision.why}"
        return Remark(f"torch's own kernel runs, because the op is not enabled; {why}", True)
    text = f"torch's own kernel runs, because {decision.why}"
    return Remark(f"{text}; opmux.enable({name!r}, mode='all') makes {ours} run", True)


def _of_the_same_name(key: str, device: str, first: Any) -> str:
    """If ATen has an overload named like our op: which implementation runs that overload."""
    name = key.rpartition("::")[2]
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or "default" not in packet.overloads():
        return ""
    from . import engine

    overload = engine.choosable().get(device, {}).get(name)
    text = "" if overload is None else _who_runs(overload.key, device, "", first).text
    return f"torch.ops.aten.{name}: {text}" if text else ""


def _reason(name: str) -> str:
    """The reason why neither opmux nor a vendor computes an overload."""
    from . import left

    return left.reason(name) or "opmux has no kernel for it"


def _of_torch_native(key: str, device: str) -> str:
    """Lists torch's own overrides (`torch._native`, torch >= 2.13); the implementation `native` runs them."""
    registry: Any = sys.modules.get("torch._native.registry")
    if registry is None:
        return ""
    from .native import key_of

    name = key.removeprefix("aten::").removesuffix(".default")
    nodes = getattr(registry, "_graphs", {}).get((name, key_of(device)), ())
    theirs = sorted({n.dsl_name for n in nodes if n.active})
    return f"native includes torch._native's override ({', '.join(theirs)})" if theirs else ""


EXTENSION = Extension(find_derived=_find_derived, remark=_remark)

"""Whether a backend that a setting names can compute tex's ops on this machine."""

from __future__ import annotations

from ...core.errors import BackendNotFound
from ...core.manager import OpManager, default_device
from ...core.policy import matches
from ...core.registry import BackendImplKind
from ...core.spec import Spec, specs
from .names import backend_name


def check(manager: OpManager, token: str) -> None:
    """Raise BackendNotFound if a backend cannot run here; the message lists those that can."""
    why = refusal(manager, token)
    if why is None:
        return
    keys = {k for s in _specs() for k in (s.key, *s.parts)}
    impls = [i for k in keys for i in manager.registry.impls(k) if i.vendor and i.kind is BackendImplKind.VENDOR]
    tokens = ("flagos", "reference", *{f"vendor:{str(i.vendor).casefold()}" for i in impls})
    have = sorted(backend_name(t) for t in tokens if refusal(manager, t) is None)
    raise BackendNotFound(f"Backend '{backend_name(token)}' not found. Available backends: {have}. {why}")


def refusal(manager: OpManager, token: str) -> str | None:
    """Why a backend cannot run on this machine, or None: at least one of its impls of tex's ops must be able to.

    A vendor whose library for tex cannot be loaded is unavailable, even if it has other impls. A vendor without such a
    library, and flagos, compute tex's ops by their impls of the primitives.
    """
    manager.prepare()
    device, reason = default_device(), None
    for of_parts in (False, True):
        for spec in _specs():
            manager.load_kernels(spec)
            manager.prepare()
            for key in spec.parts if of_parts else (spec.key,):
                for impl in (i for i in manager.registry.impls(key) if matches(token, i)):
                    refused = manager.static_refusal(key, impl, device)
                    if refused is None:
                        return None
                    reason = reason or refused.reason
        if reason is not None and token.startswith("vendor:"):
            return reason
    return reason or "No impl of a tex op is registered for it: install its package, or name another backend"


def _specs() -> list[Spec]:
    return [s for s in specs if s.space == "tex"]

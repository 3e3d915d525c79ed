"""Whether a backend can run tex's ops; used by settings that name a backend, and by the list of backends."""

from __future__ import annotations

from ...core.manager import OpManager, default_device
from ...core.policy import SelectionPolicy, matches
from ...core.registry import BackendImplKind, OpImpl
from ...core.spec import Spec, specs


def vendors(manager: OpManager) -> list[OpImpl]:
    """Each vendor's impl with the highest priority, among impls of tex's ops and of their primitives."""
    best_of: dict[str, OpImpl] = {}
    for key in {key for spec in _specs() for key in (spec.key, *spec.parts)}:
        for impl in manager.registry.impls(key):
            if impl.vendor and impl.kind is BackendImplKind.VENDOR:
                best_so_far = best_of.setdefault(impl.vendor.casefold(), impl)
                best_of[impl.vendor.casefold()] = max(best_so_far, impl, key=lambda i: i.priority)
    return list(best_of.values())


def impls_of_tex(manager: OpManager, token: str) -> list[OpImpl]:
    """The impls that a backend's token selects for tex's own ops, not for their primitives."""
    return [impl for spec in _specs() for impl in manager.registry.impls(spec.key) if matches(token, impl)]


def refusal(manager: OpManager, token: str, policy: SelectionPolicy | None = None) -> str | None:
    """Why a backend cannot run, or None if at least one of its impls can.

    Without a policy, only this machine is checked. With a policy, the policy's vendor lists and failures of earlier
    calls are checked too. A vendor whose library for tex cannot be loaded is unavailable even if it has other impls.
    Our own kernels, and vendors that have no library for tex, run tex's ops through impls of the primitives.
    """
    manager.prepare()
    device, reason = default_device(), None
    for of_parts in (False, True):
        for spec in _specs():
            manager.load_kernels(spec)
            manager.prepare()
            for key in spec.parts if of_parts else (spec.key,):
                for impl in (i for i in manager.registry.impls(key) if matches(token, i)):
                    refused = _impl_refusal(manager, key, impl, device, policy)
                    if refused is None:
                        return None
                    excluded = policy is not None and policy.filtered(impl) is not None
                    reason = refused if reason is None or excluded else reason
        if reason is not None and token.startswith("vendor:"):
            return reason
    return reason or "no impl of a tex op is registered for it: install its package, or name another backend"


def _impl_refusal(
    manager: OpManager, key: str, impl: OpImpl, device: str, policy: SelectionPolicy | None
) -> str | None:
    excluded = None if policy is None else policy.filtered(impl)
    if excluded is not None:
        return excluded
    refused = manager.static_refusal(key, impl, device)
    if refused is not None:
        return refused.reason
    failed = None if policy is None or policy.strict else manager.memory.only_failed(key, impl.impl_id)
    if failed is None:
        return None
    return f"{failed.op} failed ({failed.reason}) and is skipped; get_default_manager().clear_quarantine() retries it"


def _specs() -> list[Spec]:
    return [s for s in specs if s.space == "tex"]

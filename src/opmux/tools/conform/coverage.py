"""Where our ops and ATen's ops run: in the vendor's kernel, in our Triton kernel, in torch's kernel, or on the CPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

import torch

from ...core.default import get_default_manager
from ...core.explain import Verdict
from ...core.registry import BackendImplKind, OpImpl
from ...core.spec import Spec
from ...faces.aten import engine
from ...faces.aten.overloads import Overload, table
from ...machine import devices
from ...machine.here import HERE
from ..bench.cases import name_of
from .record import CPU, NATIVE, NOWHERE, OWN, PLUGIN, TRITON, Covered
from .samples import AtenRecorder, Drawn
from .subject import Called
from .target import ConformTarget

REFERENCE = BackendImplKind.REFERENCE
COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def served(spec: Spec, target: ConformTarget, drawn: Drawn, called: Called) -> Covered:
    """Where an op ran when it was called with a sample."""
    why = _first_of((d.impl, d.stage, d.reason) for d in called.before)
    on_cpu = list(called.on_cpu)
    if called.impl.kind is REFERENCE and not target.simulated:
        on_cpu = _left_to_cpu(spec, drawn, target)
    return _covered(spec, where(called.impl, target, on_cpu), called.impl.impl_id, why, on_cpu)


def predicted(spec: Spec, target: ConformTarget) -> Covered:
    """Where an op would run according to `explain` without arguments."""
    explanation = get_default_manager().explain(spec.key)
    why = _refused(explanation.verdicts)
    if explanation.chosen is None:
        return _covered(spec, NOWHERE, None, why)
    return _covered(spec, where(explanation.chosen, target), explanation.chosen.impl_id, why)


def _covered(spec: Spec, where: str, impl: str | None, why: str | None, on_cpu: Iterable[str] = ()) -> Covered:
    name = spec.name if isinstance(spec, Overload) else name_of(spec)
    return Covered(name, spec.key, spec.space, spec.family, where, impl, why, list(on_cpu))


def _refused(verdicts: Iterable[Verdict]) -> str | None:
    return _first_of((v.impl.impl_id, v.stage, v.reason) for v in verdicts if v.status == "refused")


def _first_of(refusals: Iterable[tuple[str, str, str]]) -> str | None:
    """The reason of the first refusal. Impls for other devices are ignored."""
    return next((": ".join(r) for r in refusals if r[1] != "device"), None)


def where(impl: OpImpl, target: ConformTarget, on_cpu: Iterable[str] = ()) -> str:
    """Where an impl runs: one of the words in `record.WHERE`."""
    if impl.of_vendor(target.package.name):
        return OWN
    if impl.kind is REFERENCE:
        return CPU if any(on_cpu) else NATIVE
    return TRITON if impl.kind is BackendImplKind.DEFAULT else PLUGIN


@contextlib.contextmanager
def as_if_there(target: ConformTarget) -> Iterator[None]:
    """If impls are called directly on the CPU: dispatch in this block as on a machine with the vendor's device."""
    if not target.direct:
        yield
        return
    with devices.assume(target.package.name):
        HERE.changed()
        yield
    HERE.changed()


# ---- ATen -----------------------------------------------------------------------------------------------------------


def of_aten(target: ConformTarget, chosen_overloads: Iterable[Overload]) -> Iterator[Covered]:
    """Where overloads of ATen run while ours are enabled."""
    can = engine.choosable().get(target.package.device, {})
    unused = HERE.unused(target.package.device)
    for overload in chosen_overloads:
        verdicts = get_default_manager().explain(overload.key).verdicts
        chosen = next((v.impl for v in verdicts if v.status != "refused" and v.impl.kind is not REFERENCE), None)
        if chosen is not None and overload.name in can:
            yield _covered(overload, where(chosen, target), chosen.impl_id, None)
            continue
        why = next((unused[b] for b in overload.bases if b in unused), None) or _refused(verdicts)
        yield _covered(overload, torchs_own(overload.name, target), "native", why)


def rest_of_aten(target: ConformTarget) -> dict[str, int]:
    """For the overloads of ATen that we do not compute: place -> the number of overloads that run there.

    Composite overloads are not counted, because they run where the ops that they call run.
    """
    names = (n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    ours = table()
    counted = Counter(torchs_own(n, target) for n in names if n not in ours and _is_real(n))
    return {w: counted[w] for w in (NATIVE, CPU, NOWHERE) if counted[w]}


def torchs_own(name: str, target: ConformTarget) -> str:
    """Where torch itself runs an overload of ATen on the vendor's device."""
    entry = _line(name, target.package.info.key)
    if entry is None:
        return NOWHERE
    if "[backend fallback]" in entry:
        return CPU if target.package.info.key == "PrivateUse1" else NOWHERE
    if "[default backend kernel]" in entry:  # it calls another overload: the `out` overload of a structured op
        into = next((o for o in (f"{name}_out", f"{name.partition('.')[0]}.out") if _exists(o)), None)
        return NATIVE if into is None or into == name else torchs_own(into, target)
    return NATIVE


def _exists(name: str) -> bool:
    return torch._C._dispatch_has_kernel(f"aten::{name}")


def _line(name: str, key: str) -> str | None:
    """The entry in torch's table of kernels for an overload and a dispatch key."""
    lines = torch._C._dispatch_dump_table(f"aten::{name}").splitlines()
    entry = next((line for line in lines if line.startswith(f"{key}:")), None)
    return None if entry is None or "[missing]" in entry else entry


def _is_real(name: str) -> bool:
    """Whether an overload has kernels and is not composite."""
    has = lambda key: torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    try:
        return not any(map(has, COMPOSITE))
    except RuntimeError:  # an op that only TorchScript has
        return False


def _left_to_cpu(spec: Spec, drawn: Drawn, target: ConformTarget) -> list[str]:
    """The ATen overloads that an op's reference calls, and for which the vendor's device has no kernel."""
    if target.package.info.key != "PrivateUse1":
        return []
    sample = drawn.on(target.device)
    names: dict[str, None] = {}
    with AtenRecorder(lambda name, *call: names.setdefault(name)), torch.no_grad():
        spec.reference(*sample.args, **sample.kwargs)
    return [n for n in names if n.startswith("aten::") and torchs_own(n.removeprefix("aten::"), target) == CPU]

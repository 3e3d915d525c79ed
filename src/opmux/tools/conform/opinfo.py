"""Runs ATen's ops under `opmux.use()` on PyTorch's own samples (OpInfo), and compares with ATen's kernels."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from ...core.spec import EXACT, TOL, Spec, Tol, specs
from ...core.tensors import dtype_name
from ...faces.aten import engine
from ...faces.aten.overloads import Overload
from ...faces.aten.switch import use
from ..runner.check import Wrong, raised
from .checks import SLACK
from .compare import numbers
from .plan import Depth
from .record import DISPATCH, CheckResult
from .samples import in_words, quiet
from .target import ConformTarget

DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.bool)
LOW = (torch.bfloat16, torch.float16)
Outputs = tuple[list[Tensor], list[Tensor]]  # results, gradients
RANDOM = "random"  # for this family, only shape and dtype of results are compared


def absent() -> str | None:
    """Why OpInfo's samples are not available here, or None."""
    if importlib.util.find_spec("expecttest") is None:
        return "ATen's ops were not tried on PyTorch's own samples (OpInfo): pip install expecttest"
    return None


def overloads(target: ConformTarget) -> dict[str, Overload]:
    """The overloads of ATen that a kernel of ours or of the vendor computes on this device."""
    return engine.choosable().get(target.device.type, {})


def packets(chosen: Iterable[Overload]) -> dict[str, list[Overload]]:
    """Group overloads by their op."""
    by_packet: dict[str, list[Overload]] = {}
    for overload in chosen:
        by_packet.setdefault(overload.shape.packet, []).append(overload)
    return by_packet


class Info:
    """One op of ATen and all of OpInfo's entries for it."""

    def __init__(self, packet: str, of: list[Overload], entries: list[Any], target: ConformTarget):
        self.packet, self.overloads, self.entries, self.target = packet, of, entries, target
        base = next((specs.by_key[b] for o in of for b in o.bases), None)
        self.family = of[0].family
        self.tol = TOL if base is None else base.tol
        self.own = any(_is_own(o, target) for o in of)

    def run(self, depth: Depth) -> CheckResult | None:
        """Run every requested sample; None if the op has none in these dtypes."""
        result = self._result()
        for name, dtype, sample, call, grad in self._samples(depth):
            wrong = None
            try:
                with quiet():
                    expected = self._expected(call, sample, grad)
                    if expected is None:
                        continue
                    self._compare(call, sample, grad, expected)
            except Exception as error:  # raised by our kernel, or by a torch op that it calls
                wrong = str(error) if isinstance(error, Wrong) else raised(error)
            result.count(wrong, name, dtype_name(dtype))
        return result if result.tried else None

    def lost(self, why: str) -> CheckResult:
        """The result for an op that made its worker process end."""
        result = self._result()
        result.count(why)
        return result

    def _result(self) -> CheckResult:
        return CheckResult(self.packet, f"aten::{self.packet}", self.family, DISPATCH, self.own, "opinfo")

    def _samples(self, depth: Depth) -> Iterator[tuple[str, torch.dtype, Any, Callable[..., Any], bool]]:
        named = depth.sample is not None
        for entry in self.entries:
            title = ".".join(filter(None, (entry.name, entry.variant_test_name)))
            can = entry.supported_dtypes("cpu")
            dtypes = [d for d in depth.dtypes or DTYPES if d in can]
            for dtype in dtypes if depth.full or depth.dtypes or named else dtypes[:1]:
                grad = bool(dtype is torch.float32 and entry.supports_autograd and (depth.full or self.own or named))
                every = enumerate(drawn(entry, dtype, grad))
                some = every if depth.full or self.own or named else itertools.islice(every, 1)
                for at, sample in some:
                    name = f"{title} {at}"
                    if not named or name == depth.sample:
                        yield name, dtype, sample, entry.op, grad

    def _expected(self, call: Callable[..., Any], sample: Any, grad: bool) -> Outputs | None:
        """The results of ATen's own kernels, on the CPU if the device is simulated. None if they refuse the sample."""
        try:
            return both(call, *_on(sample, torch.device("cpu") if self.target.simulated else self.target.device), grad)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None

    def _compare(self, call: Callable[..., Any], sample: Any, grad: bool, expected: Outputs) -> None:
        with use(mode="all"):
            got = both(call, *_on(sample, self.target.device), grad)
        for what, ours, native, slack in zip(("result", "gradient"), got, expected, (SLACK, 4 * SLACK)):
            if len(ours) != len(native):
                raise Wrong(f"{len(ours)} {what}s, expected {len(native)}")
            for at, (a, b) in enumerate(zip(ours, native)):
                name = f"{what} {at}" if len(native) > 1 else what
                agree(name, a, b, self.target, None if self.family == RANDOM else self.tol, slack)


def agree(
    name: str, got: Tensor, want: Tensor, target: ConformTarget, tol: Mapping[Any, Tol] | None, slack: float
) -> None:
    """Raise Wrong if a result on the device differs from ATen's. Without `tol`, only shape and dtype are compared."""
    if target.simulated:  # norms on accelerators always return statistics, in float32
        if want.shape == (0,) != got.shape:
            return
        got = got.to(want.dtype) if got.dtype is torch.float32 and want.dtype in LOW else got
    if (got.shape, got.dtype, got.device.type) != (want.shape, want.dtype, target.device.type):
        raise Wrong(f"{name} is {in_words(got)}, expected {in_words(want).rpartition(' on ')[0]} on {target.device}")
    problem = None if tol is None else numbers(name, got, want, _tolerance(want, tol), slack)
    if problem is not None:
        raise Wrong(problem)


def _tolerance(want: Tensor, tols: Mapping[Any, Tol]) -> Tol:
    """The tolerance plus rtol times the mean, because ATen's kernels may round several times and terms may cancel."""
    tol = tols.get(want.dtype, EXACT)
    size = want.detach().abs().double() if want.is_complex() else want.detach().double().abs()
    mean = size[size.isfinite()].mean().nan_to_num().item()
    return Tol(tol.rtol, tol.atol + tol.rtol * mean)


def _on(sample: Any, device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, moved to a device. A `device=` argument is replaced."""
    move = lambda t: t.detach().to(device, copy=True).requires_grad_(t.requires_grad)
    args, kwargs = tree_map_only(Tensor, move, ([sample.input, *sample.args], dict(sample.kwargs)))
    return args, kwargs | ({"device": device} if "device" in kwargs else {})


def drawn(entry: Any, dtype: torch.dtype, grad: bool) -> Iterator[Any]:
    """OpInfo's samples, on the CPU, from one seed.

    `entry.sample_inputs` would first search the stack for a test's name, which takes 0.1 s.
    """
    random.seed(0)
    torch.default_generator.manual_seed(0)
    with quiet():
        yield from entry.sample_inputs_func(entry, "cpu", dtype, grad)


def both(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], grad: bool) -> Outputs:
    """The results of a call, and the gradients of its arguments."""
    outs = [t for t in tree_flatten(call(*args, **kwargs))[0] if isinstance(t, Tensor)]
    leaves = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor) and t.requires_grad]
    counted = [o for o in outs if o.requires_grad]
    if not grad or not counted or not leaves:
        return [o.detach() for o in outs], []
    weights = [torch.randn(o.shape, generator=torch.Generator().manual_seed(i)).to(o) for i, o in enumerate(counted)]
    gradients = torch.autograd.grad(counted, leaves, weights, allow_unused=True)
    return [o.detach() for o in outs], [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients)]


def _is_own(overload: Overload, target: ConformTarget) -> bool:
    """Whether the vendor has its own kernel for an overload."""
    from ...core.default import get_default_manager

    registry = get_default_manager().registry
    of_bases = (i for b in overload.bases for i in registry.impls(b))
    return target.device.type in overload.rows or any(i.of_vendor(target.package.name) for i in of_bases)


def infos(chosen: Iterable[Overload], target: ConformTarget) -> list[Info]:
    """The ops of these overloads that OpInfo has samples for."""
    by_packet = ((packet, of, entries_of(packet)) for packet, of in packets(chosen).items())
    return [Info(packet, of, entries, target) for packet, of, entries in by_packet if entries]


def entries_of(packet: str) -> list[Any]:
    """OpInfo's entries for an op of ATen. `_softmax` uses those of `softmax`."""
    return _entries().get(packet) or _entries().get(packet.lstrip("_"), [])


def every_entry() -> Iterable[Any]:
    return itertools.chain.from_iterable(_entries().values())


@functools.cache
def _entries() -> dict[str, list[Any]]:
    """OpInfo's entries by ATen's name of the op."""
    from torch.testing._internal.common_methods_invocations import op_db

    by_name: dict[str, list[Any]] = {}
    for entry in op_db:
        by_name.setdefault(entry.aten_name, []).append(entry)
    return by_name


def of_specs(chosen: Iterable[Overload], computed_by: Iterable[Spec]) -> list[Overload]:
    """The overloads that these specs compute."""
    keys = {s.key for s in computed_by}
    return [o for o in chosen if keys & set(o.bases)]

"""The checks of an op or of one impl: values, writes, errors, fake kernel, gradient, opcheck, torch.compile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core.default import get_default_manager
from ...core.errors import NoImplementation, NotSupported
from ...core.library import fake_call, packet
from ...core.spec import Sample, Spec
from ...core.tensors import dtype_name, tensors_in
from ..runner.check import Wrong, as_tuple, raised, short_error
from .compare import difference
from .record import FAIL, PASS, REFUSED, CheckResult, ImplRefusal
from .samples import Drawn, Watch, bound, by_name, in_words, moved, named, quiet, shared_memory, written
from .subject import Called, Crashed, Declined, Subject

# The factor for a gradient's tolerance: a gradient has the rounding errors of a forward and of a backward.
SLACK = 4.0
# The devices for which opcheck can run test_autograd_registration, which needs one of torch's own dispatch keys.
REGISTRATION = ("cpu", "cuda", "xpu")
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@dataclass
class Tally:
    """Counts the outcomes of a check over its samples, and makes the check's result from them."""

    subject: Subject
    check: str
    tried: int = 0
    failed: int = 0
    first: tuple[str, Drawn | None, str] | None = None  # the first failure: message, sample, sample id
    declined: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    ran: dict[str, None] = field(default_factory=dict)
    seconds: float = 0.0

    @contextmanager
    def trial(self, drawn: Drawn | None, sample: str = "") -> Iterator[None]:
        """A block that runs one sample. An exception in the block decides the sample's outcome."""
        start = time.perf_counter()
        try:
            yield
            self.tried += 1
        except Declined as error:
            self.decline(error, drawn)
        except Crashed as error:
            self.fail(str(error) if error.impl == self.subject.id else f"{error.impl} {error}", drawn, sample)
        except Wrong as error:
            self.fail(str(error), drawn, sample)
        except Exception as error:  # any error of an impl or its device fails only this check
            self.fail(raised(error), drawn, sample)
        self.seconds += time.perf_counter() - start

    def fail(self, what: str, drawn: Drawn | None, sample: str = "") -> None:
        self.tried, self.failed = self.tried + 1, self.failed + 1
        self.first = self.first or (what, drawn, drawn.id if drawn is not None else sample)

    def decline(self, error: Declined, drawn: Drawn | None) -> None:
        dtype = "" if drawn is None else dtype_name(drawn.dtype)
        self.declined.setdefault((error.impl, error.stage, error.reason), []).append(dtype)

    def result(self) -> CheckResult | None:
        """The result of the check; None if no sample was tried, because the check does not apply to this op."""
        if not self.tried and not self.declined:
            return None
        spec = self.subject.spec
        result = CheckResult(self.subject.name, spec.key, spec.family, self.subject.id, self.subject.own, self.check)
        result.tried, result.failed, result.ran = self.tried, self.failed, list(self.ran)
        result.refusals = [
            ImplRefusal(*why, samples=len(dtypes), dtypes=sorted(filter(None, set(dtypes))))
            for why, dtypes in self.declined.items()
        ]
        result.seconds = round(self.seconds, 4)
        result.status = FAIL if self.failed else PASS if self.tried else REFUSED
        if self.first is not None:
            result.reason, drawn, result.sample = self.first
            result.dtype = None if drawn is None else dtype_name(drawn.dtype)
        elif result.status == REFUSED:
            first = result.refusals[0]
            result.reason = f"{first.stage}: {first.reason}"
        return result


# ---- forward --------------------------------------------------------------------------------------------------------


def forward(
    subject: Subject, drawn: Drawn, device: torch.device, tallies: dict[str, Tally], every: bool = True
) -> Called | None:
    """Run the forward on one sample; check its results, its arguments after the call, and the fake kernel's results.

    Returns the outcome of the call, or None if it declined or failed. Without `every`, the fake kernel is checked
    only if the first tensor is not contiguous, because results may then have other strides.
    """
    spec = subject.spec
    sample = drawn.on(device)
    arguments = named(spec, sample)
    watch = Watch(arguments, spec.mutates)
    returned: dict[str, Any] = {}  # the returned values
    after: dict[str, Any] = {}  # the returned values, and the arguments that the call wrote
    called: Called | None = None
    with tallies["values"].trial(drawn), quiet():
        called = subject.call(sample)
        ran = called.impl.impl_id
        returned = _by_name(spec, called.results)
        after = returned | written(spec, sample)
        tallies["values"].ran[ran] = None
        for declined in called.before:
            tallies["values"].decline(declined, drawn)
        _on_the_device(after, device)
        problem = difference(after, drawn.results, spec)
        if problem is not None:
            raise Wrong(problem if ran == subject.id else f"{problem} ({ran})")
    with tallies["mutation"].trial(drawn):
        _untouched(watch, arguments, returned, fresh=spec.space == "opmux")
    if after and "fake" in tallies and (every or not _is_packed(spec, sample)):
        with tallies["fake"].trial(drawn), quiet():
            _check_fake(spec, drawn.on(device), after)
    return called


def _is_packed(spec: Spec, sample: Sample) -> bool:
    first = spec.first_tensor(sample.args, sample.kwargs)
    return first is None or first.is_contiguous()


def _by_name(spec: Spec, returned: Any) -> dict[str, Any]:
    try:
        return by_name(spec, returned)
    except ValueError as error:
        raise Wrong(str(error)) from None


def _on_the_device(got: dict[str, Any], device: torch.device) -> None:
    for name, value in got.items():
        if isinstance(value, Tensor) and value.device.type != device.type:
            raise Wrong(f"{name} is {in_words(value)}, and the arguments are on {device}")


def _untouched(watch: Watch, arguments: dict[str, Any], returned: dict[str, Any], fresh: bool) -> None:
    problem = watch.changed() or (shared_memory(arguments, returned) if fresh else None)
    if problem is not None:
        raise Wrong(problem)


def _check_fake(spec: Spec, sample: Sample, got: dict[str, Any]) -> None:
    """Compare results with the shapes, dtypes, strides and devices that the fake kernel tells torch.compile."""
    predicted = _by_name(spec, fake_call(spec, sample.args, sample.kwargs))
    for name, want in predicted.items():
        value = got[name]
        if not isinstance(want, Tensor):
            continue
        for what, a, b in (
            ("shape", tuple(value.shape), tuple(want.shape)),
            ("dtype", value.dtype, want.dtype),
            ("device", value.device.type, want.device.type),
            ("strides", strides(value), strides(want)),
        ):
            if a != b:
                raise Wrong(f"{name} has {what} {a}, and the fake kernel says {b}")


def strides(t: Tensor) -> tuple[int, ...]:
    """The strides of dimensions larger than 1; strides of other dimensions do not matter."""
    return tuple(s for n, s in zip(t.shape, t.stride()) if n > 1) if t.numel() else ()


# ---- errors ---------------------------------------------------------------------------------------------------------


def errors(subject: Subject, device: torch.device, tally: Tally) -> None:
    """Check that invalid arguments raise an error that names them, and that nothing is written.

    An impl may also decline, because the reference then raises the error.
    """
    assert subject.spec.errors is not None
    for bad in subject.spec.errors(device):
        if not bad.typed and (subject.direct or subject.spec.space == "tex"):
            # A direct call bypasses opmux's entry point, which checks types. tex accepts any flag, as NVIDIA's does.
            continue
        sample = bound(subject.spec, bad)
        watch = Watch(named(subject.spec, sample))
        with tally.trial(None, bad.id), quiet():
            _refuses(subject, sample, bad.error, bad.match)
            changed = watch.changed()
            if changed is not None:
                raise Wrong(f"refused the arguments, but {changed}")


def _refuses(subject: Subject, sample: Sample, error: type[Exception], match: str) -> None:
    expected = f"expected {error.__name__} with words like /{match}/"
    try:
        results = subject.fn(*sample.args, **sample.kwargs) if subject.impl is None else subject.call(sample).results
    except Declined as declined:
        if not isinstance(declined.__cause__, NotSupported) and declined.stage == "declined":
            raise Wrong(f"raised {declined.reason}; {expected}") from None
        return
    except Exception as error_raised:
        actual = error_raised.error if isinstance(error_raised, Crashed) else error_raised
        # Dispatch raises its own errors: if every impl declines, and if a tensor argument is not a tensor.
        kinds = (error, NoImplementation) if error is NotSupported else (error,)
        matches = re.search(match, str(actual)) or _named_by_dispatch(subject.spec, actual)
        if not isinstance(actual, kinds) or not matches:
            raise Wrong(f"{raised(actual)}; {expected}") from None
        return
    first = next(tensors_in(as_tuple(results)), None)
    raise Wrong(f"returned {'no tensor' if first is None else in_words(first)}; {expected}")


def _named_by_dispatch(spec: Spec, error: BaseException) -> bool:
    return isinstance(error, TypeError) and str(error).startswith(f"{spec.name}: argument '")


# ---- gradients ------------------------------------------------------------------------------------------------------


def gradient(subject: Subject, drawn: Drawn, device: torch.device) -> None:
    """Compare the op's forward and backward under autograd with autograd through the reference."""
    spec = subject.spec
    call = subject.fn
    if subject.direct:
        assert subject.impl is not None
        call = subject.impl.call
    with subject.scope(), quiet():
        outs, grads = backward(spec, call, drawn.on(device))
    if not subject.direct:
        _raise_if_an_impl_failed()
    with quiet():
        expected = _autograd(spec, drawn) if _is_precise(drawn) else None
        if not expected:
            from_backward = by_the_backward(spec, drawn.sample, list(drawn.results.values()))
            leaves = _leaves(spec, drawn.sample)
            expected = {f"d{n}": from_backward[f"d{n}"].to(leaf.dtype) for n, leaf in leaves.items()}
    results = {n: v for n, v in drawn.results.items() if n in outs}
    problem = difference(outs, results, spec) or difference(grads, expected, spec.gradient.backward, SLACK)
    if problem is not None:
        raise Wrong(problem)


def _is_precise(drawn: Drawn) -> bool:
    """Whether autograd through the reference is precise enough. With float16 or bfloat16, each step may round."""
    involved = (*tensors_in((drawn.sample.args, drawn.sample.kwargs)), *tensors_in(list(drawn.results.values())))
    return all(t.dtype in (torch.float32, torch.float64) for t in involved if t.is_floating_point())


def is_differentiable(drawn: Drawn) -> bool:
    """Whether a sample has a differentiable argument and result."""
    spec = drawn.spec
    outs = zip(drawn.results.values(), spec.gradient.differentiable)
    return bool(_leaves(spec, drawn.sample)) and any(d and o.is_floating_point() for o, d in outs)


def _raise_if_an_impl_failed() -> None:
    """Raise if an impl has failed. Dispatch falls back after a failure, which would hide it."""
    manager = get_default_manager()
    first = next(iter(manager.failures()), None)
    if first is not None:
        manager.clear_quarantine()
        raise Wrong(f"{first.op}: {first.impl_id} failed, and dispatch fell back: {first.reason}")


def _weights(out: Tensor, seed: int) -> Tensor:
    """A random incoming gradient, with the same numbers on every device."""
    drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(out.device, out.dtype)


def backward(
    spec: Spec, call: Callable[..., Any], sample: Sample, weights: Callable[[Tensor, int], Tensor] = _weights
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a call, and the gradients of its arguments. `weights` draws the results' incoming gradients."""
    leaves = _leaves(spec, sample)
    bound_now = spec.signature.bind(**(named(spec, sample) | leaves))
    with torch.enable_grad():
        outs = _by_name(spec, call(*bound_now.args, **bound_now.kwargs))
    counted = [o for o, d in zip(outs.values(), spec.gradient.differentiable, strict=True) if d and o.requires_grad]
    if not counted:
        raise Wrong("no result requires grad: autograd does not record the op")
    torch.autograd.backward(counted, [weights(o, i) for i, o in enumerate(counted)])
    grads = {f"d{n}": t.grad if t.grad is not None else torch.zeros_like(t) for n, t in leaves.items()}
    return {n: o.detach() if isinstance(o, Tensor) else o for n, o in outs.items()}, grads


def _leaves(spec: Spec, sample: Sample) -> dict[str, Tensor]:
    """The arguments that have a gradient, as new leaves that require grad."""
    arguments = named(spec, sample)
    targets = {spec.names[i] for i in spec.gradient.targets}
    floats = {n: v for n, v in arguments.items() if n in targets and isinstance(v, Tensor) and v.is_floating_point()}
    return {n: v.detach().requires_grad_() for n, v in floats.items()}


def _autograd(spec: Spec, drawn: Drawn) -> dict[str, Any] | None:
    """Gradients by autograd through the reference; None if the reference is not differentiable."""
    try:
        return backward(spec, spec.reference, moved(drawn.sample, torch.device("cpu")))[1]
    except (Wrong, RuntimeError):
        return None


def by_the_backward(
    spec: Spec, sample: Sample, outs: Sequence[Any], weights: Callable[[Tensor, int], Tensor] = _weights
) -> dict[str, Any]:
    """Gradients from the backward op's reference, which are the expected values in low precision."""
    plan, arguments = spec.gradient, spec.bound(sample.args, sample.kwargs)[0]
    counted = [i for i, d in enumerate(plan.differentiable) if d]
    grads = {i: weights(outs[i], at) for at, i in enumerate(counted)}
    values = {"grad": grads, "in": arguments, "look": arguments, "out": outs}
    with torch.no_grad():
        gradients = as_tuple(plan.backward.reference(*(values[kind][i] for kind, i in plan.sources)))
    return {f"d{spec.names[i]}": g for i, g in zip(plan.targets, gradients, strict=True)}


# ---- torch.library and torch.compile --------------------------------------------------------------------------------


def opcheck(subject: Subject, drawn: Drawn, device: torch.device, all_tests: bool = True) -> None:
    """Run torch's checker for custom ops, with the tests that support this device. The last test takes 0.5 s."""
    spec = subject.spec
    sample = drawn.on(device)
    if spec.grad:
        sample = bound(spec, Sample((), named(spec, sample) | _leaves(spec, sample)))
    unknown = () if device.type in REGISTRATION else ("test_autograd_registration",)
    tests = [t for t in OPCHECKS if t not in (*unknown, *(() if all_tests else OPCHECKS[-1:]))]
    with subject.scope(), quiet():
        outcomes = torch.library.opcheck(
            packet(spec).default, sample.args, sample.kwargs, test_utils=tests, raise_exception=False
        )
    for test, outcome in outcomes.items():
        if outcome != "SUCCESS":
            raise Wrong(f"{test}: {short_error(outcome) if isinstance(outcome, BaseException) else outcome}")
    _raise_if_an_impl_failed()


def compiled(subject: Subject, drawn: Drawn, device: torch.device) -> None:
    """Compare torch.compile(fullgraph=True) of the op, forward and backward, with the same call in eager mode."""
    import torch._dynamo

    spec, fn = subject.spec, subject.fn
    torch._dynamo.reset()  # all ops share the code of this lambda, whose recompilations are limited
    traced = torch.compile(lambda *a, **k: fn(*a, **k), fullgraph=True, backend="aot_eager", dynamic=False)
    runs = []
    with subject.scope(), quiet():
        for call in (fn, traced):
            if spec.grad and drawn.dtype.is_floating_point:
                outs, grads = backward(spec, call, drawn.on(device))
                runs.append(outs | grads)
            else:
                sample = drawn.on(device)
                with torch.no_grad():
                    runs.append(_by_name(spec, call(*sample.args, **sample.kwargs)))
    _raise_if_an_impl_failed()
    results, grads = ({n: v for n, v in runs[0].items() if (n in spec.out) is is_result} for is_result in (True, False))
    problem = difference(runs[1], results, spec)
    problem = problem or (difference(runs[1], grads, spec.gradient.backward, SLACK) if grads else None)
    if problem is not None:
        raise Wrong(f"compiled, {problem}")

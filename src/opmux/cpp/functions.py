"""Launches ops of `opmux.ops` with gradients from C++: `accelerate` replaces `apply` of an op's autograd.Function.

The native library (library.py) is compiled when the first differentiable op is called on CUDA. After some calls
with the same key (dtypes, shapes, strides, numbers) one call is recorded (launching.py). C++ then launches further
calls with this key, and their backwards (native/functions.cpp). Without the library, every call runs in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..core import autograd, machine
from ..core.entry import EntryPoint
from ..core.spec import Spec
from . import launching
from . import library as native_library

# Families whose launches depend only on the arguments. Excluded are dropout, whose random offset differs in every call,
# and grouped ops, whose number of rows per expert does.
FAMILIES = launching.FAMILIES | {"divergence", "loss", "norm_variant", "residual", "rope", "sparsemax"}
_KINDS = {"grad": 0, "in": 1, "look": 2, "out": 3}  # Source::Kind; "look": only shape and dtype are read
_NUMBER = 4
_DEVICES = {"cpu": 0, "cuda": 1}  # c10::DeviceType
_MOST_ARGUMENTS = 16  # must match functions.cpp

Apply = Callable[..., Any]


class _FunctionsState:
    device = "cuda"  # C++ launches only on this device type; tests change it


def accelerate(
    spec: Spec, entry: EntryPoint, backward: EntryPoint, apply: Apply, replace: Callable[[Apply], None]
) -> Apply:
    """Return an `apply` that launches from C++. If that is not ready, return `apply` now, and call `replace` later."""
    if spec.family not in FAMILIES or _FunctionsState.device not in (*machine.accelerators(), "cpu"):
        return apply
    if max(len(spec.names), len(spec.gradient.sources)) > _MOST_ARGUMENTS:
        return apply
    if spec.writes or not launching.drives():
        return apply

    def accelerated() -> Apply:
        library = native_library.loaded()
        assert library is not None
        return _Accelerated(library, spec, entry, backward, apply).apply

    if native_library.soon(lambda: replace(accelerated())) or not native_library.available():
        return apply
    return accelerated()


class _Accelerated:
    """The functions that C++ calls for one op. `record` and `record_backward` pass the recorded launches to C++."""

    def __init__(
        self, library: native_library.Library, spec: Spec, entry: EntryPoint, backward: EntryPoint, apply: Apply
    ):
        self._library, self._spec, self._entry, self._backward, self._plain = library, spec, entry, backward, apply
        self._saved = saved = autograd.Saved(spec)
        self._function = apply.__self__.backward  # type: ignore[attr-defined]
        plan, kinds = spec.gradient, list(saved.kinds.values())
        edges, count = [], 0
        for kind in kinds:
            edges.append(-1 if kind == "plain" else count)
            count += kind != "plain"
        takes = [(_NUMBER if k == "in" and kinds[i] == "plain" else _KINDS[k], i) for k, i in plan.sources]
        flat = lambda pairs: tuple(n for pair in pairs for n in pair)
        self.apply: Apply = library.functions_new(
            autograd.name_of(spec).encode(),
            tuple(edges),
            flat((_KINDS[k], i) for k, i in saved.tensors),
            flat(takes),
            tuple(plan.targets),
            tuple(map(int, plan.differentiable)),
            _DEVICES[_FunctionsState.device],
            (apply, self.record, self.backward, self.record_backward),
        )

    def record(self, run: Callable[..., Any], *args: Any) -> Any:
        """Run the Function's `apply`, and pass the launches of the forward to C++."""
        if launching.is_recording():
            return self._plain(run, *args)
        pair, since, recorder = self._backward.pair(), self._library.functions_epoch(), launching.LaunchRecorder()
        watched = _watched(self._entry.pair(), recorder)
        results = self._plain(lambda *a, **k: watched(*a, **k), *args)
        outs = autograd.results_of(self._spec, results)
        recorded = launching.Recorded()
        # Do not record calls with integer results (cumsum with dtype=): C++ would give such a result a gradient.
        pairs = zip(outs, self._spec.gradient.differentiable, strict=True)
        integers = any(d and isinstance(o, Tensor) and not o.is_floating_point() for o, d in pairs)
        if not integers and recorder.describe(recorded):
            objects = (pair, *(None if isinstance(args[i], Tensor) else args[i] for i in self._saved.others))
            shapes = tuple(autograd.shape_only(args[i]) for kind, i in self._saved.tensors if kind == "look")
            self._library.functions_keep(self.apply, args, outs, recorded, since, objects, shapes)
        return results

    def backward(self, saved: tuple, objects: tuple, needed: tuple, forward: int, grads: tuple) -> tuple:
        """Run the Function's Python backward."""
        return self._function(_Context(saved, objects, needed), *grads)

    def record_backward(self, saved: tuple, objects: tuple, needed: tuple, forward: int, grads: tuple) -> tuple:
        """Run the Function's Python backward, and pass its launches to C++."""
        if launching.is_recording():
            return self.backward(saved, objects, needed, forward, grads)
        recorder, calls, since = launching.LaunchRecorder(), [], self._library.functions_epoch()
        (target, recover), *non_tensors = objects
        watched = _watched((target, recover), recorder)

        def recording(*args: Any) -> Any:
            results = watched(*args)
            calls.append((args, autograd.results_of(self._spec.gradient.backward, results)))
            return results

        gradients = self.backward(saved, ((recording, recover), *non_tensors), needed, forward, grads)
        recorded = launching.Recorded()
        if calls and recorder.describe(recorded):
            self._library.functions_keep_backward(self.apply, forward, *calls[0], recorded, since)
        return gradients


class _Context:
    """The attributes of the context that a Function's backward reads."""

    __slots__ = ("needs_input_grad", "saved_objects", "saved_tensors")

    def __init__(self, saved: tuple, objects: tuple, needed: tuple):
        self.saved_tensors, self.saved_objects, self.needs_input_grad = saved, objects, needed


def _watched(pair: tuple, recorder: launching.LaunchRecorder) -> Callable[..., Any]:
    """A pair as one function that records what the implementation does, but not its selection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        target, recover = getattr(pair[0], "follow", lambda *call: pair)(args, kwargs)
        try:
            with recorder:
                return target(*args, **kwargs)
        except Exception as error:
            return recover(error, args, kwargs)

    return call

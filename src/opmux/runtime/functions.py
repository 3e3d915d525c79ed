"""Ops of `opmux.ops` with gradients, launched from C++: `hasten` replaces `apply` of an op's autograd.Function.

`functions.cpp` is compiled when the first differentiable op is called on CUDA (runtime/build.py). After some calls that
look the same, one is recorded (launching.py); further ones are launched from C++, and so are their backwards. Without a
compiler, or with OPMUX_CPP=0, every call is one of the Function in Python.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import autograd, machine
from ..core.entry import EntryPoint
from ..core.lock import ForkSafeLock
from ..core.log import logger
from ..core.spec import Spec
from . import background, build, launching
from .settings import CPP

SOURCES = (Path(__file__).with_name("functions.cpp"), launching.HEADER)
# Families whose kernels depend on the arguments alone. Of dropout every call has another offset, and of experts' rows
# another shape.
FAMILIES = launching.FAMILIES | {"divergence", "loss", "norm_variant", "residual", "rope", "sparsemax"}
_KINDS = {"grad": 0, "in": 1, "look": 2, "out": 3}  # Source::Kind
_NUMBER = 4
_DEVICES = {"cpu": 0, "cuda": 1}  # c10::DeviceType
_MOST_ARGUMENTS = 16  # as in functions.cpp

Apply = Callable[..., Any]
COMPILE = (
    "from opmux.runtime import build, functions; build.library('functions', functions.SOURCES, flags=functions.flags())"
)


class _Library:
    """The functions of functions.cpp."""

    def __init__(self, loaded: ctypes.CDLL):
        holding = ctypes.PyDLL(None, handle=loaded._handle)
        thing, number = ctypes.py_object, ctypes.c_uint64

        def function(name: str, returns: Any, *takes: Any) -> Any:
            made = getattr(holding, f"opmux_functions_{name}")
            made.restype, made.argtypes = returns, takes
            return made

        self.new = function("new", thing, ctypes.c_char_p, *[thing] * 5, ctypes.c_int, thing)
        self.epoch = function("epoch", number)
        recorded = ctypes.POINTER(launching.Recorded)
        self.keep = function("keep", ctypes.c_int, thing, thing, thing, recorded, number, thing, thing)
        self.keep_backward = function("keep_backward", ctypes.c_int, thing, number, thing, thing, recorded, number)


class _State:
    lock = ForkSafeLock().arm()  # a process may fork while another thread compiles
    library: _Library | None = None
    tried = False
    compiling = False
    waiting: list[Callable[[], None]] = []  # what is done when the library is there
    device = "cuda"  # the only one that C++ launches on; tests have another


def flags() -> tuple[str, ...]:
    """Compiler flags for Python's headers and torch's part of Python."""
    return ("-isystem", sysconfig.get_paths()["include"], "-ltorch_python")


def available() -> bool:
    """Whether calls can be launched from C++; compiles it on first use, unless OPMUX_CPP=0."""
    with _State.lock.held:
        if not _State.tried and CPP.get():
            try:
                loaded = build.load("functions", SOURCES, flags=flags())
                _State.library = _Library(loaded)
                launching.attach(loaded)
            except build.CannotBuild as error:
                logger.warning("ops with gradients are launched from Python, 5 to 20 us slower a call: %s", error)
        _State.tried = True
    return _State.library is not None


def _soon(use: Callable[[], None]) -> bool:
    """Whether the library has to be compiled first: another process does that, and `use` is called when it is there."""
    with _State.lock.held:
        if _State.tried or not CPP.get():
            return False
        if not _State.compiling:
            try:
                if build.is_built("functions", SOURCES, flags=flags()):
                    return False
                background.run(COMPILE, _compiled)
            except (build.CannotBuild, OSError) as error:
                logger.debug("nothing is compiled in the background: %s", error)
                return False  # `available` says why
            _State.compiling = True
            logger.info("C++ for ops with gradients is compiled by another process; Python launches them until then")
        _State.waiting.append(use)
        return True


def _compiled(error: str) -> None:
    if error:
        logger.warning("ops with gradients are launched from Python, 5 to 20 us slower a call: %s", error)
        with _State.lock.held:
            _State.tried = True
        return
    if available():
        for use in _State.waiting:
            use()
    _State.waiting.clear()


def hasten(
    spec: Spec, entry: EntryPoint, backward: EntryPoint, apply: Apply, replace: Callable[[Apply], None]
) -> Apply:
    """`apply` of an op's Function, or one that launches from C++ where it can; `replace` gets a late one."""
    if spec.family not in FAMILIES or _State.device not in (*machine.accelerators(), "cpu"):
        return apply
    few = max(len(spec.names), len(spec.gradient.sources)) <= _MOST_ARGUMENTS
    if not few or spec.writes or not launching.drives():
        return apply

    def made() -> Apply:
        assert _State.library is not None
        return _Hastened(_State.library, spec, entry, backward, apply).apply

    if _soon(lambda: replace(made())) or not available():
        return apply
    return made()


class _Hastened:
    """What C++ calls for one op, and tells C++ what it has recorded."""

    def __init__(self, library: _Library, spec: Spec, entry: EntryPoint, backward: EntryPoint, apply: Apply):
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
        self.apply: Apply = library.new(
            autograd.name_of(spec).encode(), tuple(edges), flat((_KINDS[k], i) for k, i in saved.tensors),
            flat(takes), tuple(plan.targets), tuple(map(int, plan.differentiable)), _DEVICES[_State.device],
            (apply, self.record, self.backward, self.record_backward),
        )  # fmt: skip

    def record(self, run: Callable[..., Any], *args: Any) -> Any:
        """`apply`, of which C++ keeps what the forward has launched."""
        if launching.is_recording():
            return self._plain(run, *args)
        pair, since, recorder = self._backward.pair(), self._library.epoch(), launching.Recorder()
        watched = _watched(self._entry.pair(), recorder)
        found = self._plain(lambda *a, **k: watched(*a, **k), *args)
        outs = autograd.results_of(self._spec, found)
        recorded = launching.Recorded()
        # C++ gives every result of `differentiable` a gradient; an integer (cumsum with dtype=) must have none.
        pairs = zip(outs, self._spec.gradient.differentiable, strict=True)
        integers = any(d and isinstance(o, Tensor) and not o.is_floating_point() for o, d in pairs)
        if not integers and recorder.describe(recorded):
            kept = (pair, *(None if isinstance(args[i], Tensor) else args[i] for i in self._saved.others))
            shapes = tuple(autograd.shape_only(args[i]) for kind, i in self._saved.tensors if kind == "look")
            self._library.keep(self.apply, args, outs, recorded, since, kept, shapes)
        return found

    def backward(self, saved: tuple, kept: tuple, needed: tuple, forward: int, grads: tuple) -> tuple:
        """The Function's own backward."""
        return self._function(_Context(saved, kept, needed), *grads)

    def record_backward(self, saved: tuple, kept: tuple, needed: tuple, forward: int, grads: tuple) -> tuple:
        """The same, of which C++ keeps what it has launched."""
        if launching.is_recording():
            return self.backward(saved, kept, needed, forward, grads)
        recorder, calls, since = launching.Recorder(), [], self._library.epoch()
        (target, recover), *rest = kept
        watched = _watched((target, recover), recorder)

        def noted(*args: Any) -> Any:
            found = watched(*args)
            calls.append((args, autograd.results_of(self._spec.gradient.backward, found)))
            return found

        made = self.backward(saved, ((noted, recover), *rest), needed, forward, grads)
        recorded = launching.Recorded()
        if calls and recorder.describe(recorded):
            self._library.keep_backward(self.apply, forward, *calls[0], recorded, since)
        return made


class _Context:
    """What a Function's backward reads of its context."""

    __slots__ = ("kept", "needs_input_grad", "saved_tensors")

    def __init__(self, saved: tuple, kept: tuple, needed: tuple):
        self.saved_tensors, self.kept, self.needs_input_grad = saved, kept, needed


def _watched(pair: tuple, recorder: launching.Recorder) -> Callable[..., Any]:
    """A pair as a function whose implementation is recorded; looking it up is not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        target, recover = getattr(pair[0], "follow", lambda *given: pair)(args, kwargs)
        try:
            with recorder:
                return target(*args, **kwargs)
        except Exception as error:
            return recover(error, args, kwargs)

    return call

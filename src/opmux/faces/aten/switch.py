"""The public functions that override torch's ops: `enable`, `disable`, `use`, `enabled_ops`, `native`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar, cast, get_args

import torch

from ...core.default import get_default_manager
from ...core.errors import OpmuxError, UnknownName
from ...core.loading import on_failure
from ...core.lock import lock
from ...core.log import logger
from ...core.tensors import first_tensor
from ...cpp import background
from ...cpp import library as native_library
from ...machine import devices
from ...tuning.speed_files import chip_of
from . import decisions, engine, planner, saved
from . import record as recording
from .overloads import Overload, table
from .schema import OverloadSchema, overloads

F = TypeVar("F", bound=Callable[..., Any])
Names = str | Iterable[str] | None
Mode = Literal["auto", "all"]
MODES = get_args(Mode)
AT_ONCE, PAUSE = 40, 0.03  # overloads registered per step, and seconds between steps


class BadMode(OpmuxError, ValueError):
    """The value of `mode` is not one of MODES."""


class Selection:
    """The overloads that one `enable()` or `use()` enables."""

    def __init__(self, include: Names, exclude: Names, mode: str, record: recording.Sink | None):
        if mode not in MODES:
            raise BadMode(f"mode = {mode!r}. Allowed: {', '.join(map(repr, MODES))}")
        self.include, self.exclude = _listed(include, "include"), _listed(exclude, "exclude")
        self.auto = mode == "auto"
        self.recorder = None if record is None else recording.CallRecorder(record)
        self.names: frozenset[str] = frozenset()  # the overloads that are enabled on at least one device
        self.requested: dict[str, frozenset[str]] = {}  # device type -> the requested overloads that we can compute
        self._of = -1  # `engine.generation()` at the last registration
        # The selection that was last read, and the value of `engine.generation()` at that time.
        self._read: tuple[int, saved.Selected] | None = None

    def turn_on(self, apply: Callable[[], Any], alone: bool = False) -> None:
        """Register an override for every overload of this selection, then call `apply`; `alone`: remove all others.

        Overloads are chosen without holding the lock, because the choice loads plugins and kernels. If `disable()` is
        called or a vendor is registered meanwhile, `turn_on` chooses again.
        """
        while True:
            generation = engine.generation()
            if self._of != generation:
                ready = self._saved(generation)
                if ready is None:
                    requested = self._choose()
                else:
                    self._take(ready)
                    requested = self.requested
                if alone and engine.leftovers(requested):
                    engine.remove()
                    generation = engine.generation()
                if ready is None:
                    engine.register(requested)
                    self._save(requested)
                else:
                    engine.register_deferred(_families(ready))
            with lock.held:
                if generation == engine.generation():
                    self._of = generation
                    apply()
                    return

    @property
    def _is_saved(self) -> bool:
        """Whether the chosen overloads are saved, which only auto mode does."""
        return self.auto and self.recorder is None and saved.usable()

    @property
    def was_saved(self) -> bool:
        """Whether an earlier process made this selection. `requested` then has only the names that it enabled."""
        return self._read is not None and self._read[0] == self._of

    def is_on(self, device: str) -> bool:
        """Whether overloads are requested on a device type, as far as is known before `turn_on`."""
        saved_names = {} if self._read is None else self._read[1]
        return bool(self.requested.get(device) or saved_names.get(device))

    def takes_long(self) -> bool:
        """Whether `turn_on` would compile the native library."""
        accelerated = self.auto and self.recorder is None and bool(devices.accelerators())
        return accelerated and native_library.must_be_compiled()

    def prepare(self) -> list[Callable[[], None]]:
        """Do the work of `turn_on` that any thread can do; return the rest as short steps for the main thread."""
        generation = engine.generation()
        ready = self._saved(generation)
        if ready is None:  # no earlier process has saved the choice
            self._choose()
            return []
        pairs = [(device, name, family) for device, names in _families(ready).items() for name, family in names.items()]
        batches = [pairs[i : i + AT_ONCE] for i in range(0, len(pairs), AT_ONCE)]
        return [functools.partial(self._register_some, generation, rows) for rows in batches]

    def _register_some(self, generation: int, rows: list[tuple[str, str, str]]) -> None:
        if generation != engine.generation():
            return  # `turn_on` registers all of them
        families: dict[str, dict[str, str]] = {}
        for device, name, family in rows:
            families.setdefault(device, {})[name] = family
        engine.register_deferred(families, some=True)

    def _saved(self, generation: int) -> saved.Selected | None:
        """The overloads that an earlier process has saved for this selection, or None."""
        if self._read is None or self._read[0] != generation:
            selected = saved.read(self.include, self.exclude) if self._is_saved else None
            if selected is None:
                return None
            self._read = generation, selected
        return self._read[1]

    def _take(self, selected: saved.Selected) -> None:
        """Use the selection that an earlier process has saved."""
        for device, names in selected.items():
            for name, taken in names.items():
                decisions.know(name, device, taken.limits, taken.by_python, taken.patient)
            logger.info('mode="auto" enables %d overloads on %s, as an earlier process has chosen', len(names), device)
        self.requested = {d: frozenset(names) for d, names in selected.items()}
        self.names = frozenset().union(*self.requested.values())

    def _save(self, taken: dict[str, frozenset[str]]) -> None:
        """Save the overloads, if the next process could load the kernels of each at its first call."""
        if not self._is_saved or not any(self.requested.values()):
            return
        for device, names in taken.items():
            if left := sorted(names - engine.deferrable_on(device)):
                logger.info("auto mode's selection is not saved: %s is overridden above autograd", left[0])
                return
        families = {n: table()[n].family for names in taken.values() for n in names}
        saved.write(self.include, self.exclude, {d: saved.of(d, names, families) for d, names in taken.items()})

    def _choose(self) -> dict[str, frozenset[str]]:
        """The overloads to override: device type -> names."""
        self.requested = resolved(self.include, self.exclude)
        taken = self.requested
        if self.auto:
            taken = self._taken()
            # `available` may compile the library. If that fails, fewer overloads are chosen.
            if any(taken.values()) and not native_library.available():
                taken = self._taken()
            _log_choice(self.requested, taken)
        self.names = frozenset().union(*taken.values())
        return taken if self.recorder is None else self.requested  # the recorder also counts calls left to torch

    def _taken(self) -> dict[str, frozenset[str]]:
        by_gate = decisions.gated()
        return {d: frozenset(n for n in names if _decision(n, d, by_gate).taken) for d, names in self.requested.items()}

    def every(self) -> frozenset[str]:
        """Every requested overload, including those that auto mode leaves to torch."""
        return frozenset().union(*self.requested.values())


def _families(selected: saved.Selected) -> dict[str, dict[str, str]]:
    return {device: {name: taken.family for name, taken in names.items()} for device, names in selected.items()}


def _decision(name: str, device: str, by_gate: bool | None = None) -> decisions.Decision:
    return decisions.decide(table()[name], device, by_gate)


def _log_choice(requested: dict[str, frozenset[str]], taken: dict[str, frozenset[str]]) -> None:
    for device, names in requested.items():
        if (device == "cpu" and len(requested) > 1) or not names:
            continue
        left = sorted(names - taken[device])
        why = f"; torch keeps the others, {left[0]} because {_decision(left[0], device).why}" if left else ""
        logger.info('mode="auto" enables %d of %d overloads on %s%s', len(taken[device]), len(names), device, why)


_base: Selection | None = None
_stack: list[Selection] = []  # the live `use()` blocks; the innermost block is last


def enable(
    include: Names = None,
    exclude: Names = None,
    mode: Mode = "auto",
    record: recording.Sink | None = None,
    wait: bool = False,
) -> list[str]:
    """Override torch's own ops with our kernels, for the whole process; returns the names of the enabled overloads.

    Args:
        include, exclude: ATen's names (`add`: all its overloads and in-place forms; `add.Tensor`: that overload), globs
            (`*softmax*`) and families (`family:norm`). An unknown name raises.
        mode: "auto" overrides an op only if our kernel was measured to be at least as fast as torch's on this chip,
            even if `include` names the op. On a chip that was never measured, such as a CPU, it overrides nothing,
            returns [] and logs a warning once; `opmux tune --aten` measures the chip. "all" overrides every op for
            which we have a kernel.
        record: a path or a text file. `disable()`, or the end of the program, writes JSON lines to it: the overloads
            that were called, the implementation, dtype and shapes, how often, and why torch's own kernel ran.
        wait: the first time on a machine, auto mode on an accelerator compiles C++ for some 30 s. By default another
            process does that; until then torch's own kernels run, and the result is empty. True waits until it is
            compiled.

    A later call replaces the selection of an earlier one.
    """
    selection = Selection(include, exclude, mode, record)
    if not wait and selection.takes_long() and _prepare(selection):
        return enabled_ops()
    selection.turn_on(lambda: _set_base(selection), alone=not _stack)
    _warn_if_nothing_is_enabled(selection)
    return enabled_ops()


def _warn_if_nothing_is_enabled(selection: Selection) -> None:
    """Warn once if auto mode leaves all requested overloads to torch, for example because this is a CPU."""
    from_file = selection.was_saved
    requested = {d: names for d, names in selection.requested.items() if names or from_file}
    if not selection.auto or selection.names or not requested:
        return
    device = next((d for d in requested if d != "cpu"), "cpu")
    if decisions.measured(chip_of(device)):
        why = "none of the requested overloads is faster"
        if example := min(requested[device], default=None):
            why += f", {example} because {_decision(example, device).why}"
    else:
        why = (
            "auto mode uses only kernels that were measured, and none was measured on it. "
            "`opmux tune --aten` measures them; opmux.enable(mode='all') runs them without that"
        )
    name = "a CPU" if device == "cpu" else chip_of(device)
    _warn_once(f'mode="auto" of opmux.enable() enables nothing on {name}, torch\'s own kernels run: {why}')


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


PREPARE = "import opmux; opmux.enable({include!r}, {exclude!r}, wait=True)"


def _prepare(selection: Selection) -> bool:
    """Let another process compile and choose, then enable the selection; False if that process cannot be started."""

    def proceed(steps: list[Callable[[], None]]) -> None:
        if _base is not selection:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            background.later(0.5, lambda: background.in_main_thread(lambda: proceed(steps)))
        elif steps:
            steps[0]()
            background.later(PAUSE, lambda: schedule(steps[1:]))
        else:
            selection.turn_on(lambda: _set_base(selection), alone=not _stack)

    def schedule(steps: list[Callable[[], None]]) -> None:
        # The planner's process is started here, because starting it in the main thread would delay a training step.
        if not steps and _base is selection and selection.is_on(planner.DEVICE):
            planner.start()
        background.in_main_thread(lambda: proceed(steps))

    def done(error: str) -> None:
        if error:
            logger.warning("auto mode stays off, torch's own kernels run: preparing it failed: %s", error)
            return
        steps: list[Callable[[], None]] = []
        try:
            if _base is selection:
                steps = selection.prepare()
        except Exception as raised:  # `turn_on` raises it again in the main thread
            logger.debug("auto mode is not prepared in the background: %s", raised)
        schedule(steps)

    try:
        program = PREPARE.format(include=selection.include, exclude=selection.exclude)
        background.run(program, done, {"OPMUX_PLANNER": "0"})
    except OSError as error:
        logger.info("auto mode is prepared in this process, as no other one can be started: %s", error)
        return False
    logger.info("auto mode is compiled by another process, once on this machine; torch's own kernels run until then")
    _set_base(selection)
    return True


def _set_base(selection: Selection | None) -> None:
    global _base
    before = _base
    on_failure(lambda: _set_base(before) if _base is selection else None)
    with lock.held:
        _base = selection
        _apply()


def disable() -> None:
    """Undo `enable`: every op runs torch's own kernel again."""
    global _base
    with lock.held:
        _base = None
        _stack.clear()
        _apply()
        engine.remove()


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """A block that may call `enable` and `disable`; at its end, the earlier selections are enabled again."""
    base, stack = _base, list(_stack)
    try:
        yield
    finally:
        disable()
        if base is not None:
            base.turn_on(lambda: _set_base(base))
        for selection in stack:
            selection.turn_on(lambda selection=selection: (_stack.append(selection), _apply()))


class use:
    """`with opmux.use():` or `@opmux.use(include=["softmax"])`: override torch's ops in a block or function.

    It applies to the whole process, because backward passes run on other threads. Blocks nest, and the innermost block
    applies; the same object may be entered again. The arguments are those of `enable`; `record` is written at the end
    of the block.
    """

    def __init__(
        self,
        include: Names = None,
        exclude: Names = None,
        mode: Mode = "auto",
        record: recording.Sink | None = None,
    ):
        self._selection = Selection(include, exclude, mode, record)

    def __enter__(self) -> use:
        self._selection.turn_on(lambda: (_stack.append(self._selection), _apply()))
        _warn_if_nothing_is_enabled(self._selection)
        return self

    def __exit__(self, *error: Any) -> None:
        with lock.held:
            for i in range(len(_stack) - 1, -1, -1):
                if _stack[i] is self._selection:
                    del _stack[i]
                    break
            _apply()

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return cast("F", inside)


def enabled_ops() -> list[str]:
    """The overloads of ATen that currently run our kernels on at least one device."""
    live = _live()
    return [] if live is None else sorted(n for n in live.names if engine.registered(n))


def native(op: Any) -> Callable[..., Any]:
    """ATen's own kernel of an op, even if it is overridden; `op`: "add.Tensor" or `torch.ops.aten.relu`, for example.

    The kernel runs below autograd. For an op without an overload name (`"add"`) the arguments choose the overload.
    """
    name = _name_of(op)
    if "." not in name and len(overloads(name)) > 1 and not isinstance(op, torch._ops.OpOverload):
        return engine.off_inside(getattr(torch.ops.aten, name))
    shape = OverloadSchema(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        x = first_tensor(args, kwargs)
        kernel = None if x is None else engine.native_of(name, x.device.type)
        return engine.off_inside(kernel or shape.op)(*args, **kwargs)

    run.__name__ = run.__qualname__ = name
    return run


def _name_of(op: Any) -> str:
    if isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        text = str(op).removeprefix("aten.")
    elif isinstance(op, str):
        text = op.removeprefix("aten::")
    else:
        raise TypeError(f"native takes 'add.Tensor' or torch.ops.aten.add.Tensor; got {op!r}")
    name = text.removesuffix(".default")
    packet, dot, _ = name.partition(".")
    known = [s.name for s in overloads(packet)]
    if not known or (dot and name not in known):
        from ...machine.vendor_ops import aten_names

        raise UnknownName("op of ATen", name, known or aten_names())
    return name


def _live() -> Selection | None:
    return _stack[-1] if _stack else _base


def _apply() -> None:
    live = _live()
    _record(live)
    counting = bool(recording.live)  # if so, each call goes through Python, where the recorder calls `_left_to_torch`
    engine.STATE.auto = live is not None and live.auto and not counting
    engine.STATE.request(frozenset() if live is None else live.names if not counting else live.every())
    planner.use(engine.STATE.auto and live is not None and live.is_on(planner.DEVICE))


def _record(live: Selection | None) -> None:
    """Start and stop recorders, so that the recorders of `enable` and of all live blocks are active."""
    recorders = {s.recorder: s for s in (_base, *_stack) if s is not None and s.recorder is not None}
    before = recording.live
    for recorder in recorders:
        recording.start(recorder)
    recording.left_to_torch = _left_to_torch if live is not None and live.auto else lambda name, first: ""
    for recorder in before:
        if recorder not in recorders:
            recording.stop(recorder)
    if bool(before) != bool(recording.live):
        get_default_manager().invalidate("calls are recorded" if recording.live else "calls are not recorded")


def _left_to_torch(name: str, first: Any) -> str:
    if first is None:
        return ""
    decision = _decision(name, first.device.type)
    if decision.takes(first):
        return ""
    return decision.why if not decision.taken else f"below the size that wins: {decision.why}"


# ---- names ----------------------------------------------------------------------------------------------------------


def _listed(value: Names, what: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(i, str) for i in items):
        raise TypeError(f"{what} takes names such as 'add', 'add.Tensor', '*softmax*', 'family:norm'; got {value!r}")
    return tuple(items)


def resolved(include: tuple[str, ...] | None, exclude: tuple[str, ...] | None) -> dict[str, frozenset[str]]:
    """The overloads of a selection that a device can compute: device type -> names."""
    can = engine.choosable()
    known = {n: o for overloads in can.values() for n, o in overloads.items()}
    chosen = set(known) if include is None else _matching(include, known)
    chosen -= _matching(exclude, known) if exclude else set()
    return {device: frozenset(chosen & overloads.keys()) for device, overloads in can.items()}


def _matching(names: Iterable[str], known: dict[str, Overload]) -> set[str]:
    matches: set[str] = set()
    for name in names:
        plain = name.strip().removeprefix("aten::")
        hits = {n for n, o in known.items() if refers_to(plain, n, o)}
        if not hits and not _exists(plain):
            raise UnknownName("op or family", name, _names(known))
        matches |= hits
    return matches


def refers_to(pattern: str, name: str, overload: Overload) -> bool:
    """Whether a name refers to an overload: it may be the overload's name, its op (all overloads and the in-place
    form), our op that computes it, a glob, or its family.
    """
    if pattern.startswith("family:"):
        return overload.family == pattern.removeprefix("family:").casefold()
    if pattern.endswith(".default"):
        return name == pattern.removesuffix(".default")
    packet = overload.shape.packet
    aliases = {name, packet, packet.strip("_"), *(b.rpartition("::")[2] for b in overload.bases)}
    if any(c in pattern for c in "*?["):
        return any(fnmatchcase(n, pattern) for n in aliases)
    return pattern in aliases


def _exists(name: str) -> bool:
    """Whether a name is valid even if no kernel on this machine computes it."""
    if any(refers_to(name, n, o) for n, o in table().items()):
        return True
    packet, dot, _ = name.partition(".")
    have = overloads(packet)
    return bool(have) and (not dot or any(s.name == name.removesuffix(".default") for s in have))


def _names(known: dict[str, Overload]) -> list[str]:
    packets = {o.shape.packet for o in table().values()}
    return sorted({*known, *packets, *(f"family:{o.family}" for o in table().values())})

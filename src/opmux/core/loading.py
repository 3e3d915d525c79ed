"""First use: what is loaded is loaded whole or not at all, once, and with nothing locked.

`Home` is the import that a declaration belongs to: the declaration counts when that import has succeeded.
`all_or_nothing` takes back what a thread has changed in a block that raises. `Once` is work that one thread does while
the others wait. A child process starts afresh: see `_forget_other_threads`.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from .lock import lock
from .log import logger

T = TypeVar("T")

PATIENCE = 30.0  # seconds that a thread waits for another one's work before it goes on without


class Home:
    """The import that a declaration is part of. Where that fails, nobody has to undo the declaration for it to be void.

    An import can end at any line (Ctrl-C, no memory), also while it is being undone, so nothing relies on an undo step:
    Python takes a module that fails out of `sys.modules`, and what it declared is `gone` from then on.
    """

    __slots__ = ("_names", "name")

    def __init__(self, names: dict[str, Any]):
        self.name: str = names["__name__"]
        self._names = names

    @classmethod
    def here(cls) -> Home | None:
        """The innermost import under way in this thread; None outside of one."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            names = frame.f_globals
            if frame.f_code.co_name == "<module>" and getattr(names.get("__spec__"), "_initializing", False):
                return cls(names)
            frame = frame.f_back
        return None

    @property
    def gone(self) -> bool:
        """Whether the import has failed, or the module was taken out since."""
        there = sys.modules.get(self.name)
        if there is None:
            return True
        names = getattr(there, "__dict__", {})
        # A module may put another object in its place; one from the same file is a second import.
        return names is not self._names and names.get("__file__") == self._names.get("__file__")

    @property
    def whole(self) -> bool:
        return not self.gone and not getattr(self._names.get("__spec__"), "_initializing", False)


class Declarations(dict[str, T]):
    """What modules declare by name when they are imported, each name once; void where the import failed."""

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, Home | None] = {}

    def declare(self, name: str, value: T) -> bool:
        """False where the name is declared already."""
        home = self._homes.get(name)
        if name in self and (home is None or not home.gone):
            return False
        self._homes[name] = Home.here()
        self[name] = value
        return True


# ---- all or nothing --------------------------------------------------------------------------------------------------


class Transaction:
    """What one thread has changed since a block began, and how to take it back."""

    def __init__(self) -> None:
        self.tagged: list[Any] | None = None  # what @impl tags meanwhile, where it is not for everybody at once
        self.first: Callable[[], Any] = lambda: None  # what is to be done before anything is taken back
        self._undo: list[tuple[Home | None, Callable[[], Any]]] = []
        self._over = False

    def note(self, undo: Callable[[], Any], home: Home | None) -> None:
        if not self._over:  # taking back is a change too
            self._undo.append((home, undo))

    def roll_back(self) -> None:
        """Take back all of it, the latest first; what a module has declared whose import succeeded stays."""
        self._over = True
        self.first()
        while self._undo:
            home, undo = self._undo.pop()
            if home is not None and home.whole:
                continue
            try:
                undo()
            except Exception as error:  # the rest must be taken back all the same
                logger.warning("could not be taken back: %s: %s", type(error).__name__, error)


_open: dict[int, list[Transaction]] = {}  # by thread, the outermost first


def all_or_nothing(work: Callable[[Transaction], T]) -> T:
    """Do some work; where it raises, whatever it is that it raises, take back what this thread has changed."""
    mine = _open.setdefault(threading.get_ident(), [])
    depth, made = len(mine), Transaction()
    try:
        mine.append(made)
        return work(made)
    except BaseException:
        made.roll_back()
        raise
    finally:
        del mine[depth:]


def current() -> Transaction | None:
    """The innermost block of this thread that may be taken back."""
    mine = _open.get(threading.get_ident())
    return mine[-1] if mine else None


def on_failure(undo: Callable[[], Any], home: Home | None = None) -> None:
    """How to take back a change that this thread is about to make, should the block around it fail."""
    open_here = current()
    if open_here is not None:
        open_here.note(undo, home)


# ---- once ------------------------------------------------------------------------------------------------------------


class Once:
    """Work that is done once, by one thread, with nothing locked: it may import and run anybody's code.

    The other threads wait for it, unless the one at work may be waiting for them: because they were started since it
    began, or because they import a module that it needs. Who is at work is read off the threads' stacks, so a thread
    that was interrupted anywhere, or is not in this process, is not.
    """

    def __init__(self, work: Callable[[], Any], what: str):
        self.done = False
        self._work, self._what = work, what
        self._by: int | None = None  # the thread that took the work up
        self._there: frozenset[int] = frozenset()  # the threads that there were then
        self._over = threading.Event()

    def run(self) -> bool:
        """Have the work done. False: it is not, and this thread goes on with what there is so far."""
        me = threading.get_ident()
        if self._by == me and self._is_below(sys._getframe(1)):
            return False  # the work itself asks
        until = time.monotonic() + PATIENCE
        while not self.done:
            if self._take(me):
                try:
                    self.done = self._work() is not False
                finally:
                    self._by = None
                    self._over.set()
                return self.done
            worker = self._by
            if worker is not None and (me not in self._there or _waits_for(worker, me)):
                return False
            if time.monotonic() > until:
                logger.warning("%s takes over %g s in another thread: this one goes on without", self._what, PATIENCE)
                return False
            self._over.wait(0.02)
        return True

    def _take(self, me: int) -> bool:
        with lock.held:
            if self.done or (self._by not in (None, me) and _runs_once(self._by)):
                return False
            self._over = threading.Event()
            self._there = frozenset(t.ident for t in threading.enumerate() if t.ident is not None)
            self._by = me
            return True

    def _is_below(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code is Once.run.__code__ and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False


def _runs_once(thread: int | None) -> bool:
    """Whether a thread is inside of `Once.run`."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        if frame.f_code is Once.run.__code__:
            return True
        frame = frame.f_back
    return False


# ---- import locks ----------------------------------------------------------------------------------------------------
# Python tells nobody which thread is importing what; these are importlib's own tables, the same in 3.11 to 3.14.

_bootstrap: Any = getattr(importlib, "_bootstrap", None)


def _waits_for(thread: int, me: int) -> bool:
    """Whether a thread is held up by an import of this one's, or of others that are."""
    blocking, seen = getattr(_bootstrap, "_blocking_on", {}), set()
    while thread not in seen:
        seen.add(thread)
        waits = blocking.get(thread)
        owners: set[Any] = {getattr(one, "owner", None) for one in (waits if isinstance(waits, list) else [waits])} - {
            None
        }
        if me in owners:
            return True
        thread = next(iter(owners), thread)
    return False


def _forget_other_threads() -> None:
    """In a child: what threads that are not here were in the middle of has not happened.

    A module that one of them was importing would be waited for for ever: it is taken out, and imported afresh.
    """
    me = threading.get_ident()
    locks = getattr(_bootstrap, "_module_locks", {})
    for name, ref in tuple(locks.items()):
        held = ref()
        if getattr(held, "owner", None) not in (None, me):
            locks.pop(name, None)
            sys.modules.pop(name, None)
    for thread in [t for t in _open if t != me]:
        for one in reversed(_open.pop(thread)):
            one.roll_back()


lock.after_fork.append(_forget_other_threads)
lock.arm()

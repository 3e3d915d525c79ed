"""Lazy loading: everything is loaded once, completely or not at all, and without a lock that could cause a deadlock.

`DeclaringImport` is the import during which something was declared. `all_or_nothing` undoes the changes that a thread
made in a block that raised. `Once` is work that one thread does while the others wait. After a fork, the child drops
other threads' unfinished work: see `_forget_other_threads`.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from .lock import Attempt, lock
from .log import logger

T = TypeVar("T")

WAIT_SECONDS = 30.0  # how long a thread waits for work of another thread before it continues without that work


class DeclaringImport:
    """The import during which something was declared. If the import fails, the declaration is void; nothing has to be
    undone.

    An import can fail at any line (Ctrl-C, out of memory), and an undo step could fail too. But Python always removes a
    module from `sys.modules` if its import fails, so `failed` tests that.
    """

    __slots__ = ("_names", "name")

    def __init__(self, names: dict[str, Any]):
        self.name: str = names["__name__"]
        self._names = names

    @classmethod
    def here(cls) -> DeclaringImport | None:
        """The innermost import that this thread is running; None outside of one."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            names = frame.f_globals
            if frame.f_code.co_name == "<module>" and getattr(names.get("__spec__"), "_initializing", False):
                return cls(names)
            frame = frame.f_back
        return None

    @property
    def failed(self) -> bool:
        """Whether the import has failed, or the module was removed from sys.modules since."""
        module = sys.modules.get(self.name)
        if module is None:
            return True
        names = getattr(module, "__dict__", {})
        # A module may replace itself in sys.modules. But another object from the same file means a second import.
        return names is not self._names and names.get("__file__") == self._names.get("__file__")

    @property
    def succeeded(self) -> bool:
        return not self.failed and not getattr(self._names.get("__spec__"), "_initializing", False)


class Declarations(dict[str, T]):
    """Declarations by name, each declared once."""

    def __init__(self) -> None:
        super().__init__()
        self._declared_in: dict[str, DeclaringImport | None] = {}

    def declare(self, name: str, value: T) -> bool:
        """Returns False if the name is already declared."""
        declared_in = self._declared_in.get(name)
        if name in self and (declared_in is None or not declared_in.failed):
            return False
        self._declared_in[name] = DeclaringImport.here()
        self[name] = value
        return True


# ---- all or nothing --------------------------------------------------------------------------------------------------


class Transaction:
    """The changes that one thread has made since a block began, and how to undo them."""

    def __init__(self) -> None:
        self.tagged: list[Any] | None = None  # if not None, collects what @impl tags instead of registering it
        self.first: Callable[[], Any] = lambda: None  # called before anything is undone
        self._undo: list[tuple[DeclaringImport | None, Callable[[], Any]]] = []
        self._over = False

    def note(self, undo: Callable[[], Any], declared_in: DeclaringImport | None) -> None:
        if not self._over:  # changes made by undo steps are not recorded
            self._undo.append((declared_in, undo))

    def roll_back(self) -> None:
        """Undo all changes, the latest first, except declarations of modules whose import succeeded."""
        self._over = True
        self.first()
        while self._undo:
            declared_in, undo = self._undo.pop()
            if declared_in is not None and declared_in.succeeded:
                continue
            try:
                undo()
            except Exception as error:  # continue with the other changes
                logger.warning("a change could not be undone: %s: %s", type(error).__name__, error)


_open: dict[int, list[Transaction]] = {}  # thread -> its transactions, the outermost first


def all_or_nothing(work: Callable[[Transaction], T]) -> T:
    """Run `work`; if it raises anything, undo what this thread has changed."""
    transactions = _open.setdefault(threading.get_ident(), [])
    depth, transaction = len(transactions), Transaction()
    try:
        transactions.append(transaction)
        result = work(transaction)
        del transactions[depth:]
        return result  # inside `try`, because Ctrl-C may come at any line
    except BaseException:
        try:
            transaction.roll_back()
        finally:
            del transactions[depth:]
        raise


def current() -> Transaction | None:
    """The innermost transaction of this thread."""
    transactions = _open.get(threading.get_ident())
    return transactions[-1] if transactions else None


def on_failure(undo: Callable[[], Any], declared_in: DeclaringImport | None = None) -> None:
    """Register how to undo a change that this thread is about to make, should the surrounding transaction fail."""
    open_here = current()
    if open_here is not None:
        open_here.note(undo, declared_in)


# ---- once ------------------------------------------------------------------------------------------------------------


class Once:
    """Work that is done once, by one thread, while the others wait. It may import and run any code.

    A plain lock around the work would deadlock in two cases. A plugin may start and join a thread that needs the work.
    And a thread that imports a plugin holds the import lock of that module. If the plugin needs the work, this thread
    waits for the working thread, which waits for the import lock. So a thread continues without the work if it was
    started after the work began, or if the working thread waits for one of its imports.

    Lock order: first import locks, then `lock.held`, under which nothing is imported. An attempt's lock is not part of
    the order: other threads only check whether it is held, and never wait for it.
    """

    def __init__(self, work: Callable[[], Any], what: str):
        self.done = False
        self._work, self._what = work, what
        self._attempt: Attempt | None = None  # the latest

    def run(self) -> bool:
        """Do the work or wait for it. Returns False if the work is not done and the caller must continue without it."""
        until = time.monotonic() + WAIT_SECONDS
        me = threading.current_thread()
        while not self.done:
            latest = self._attempt
            if latest is None or not latest.is_running():
                attempt = Attempt()
                with attempt.held:  # also released if interrupted, so that other threads stop waiting
                    if self._replace(latest, attempt):
                        self.done = self._work() is not False
                        return self.done
            elif latest.thread is me or me not in latest.threads or _waits_for(latest.thread.ident, me.ident):
                return False
            elif time.monotonic() > until:
                logger.warning("%s takes over %g s in another thread: continuing without it", self._what, WAIT_SECONDS)
                return False
            else:
                time.sleep(0.005)
        return True

    def _replace(self, latest: Attempt | None, attempt: Attempt) -> bool:
        """Publish an attempt. Returns False if another thread has published one first."""
        with lock.held:
            if self.done or self._attempt is not latest:
                return False
            self._attempt = attempt
            return True


# ---- import locks ----------------------------------------------------------------------------------------------------
# This code reads importlib's private tables, which are the same in Python 3.11 to 3.14. No public API tells which
# thread imports what, and a forked child keeps the import locks of threads that do not exist in it.

_bootstrap: Any = getattr(importlib, "_bootstrap", None)


def _waits_for(thread: int | None, me: int | None) -> bool:
    """Whether `thread` waits, directly or through other threads, for an import by thread `me`."""
    blocking, visited = getattr(_bootstrap, "_blocking_on", {}), set()
    while thread not in visited:
        visited.add(thread)
        waits = blocking.get(thread)
        locks = waits if isinstance(waits, list) else [waits]  # a list since Python 3.12
        owners = [owner for import_lock in locks if (owner := getattr(import_lock, "owner", None)) is not None]
        if me in owners:
            return True
        thread = next(iter(owners), thread)
    return False


def _forget_other_threads() -> None:
    """After a fork, in the child: undo the unfinished work of threads that do not exist here.

    If such a thread was importing a module, the child's next import of it would wait forever. So the module is removed.
    """
    me = threading.get_ident()
    locks = getattr(_bootstrap, "_module_locks", {})
    for name, ref in tuple(locks.items()):
        held = ref()
        if getattr(held, "owner", None) not in (None, me):
            locks.pop(name, None)
            sys.modules.pop(name, None)
    for thread in [t for t in _open if t != me]:
        for transaction in reversed(_open.pop(thread)):
            transaction.roll_back()


lock.after_fork.append(_forget_other_threads)
lock.arm()

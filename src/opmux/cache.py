"""The cache directory: its path, the check of its permissions, and atomic reading, replacing and locking of files.

Compiled code is loaded from here, so files that another user could have written are never read. Every folder of the
path must belong to this user or root, and others must not be able to write to it. A sticky folder such as /tmp is
allowed: others cannot rename our files there. After this check, only this user can change what a path refers to.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from .core.log import logger
from .settings import CACHE_DIR

try:
    import fcntl
    import grp
    import pwd
except ImportError:  # not Unix: files have no owners to check and no locks, but are still replaced atomically
    fcntl = grp = pwd = None

LEFTOVER = 3600.0  # seconds after which a temporary file is considered abandoned
NOTICE = 30.0  # seconds of waiting for a lock before the wait is logged
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotTrusted(PermissionError):
    """Raised for a folder or file that another user could have written. The message names it and says what to do."""


# ---- where ----------------------------------------------------------------------------------------------------------


def root() -> Path | None:
    """OPMUX_CACHE_DIR, else the folder opmux in XDG_CACHE_HOME or ~/.cache. None if all of these are missing."""
    configured = CACHE_DIR.get()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    if not Path(base).is_absolute():  # XDG specification: a relative path is ignored
        base = "~/.cache"
    try:
        return Path(configured or Path(base, "opmux")).expanduser().absolute()
    except RuntimeError:  # this user has no home directory, as in many containers
        return None


def make(folder: Path) -> None:
    """Create a folder and its parents, writable by this user only, and check who can write to them."""
    check(folder)
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # created by another process: checked below
                path.mkdir(0o700)
    check(folder)


def check(folder: Path) -> None:
    """Raise NotTrusted if a user other than this one and root could write to a folder or replace it.

    Symbolic links in the path are followed; the links and their targets are checked too. A missing folder passes.
    """
    if pwd is None:
        return
    real = Path(os.path.realpath(folder))
    for path in dict.fromkeys((*reversed(folder.parents), folder, *reversed(real.parents), real)):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        # In a user namespace, root's uid may not be 0, so take the owner of "/" as root.
        if status.st_uid not in (os.geteuid(), 0, Path("/").stat().st_uid):
            raise NotTrusted(f"{path} belongs to another user ({_user(status.st_uid)}), who could put files there")
        if stat.S_ISDIR(status.st_mode) and _open_to_others(status):
            if path != real and status.st_mode & stat.S_ISVTX:
                continue
            mode = stat.S_IMODE(status.st_mode)
            raise NotTrusted(f"other users can write to {path} (mode {mode:04o}): close it with `chmod go-w {path}`")


def _open_to_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_our_own_group(status.st_gid)


def _is_our_own_group(gid: int) -> bool:
    """Whether this user is the group's only member, as on systems that give each user a group and umask 002."""
    assert grp is not None and pwd is not None
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return user.pw_uid != 0 and (group.gr_gid, group.gr_name) == (user.pw_gid, user.pw_name) and not group.gr_mem


def _user(uid: int) -> str:
    assert pwd is not None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


# ---- files ----------------------------------------------------------------------------------------------------------


def open_file(file: Path) -> BinaryIO:
    """Open a file of a checked folder. Raises NotTrusted unless it is a regular file of this user or root."""
    return open(file, "rb", opener=_open_trusted)


def _open_trusted(path: str, flags: int) -> int:
    # O_NONBLOCK, because opening a named pipe would otherwise wait for a writer. Windows has neither flag.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        opened = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotTrusted(f"{path} is a symbolic link") from None
        raise
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise NotTrusted(f"{path} is not a regular file")
        if pwd is not None and status.st_uid not in (os.geteuid(), 0):
            raise NotTrusted(f"{path} belongs to another user ({_user(status.st_uid)})")
        if pwd is not None and _open_to_others(status):
            raise NotTrusted(f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o})")
    except BaseException:
        os.close(opened)
        raise
    return opened


def read(file: Path) -> bytes:
    """The contents of a file, opened with `open_file`."""
    with open_file(file) as opened:
        return opened.read()


def temporary_name(file: Path) -> Path:
    """A temporary name next to a file, for the contents that will replace it."""
    # The process id alone is not unique: on a shared disk, a process of another machine may have the same id.
    return file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def replace(file: Path, data: bytes) -> None:
    """Write a file atomically: a reader sees the old or the new contents. A symbolic link is replaced, not followed."""
    written = temporary_name(file)
    try:
        opened = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
        with os.fdopen(opened, "wb") as out:
            out.write(data)
        commit(written, file)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def commit(written: Path, file: Path) -> None:
    """Sync a written file to disk and rename it to its final name."""
    with written.open("r+b") as done:
        os.fsync(done.fileno())
    if file.is_dir() and not file.is_symlink():
        move_aside(file, "it is a folder")
    written.replace(file)


def move_aside(file: Path, why: str) -> None:
    """Rename an unusable file, so that its contents are kept, and log the new name."""
    aside = file.with_name(f"{file.name}.damaged-{secrets.token_hex(4)}")
    file.replace(aside)
    logger.warning("%s cannot be used (%s): it is kept as %s", file, why, aside.name)


def sweep(file: Path) -> None:
    """Remove temporary files of killed writers: those of this file at once, others after an hour.

    The caller holds the file's lock, so no other process is writing the file.
    """
    for path in file.parent.glob(".*.tmp"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.name.startswith(f".{file.stem}.") or time.time() - path.lstat().st_mtime > LEFTOVER:
                path.unlink()


# ---- locks ----------------------------------------------------------------------------------------------------------

_held: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


@contextlib.contextmanager
def locked(path: Path, timeout: float, *, required: bool) -> Iterator[None]:
    """Hold a lock against other processes and threads. The lock ends when its process ends.

    After `timeout` seconds without the lock, raises TimeoutError if `required`, else continues without the lock. If the
    file system has no locks: if `required`, the process that creates `<path>.held` holds the lock, else nothing is
    locked.
    """
    release: Callable[[], None] | None = None
    try:
        release = _wait(_flock, path, timeout)
    except _NoLocks as error:
        logger.info("%s: there are no locks on this file system (%s)", path, error)
        if required:
            release = _wait(_create, path.with_name(f"{path.name}.held"), timeout)
    except TimeoutError as error:
        if required:
            raise
        logger.warning("%s: not waiting any longer", error)
    try:
        yield
    finally:
        if release is not None:
            release()


def try_lock(path: Path) -> Callable[[], None] | None:
    """Take a lock without waiting. Returns the function that releases it; None if another process or thread has it.

    Raises OSError if the file system has no locks, or if the file cannot be created.
    """
    return _flock(path)


class _NoLocks(OSError):
    """The file system does not support locks."""


def _wait(take: Callable[[Path], Callable[[], None] | None], path: Path, timeout: float) -> Callable[[], None]:
    """Wait for a lock; returns the function that releases it."""
    start, logged = time.monotonic(), False
    while (release := take(path)) is None:
        waited = time.monotonic() - start
        if waited >= timeout:
            stale = ". Remove the file if no process uses it" if take is _create else ""
            raise TimeoutError(f"another process has held {path} for {timeout:g} s{stale}")
        if waited >= NOTICE and not logged:
            logged = True
            # a wait in the background delays nothing that the user sees
            level = logging.WARNING if threading.current_thread() is threading.main_thread() else logging.INFO
            logger.log(level, "waiting for another process that holds %s, %g s at most", path, timeout)
        time.sleep(0.01)
    return release


def _flock(path: Path) -> Callable[[], None] | None:
    if fcntl is None:
        raise _NoLocks("not a Unix")
    # A file object, not a descriptor: if Ctrl-C arrives before it is returned, its destructor unlocks the file.
    lock = open(path, "rb", buffering=0, opener=_open_lock)  # noqa: SIM115
    _held.add(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return functools.partial(_unlock, lock)
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        lock.close()
        raise _NoLocks(*error.args) from None
    _unlock(lock)  # another process holds the lock, or the file was removed meanwhile, so that its lock is useless
    return None


def _open_lock(path: str, flags: int) -> int:
    flags |= os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        if not Path(path).exists():
            raise
        return os.open(path, flags)  # root owns the file: read access is enough to wait for its lock


def _unlock(lock: io.FileIO) -> None:
    assert fcntl is not None
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a forked child shares the file
    lock.close()


def _create(path: Path) -> Callable[[], None] | None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return None
    return path.unlink


def _after_fork() -> None:
    """Close the lock files that the child inherited: through them, a killed parent's locks would stay held."""
    for lock in tuple(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

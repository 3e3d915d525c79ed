"""Faults in both caches: damaged files, other users, full disks, Ctrl-C and kill -9 at any line of code.

After each fault the next use works: no stored entry is lost, nothing damaged is loaded, nothing hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from opmux import cache as cache_dir
from opmux.cpp import build
from opmux.cpp.build import CannotBuild
from opmux.machine.devices import Chip
from opmux.tuning import speed_files
from opmux.tuning import tiles as tuning
from opmux.tuning.tiles import Entry

CHIP = Chip("acme", "sm_90", "Acme One (80 GB)", "550.54")
GOOD = {f"kernel_{i:02}[n<={2**i}]": Entry({"threads": 32 * i}, 0.5 + i, 1.5 + i, "softmax", "8x8") for i in range(12)}
NEW = {"new[n<=1]": Entry({"threads": 64}, 0.1, 0.2, "gelu", "1x1")}

COUNTS = {
    "tuning file cut": 120,
    "tuning file, a bit flipped": 160,
    "library cut": 60,
    "library, a bit flipped": 120,
    "record cut": 30,
    "record, a bit flipped": 60,
    "loaded in a process of its own": 24,
    "something else in place": 24,
    "killed while storing": 40,
    "killed while building": 40,
    "full disk while storing": 30,
    "full disk while building": 30,
    "Ctrl-C while storing": 40,
    "Ctrl-C while building": 40,
}


def faults(name: str) -> Iterator[float]:
    """The positions of the faults, between 0 (start) and 1 (end)."""
    for i in range(COUNTS[name]):
        yield i / (COUNTS[name] - 1)


def test_at_least_700_faults_are_tested():
    assert sum(COUNTS.values()) >= 700


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # on a busy disk, hundreds of fsync calls take minutes
    monkeypatch.setattr(speed_files, "LOCK_TIMEOUT", 20.0)
    monkeypatch.setattr(build, "LIMIT", 20.0)
    tuning.forget()
    yield tmp_path / "cache"
    tuning.forget()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "opmux")
    return lambda: caplog.messages


@pytest.fixture(scope="module")
def answer(tmp_path_factory) -> bytes:
    """The bytes of a real library with a function and a page of data, or random bytes if there is no compiler."""
    folder = tmp_path_factory.mktemp("answer")
    compiler = next(filter(None, map(shutil.which, build.COMPILERS)), None)
    if compiler is None:
        return os.urandom(16384)
    source = folder / "answer.cpp"
    source.write_text('char data[9000] = {42};\nextern "C" int answer() { return data[0]; }\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "answer.so", source], check=True)
    return (folder / "answer.so").read_bytes()


@pytest.fixture
def fake_library(tmp_path, monkeypatch, answer):
    """A library built by a fake compiler, which takes no time and counts its calls."""
    source = tmp_path / "thing.cpp"
    source.write_text("one")
    runs = []

    def run(command: list[str]) -> tuple[int, str]:
        runs.append(command)
        Path(command[command.index("-o") + 1]).write_bytes(answer)
        return 0, ""

    monkeypatch.setattr(build, "compiler", lambda: build.Compiler(("made_up",), "1.0"))
    monkeypatch.setattr(build, "_run", run)
    return SimpleNamespace(
        sources=[source],
        runs=runs,
        build=lambda: build.library("thing", [source]),
        answer=answer,
        load=_load(source),
    )


def _load(source: Path) -> Callable[[], int]:
    def load() -> int:
        build.load("thing", [source])
        return ctypes.CDLL(f"/proc/self/fd/{build._loaded[-1].fileno()}").answer()

    return load


def flipped(data: bytes, where: float) -> bytes:
    position = int(where * (len(data) - 1))
    return data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]


def cut(data: bytes, where: float) -> bytes:
    return data[: int(where * (len(data) - 1))]


def in_a_child(action: Callable[[], int | None]) -> int:
    """The exit status of a forked process. If a signal ended the process, the status is the negative signal number."""
    child = os.fork()
    if not child:
        status = 99
        try:
            signal.alarm(60)
            status = action() or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def temporary(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.suffix in (".tmp", ".held")]


# ---- damaged files --------------------------------------------------------------------------------------------------


def lost(entries: dict[str, Entry]) -> set[str]:
    return {k for k, e in GOOD.items() if entries.get(k) != e}


@pytest.mark.parametrize("name", ["tuning file cut", "tuning file, a bit flipped"])
def test_a_damaged_tuning_file_loses_at_most_two_entries(name, cache):
    file = tuning.store(CHIP, GOOD)
    whole = file.read_bytes()
    for where in faults(name):
        shutil.rmtree(cache)
        cache_dir.make(file.parent)
        file.write_bytes(damaged := (cut if "cut" in name else flipped)(whole, where))
        tuning.forget()
        entries_before = tuning.entries(CHIP)
        assert tuning.store(CHIP, NEW) == file
        tuning.forget()
        entries = tuning.entries(CHIP)
        assert entries == entries_before | NEW
        moved_aside = [p.read_bytes() for p in file.parent.glob("*.damaged-*")]
        if moved_aside:
            assert moved_aside == [damaged] and not entries_before
        else:  # a flipped bit loses one entry, or two if it turns a key into the key of another entry
            assert len(lost(entries)) <= 2
        assert temporary(file.parent) == []


@pytest.mark.parametrize("suffix", [".so", ".log"])
@pytest.mark.parametrize("change", [cut, flipped])
def test_a_damaged_library_or_record_is_compiled_again(suffix, change, fake_library):
    file = fake_library.build().with_suffix(suffix)
    whole, library = file.read_bytes(), file.with_suffix(".so")
    if suffix == ".log":
        whole = whole.partition(b"\n")[0]  # the program reads only the first line
    kind = ("library" if suffix == ".so" else "record") + (" cut" if change is cut else ", a bit flipped")
    for i, where in enumerate(faults(kind), 2):
        file.write_bytes(change(whole, where))
        assert fake_library.build() == library
        assert library.read_bytes() == fake_library.answer
        assert len(fake_library.runs) == i, "compiled again, once"
        assert fake_library.build() == library and len(fake_library.runs) == i
        assert temporary(file.parent) == []


@pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="needs a C++ compiler")
def test_a_damaged_library_is_never_loaded(fake_library):
    file = fake_library.build()
    assert in_a_child(fake_library.load) == 42
    kinds = (cut, flipped)
    for i, where in enumerate(faults("loaded in a process of its own")):
        file.write_bytes(kinds[i % 2](fake_library.answer, where))
        assert in_a_child(fake_library.load) == 42
        assert file.read_bytes() == fake_library.answer


@pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="needs a C++ compiler")
def test_the_loaded_library_is_the_verified_one(fake_library, monkeypatch):
    file = fake_library.build()
    verify = build._open_verified

    def replaced_afterwards(*args, **kwargs):
        opened = verify(*args, **kwargs)
        cache_dir.replace(file, b"something else")
        return opened

    monkeypatch.setattr(build, "_open_verified", replaced_afterwards)
    assert in_a_child(fake_library.load) == 42


# ---- files of the wrong kind or owner --------------------------------------------------------------------------------


def a_folder(path: Path) -> None:
    (path / "inner").mkdir(parents=True)


def a_link(path: Path) -> None:
    path.symlink_to(path.parent.parent.parent / "precious")


def a_link_to_a_copy(path: Path) -> None:
    """Link to a copy that is correct now, but whose owner could replace it."""
    shutil.copy(path.with_name(f"{path.name}.copy"), path.parent.parent.parent / "copy")
    path.symlink_to(path.parent.parent.parent / "copy")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def owned_by_another_user(path: Path) -> None:
    shutil.copy(path.with_name(f"{path.name}.copy"), path)
    os.chown(path, 12345, 12345)


def writable_by(mode: int) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        shutil.copy(path.with_name(f"{path.name}.copy"), path)
        path.chmod(0o644 | mode)

    return put


def pretend_to_chown(monkeypatch) -> None:
    """Only root can chown files to other users. For a test without root, make fstat report another owner of these
    files.
    """
    chowned, fstat = set(), os.fstat

    def seen(fd: int) -> os.stat_result:
        status = fstat(fd)
        return os.stat_result((*status[:4], 12345, *status[5:])) if name(status) in chowned else status

    name = lambda status: (status.st_ino, status.st_mtime_ns)  # an inode number is reused after its file is deleted
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: chowned.add(name(path.stat())))
    monkeypatch.setattr(os, "fstat", seen)


INSTEAD = [a_folder, a_link, a_link_to_a_copy, a_pipe, owned_by_another_user, *map(writable_by, (0o002, 0o020, 0o022))]


@pytest.fixture
def group_of_others(monkeypatch):
    """Users may have a group of which they are the only member; here the group has other members."""
    monkeypatch.setattr(cache_dir, "_is_our_own_group", lambda gid: False)


def test_an_untrusted_file_is_replaced_and_never_followed(fake_library, tmp_path, monkeypatch, group_of_others, lines):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    if os.geteuid() != 0:
        pretend_to_chown(monkeypatch)
    tuned, library = tuning.store(CHIP, GOOD), fake_library.build()
    replaced = 0
    for file in (tuned, library, library.with_suffix(".log")):
        for instead in INSTEAD:
            copy = file.with_name(f"{file.name}.copy")
            file.replace(copy)
            instead(file)
            tuning.forget()
            if file is tuned:
                assert tuning.entries(CHIP) == {}
                assert tuning.store(CHIP, NEW) == tuned
                assert tuning.entries(CHIP) == NEW
            else:
                before = len(fake_library.runs)
                assert fake_library.build() == library and len(fake_library.runs) == before + 1
                assert library.read_bytes() == fake_library.answer
            assert stat.S_ISREG(file.lstat().st_mode) and precious.read_text() == "precious"
            copy.replace(file)
            for damaged in file.parent.glob("*.damaged-*"):
                shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
            replaced += 1
    assert replaced == COUNTS["something else in place"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o707, 0o775])
@pytest.mark.parametrize("which", ["", "folder"])
def test_a_folder_that_others_can_write_to_is_not_used(mode, which, cache, fake_library, lines, group_of_others):
    """A sticky folder above our folder is safe. Our own folders must not be writable by others, even if they are
    sticky.
    """
    tuned, library = tuning.store(CHIP, GOOD), fake_library.build()
    for folder in (tuned.parent, library.parent) if which else (cache,):
        folder.chmod(mode)
    tuning.forget()
    if mode & stat.S_ISVTX and not which:
        assert tuning.entries(CHIP) == GOOD and fake_library.build() == library
        return
    assert tuning.find(CHIP, "x") is None and tuning.find(CHIP, "y") is None
    (line,) = lines()
    assert f"other users can write to {tuned.parent if which else cache} (mode {mode:04o})" in line
    assert "chmod go-w" in line
    before = tuned.read_bytes()
    assert tuning.store(CHIP, NEW) is None and tuned.read_bytes() == before
    assert "tuning results are not stored" in lines()[1] and tuning.clear() == [] and tuned.exists()
    with pytest.raises(CannotBuild, match=r"other users can write to .* \(mode .*chmod go-w.*Set OPMUX_CACHE_DIR"):
        fake_library.build()
    assert len(fake_library.runs) == 1


def test_a_folder_of_another_user_is_not_used(cache, fake_library, monkeypatch, lines):
    tuned, library = tuning.store(CHIP, GOOD), fake_library.build()
    lstat = os.lstat

    def anothers_build(path):
        status = lstat(path)
        return os.stat_result((*status[:4], 12345, *status[5:])) if Path(path).name in ("build", "tuning") else status

    monkeypatch.setattr(os, "lstat", anothers_build)
    tuning.forget()
    assert tuning.entries(CHIP) == {} and tuning.store(CHIP, NEW) is None
    assert f"{tuned.parent} belongs to another user (user 12345)" in lines()[0]
    with pytest.raises(CannotBuild, match=f"{library.parent} belongs to another user"):
        fake_library.build()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_planted_by_another_user_is_not_loaded(cache, fake_library):
    """Other users can compute the library's name and record. In a sticky folder, a user who creates `build` first owns
    it.
    """
    library = fake_library.build()
    for path in (library.parent, *library.parent.iterdir()):
        os.chown(path, 12345, 12345)
    cache.chmod(0o1777)
    with pytest.raises(CannotBuild, match=r"belongs to another user \(user 12345\)"):
        fake_library.build()


def test_symbolic_links_above_our_folder_are_followed_and_checked(cache, fake_library, tmp_path, monkeypatch):
    """A link that the user owns is followed; the folders behind it are checked too."""
    real = tmp_path / "real"
    real.mkdir()
    cache.symlink_to(real)
    assert fake_library.build().exists()
    real.chmod(0o777)
    with pytest.raises(CannotBuild, match=f"other users can write to {real}"):
        fake_library.build()


def test_new_folders_and_files_are_private(cache, fake_library):
    before = os.umask(0)
    try:
        folders = {cache, fake_library.build().parent, tuning.store(CHIP, GOOD).parent}
    finally:
        os.umask(before)
    assert {stat.S_IMODE(f.stat().st_mode) for f in folders} == {0o700}
    files = [p for f in folders for p in f.iterdir() if p.is_file()]
    assert len(files) == 5 and not any(p.stat().st_mode & 0o022 for p in files)


def test_a_group_that_only_contains_the_user_may_write(monkeypatch):
    user = SimpleNamespace(pw_uid=1000, pw_gid=1000, pw_name="me")
    group = SimpleNamespace(gr_gid=1000, gr_name="me", gr_mem=[])
    monkeypatch.setattr(cache_dir.pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(cache_dir.grp, "getgrgid", lambda gid: group)
    status = os.stat_result((stat.S_IFDIR | 0o775, 0, 0, 1, 1000, 1000, 0, 0, 0, 0))
    assert not cache_dir._open_to_others(status)
    group.gr_mem = ["you"]
    assert cache_dir._open_to_others(status)
    group.gr_mem, group.gr_name = [], "users"
    assert cache_dir._open_to_others(status)


# ---- killed, interrupted or out of space at any line ----------------------------------------------------------------


class Lines:
    """Runs an action, and calls `effect` at one chosen line of the caches' modules."""

    FILES = {cache_dir.__file__, speed_files.__file__, tuning.__file__, build.__file__}

    def __init__(self, action: Callable[[], object]):
        self.action, self.count, self.at, self.effect = action, 0, -1, None
        self.run(-1)
        self.total = self.count

    def _trace(self, frame, event, arg):
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.effect()
        return self._trace

    def run(self, line: int, effect: Callable[[], object] = lambda: None) -> object:
        self.count, self.at, self.effect = 0, line, effect
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return self.action()
        finally:
            sys.settrace(before)

    def place(self, where: float) -> int:
        return 1 + int(where * (self.total - 1))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt() -> None:
    raise KeyboardInterrupt


class TestStoring:
    @pytest.fixture(autouse=True)
    def stored(self):
        self.file = tuning.store(CHIP, GOOD)
        self.traced = Lines(lambda: tuning.store(CHIP, NEW))
        tuning.store(CHIP, GOOD)

    def check(self, i: int) -> None:
        key = f"after {i}"
        tuning.forget()
        assert tuning.store(CHIP, {key: GOOD["kernel_03[n<=8]"]}) == self.file
        entries = tuning.entries(CHIP)
        assert not lost(entries) and key in entries
        assert temporary(self.file.parent) == [] and not list(self.file.parent.glob("*.damaged-*"))

    def test_kill_9_at_any_line_does_no_harm(self):
        for i, where in enumerate(faults("killed while storing")):
            line = self.traced.place(where)
            assert in_a_child(lambda line=line: self.traced.run(line, die) and None) == -signal.SIGKILL
            self.check(i)

    def test_a_full_disk_at_any_line_does_no_harm(self):
        """The error is raised at any line, not only where a file is opened or written, because a disk may report it
        late.
        """
        for i, where in enumerate(faults("full disk while storing")):
            with contextlib.suppress(OSError):  # the line may be outside the code that handles disk errors
                self.traced.run(self.traced.place(where), full)
            self.check(i)

    def test_ctrl_c_at_any_line_does_no_harm(self):
        for i, where in enumerate(faults("Ctrl-C while storing")):
            with contextlib.suppress(KeyboardInterrupt):
                self.traced.run(self.traced.place(where), interrupt)
                pytest.fail("nothing was interrupted")
            self.check(i)


class TestBuilding:
    @pytest.fixture(autouse=True)
    def built(self, fake_library, cache):
        self.fake_library, self.library = fake_library, fake_library.build()

        def afresh():
            for file in self.library.parent.iterdir():
                file.unlink()
            fake_library.build()

        self.traced = Lines(afresh)

    def check(self) -> None:
        before = len(self.fake_library.runs)
        assert self.fake_library.build() == self.library
        assert self.library.read_bytes() == self.fake_library.answer
        assert self.fake_library.build() == self.library and len(self.fake_library.runs) <= before + 1
        assert temporary(self.library.parent) == []

    def test_kill_9_at_any_line_does_no_harm(self):
        for where in faults("killed while building"):
            line = self.traced.place(where)
            assert in_a_child(lambda line=line: self.traced.run(line, die) and None) == -signal.SIGKILL
            self.check()

    def test_a_full_disk_at_any_line_does_no_harm(self):
        for where in faults("full disk while building"):
            with contextlib.suppress(OSError, CannotBuild):
                self.traced.run(self.traced.place(where), full)
            self.check()

    def test_ctrl_c_at_any_line_does_no_harm(self):
        for where in faults("Ctrl-C while building"):
            with contextlib.suppress(KeyboardInterrupt):
                self.traced.run(self.traced.place(where), interrupt)
                pytest.fail("nothing was interrupted")
            self.check()


# ---- full and read-only disks ---------------------------------------------------------------------------------------


def no_space(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_and_works_again_later(fake_library, monkeypatch, lines):
    file, before = tuning.store(CHIP, GOOD), len(fake_library.runs)
    monkeypatch.setattr(os, "fsync", no_space)
    assert tuning.store(CHIP, NEW) is None and tuning.entries(CHIP) == GOOD
    assert lines() == [
        "tuning results are not stored: [Errno 28] No space left on device. Set OPMUX_CACHE_DIR to a writable folder"
    ]
    with pytest.raises(CannotBuild, match="thing cannot be compiled: .*No space left on device. Set OPMUX_CACHE_DIR"):
        fake_library.build()
    assert temporary(file.parent) == [] and len(fake_library.runs) == before + 1
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    assert fake_library.build().read_bytes() == fake_library.answer  # the failure was not remembered


def test_a_file_that_is_cut_off_at_a_size_limit_is_not_used(fake_library):
    """The limit is real: the operating system writes only a part of the file."""
    file = tuning.store(CHIP, GOOD)
    before = file.read_bytes()

    def limited() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
        refused = tuning.store(CHIP, NEW) is None
        with contextlib.suppress(CannotBuild):
            fake_library.build()
            return 1
        return 0 if refused else 2

    assert in_a_child(limited) == 0
    assert file.read_bytes() == before and temporary(file.parent) == []
    assert fake_library.build().read_bytes() == fake_library.answer and temporary(fake_library.build().parent) == []


def as_nobody(action: Callable[[], int | None]) -> int:
    """The exit status of an action run by an unprivileged user."""

    def become() -> int | None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return action()

    return in_a_child(become)


@pytest.fixture
def public(monkeypatch):
    """A cache that other users can read; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="opmux-public-"))
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(folder))
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_cache_is_read(public, tmp_path, monkeypatch, answer):
    """An administrator may share a cache with all users. Valid files are used; damaged files stay unchanged."""
    source = public / "thing.cpp"
    source.write_text("one")
    monkeypatch.setattr(build, "compiler", lambda: build.Compiler(("made_up",), "1.0"))
    monkeypatch.setattr(build, "_run", lambda c: (Path(c[c.index("-o") + 1]).write_bytes(answer) and 0, ""))
    tuned, library = tuning.store(CHIP, GOOD), build.library("thing", [source])
    for folder in (public, tuned.parent, library.parent):
        folder.chmod(0o555)
    tuning.forget()

    def use() -> int:
        read = build.library("thing", [source]) == library and tuning.entries(CHIP) == GOOD
        return 0 if read and tuning.store(CHIP, NEW) is None else 1

    def refused() -> int:
        try:
            build.library("thing", [source])
        except CannotBuild as error:
            return 0 if "Permission denied" in str(error) and "Set OPMUX_CACHE_DIR" in str(error) else 2
        return 1

    assert as_nobody(use) == 0
    library.chmod(0o644)
    library.write_bytes(answer[:100])
    assert as_nobody(refused) == 0
    assert library.read_bytes() == answer[:100]


# ---- leftovers, locks, failures -------------------------------------------------------------------------------------


def test_old_files_of_killed_compilers_are_deleted(fake_library):
    library = fake_library.build()
    left = [library.parent / f".{library.stem}{end}.1.abcd.tmp" for end in (".so", ".log")]
    old, recent = (library.parent / f".other-{n}.so.1.abcd.tmp" for n in ("old", "recent"))
    for file in (*left, old, recent):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    library.unlink()
    fake_library.build()
    assert temporary(library.parent) == [recent.name]  # another compiler may still be writing this file


def test_a_lock_held_too_long_is_ignored(fake_library, monkeypatch, lines):
    """The build waits for the lock, logs this, and then compiles without it. The last complete library replaces the
    others.
    """
    library = fake_library.build()
    library.unlink()
    ready, finished = os.pipe(), os.pipe()
    holder = os.fork()
    if not holder:
        with cache_dir.locked(library.with_suffix(".lock"), 5, required=True):
            os.write(ready[1], b".")
            os.read(finished[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        monkeypatch.setattr(build, "LIMIT", 0.3)
        monkeypatch.setattr(cache_dir, "NOTICE", 0.1)
        assert fake_library.build().read_bytes() == fake_library.answer
        assert "waiting for another process" in lines()[0] and "for 0.3 s: not waiting any longer" in lines()[1]
    finally:
        os.write(finished[1], b".")
        os.waitpid(holder, 0)
        for fd in (*ready, *finished):
            os.close(fd)


def test_a_failed_compilation_is_not_repeated_until_something_changes(fake_library, monkeypatch, lines):
    runs = []
    monkeypatch.setattr(build, "_run", lambda command: runs.append(command) or (1, "thing.cpp:1: error: out of ink"))
    with pytest.raises(
        CannotBuild, match=r"thing: made_up failed \(exit status 1\): .*out of ink. Full output: (.*)"
    ) as e:
        fake_library.build()
    log = Path(str(e.value).partition("Full output: ")[2])
    assert "error: out of ink" in log.read_text() and temporary(log.parent) == []
    for _ in range(3):
        with pytest.raises(CannotBuild, match=rf"out of ink. Tried 0 minutes ago; to try again now, remove {log}"):
            fake_library.build()
    assert len(runs) == 1
    aged = lambda seconds: log.write_text(json.dumps({"failed": "out of ink", "time": time.time() - seconds}))
    for retry in (
        lambda: aged(build.RETRY + 1),
        lambda: aged(-60),
        log.unlink,
        lambda: fake_library.sources[0].write_text("2"),
    ):
        retry()
        before = len(runs)
        for _ in range(2):
            with pytest.raises(CannotBuild, match="out of ink"):
                fake_library.build()
        assert len(runs) == before + 1


@pytest.mark.parametrize(
    ("run", "remembered"),
    [
        (lambda command: (-9, ""), False),  # a signal killed the compiler
        (lambda command: (0, ""), True),  # the compiler wrote nothing
        (lambda command: full(), False),
    ],
)
def test_only_the_compilers_own_failures_are_remembered(run, remembered, fake_library, monkeypatch):
    good = build._run
    monkeypatch.setattr(build, "_run", run)
    with pytest.raises(CannotBuild):
        fake_library.build()
    monkeypatch.setattr(build, "_run", good)
    if remembered:
        with pytest.raises(CannotBuild, match="to try again now"):
            fake_library.build()
    else:
        assert fake_library.build().read_bytes() == fake_library.answer

"""The tuning cache: many writers, killed writers, damaged files, folders that cannot be written."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from opmux import cache as cache_dir
from opmux.machine import devices
from opmux.machine.devices import Chip
from opmux.tuning import speed_files
from opmux.tuning import tiles as tuning
from opmux.tuning.tiles import Entry

CHIP = Chip("acme", "sm_90", "Acme One (80 GB)", "550.54")
fork = multiprocessing.get_context("fork")


def entry(number: int = 0) -> Entry:
    return Entry({"threads": 128, "stages": 2, "BLOCK_M": number, "FAST": True}, 0.5, 1.0, "softmax", "4096x8192")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    tuning.forget()
    yield tmp_path / "cache" / "tuning"
    tuning.forget()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "opmux")
    return lambda: caplog.messages


# ---- keys and paths -------------------------------------------------------------------------------------------------


def test_a_key_rounds_lengths_up_and_keeps_other_facts():
    key = lambda **facts: tuning.key("softmax.rows", facts)
    assert (
        key(n=5000, dtype=torch.bfloat16) == key(dtype=torch.bfloat16, n=8192) == "softmax.rows[dtype=bfloat16 n<=8192]"
    )
    assert key(n=8193) != key(n=8192)
    assert [key(n=n) for n in (0, 1, 2, 3)] == [f"softmax.rows[n<={m}]" for m in (0, 1, 2, 4)]
    assert key(n=True, dim=-1, mode=None, name="sum") == "softmax.rows[dim=-1 mode=None n=True name=sum]"
    assert key() == "softmax.rows[]"


def test_the_directory_follows_the_environment_variables(monkeypatch, tmp_path):
    assert tuning.directory() == tmp_path / "cache" / "tuning"
    monkeypatch.setenv("OPMUX_CACHE_DIR", "~/mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.directory() == tmp_path / "mine" / "tuning"
    monkeypatch.delenv("OPMUX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tuning.directory() == tmp_path / "xdg" / "opmux" / "tuning"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert tuning.directory() == tmp_path / ".cache" / "opmux" / "tuning"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuning.directory() == tmp_path / ".cache" / "opmux" / "tuning"


@pytest.mark.parametrize(
    "other",
    [
        Chip("acme", "sm_90", "Acme Two", "550.54"),
        Chip("acme", "sm_90", CHIP.name, "560.1"),
        Chip("acme", "sm_80", CHIP.name),
    ],
)
def test_the_file_name_contains_chip_and_driver(other, cache):
    assert tuning.path(CHIP).parent == cache and tuning.path(CHIP).name.startswith("Acme_One_80_GB-")
    tuning.store(CHIP, {"k": entry()})
    assert tuning.path(other) != tuning.path(CHIP) and tuning.find(other, "k") is None


def test_the_file_name_contains_versions(monkeypatch):
    before = tuning.path(CHIP)
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert tuning.path(CHIP) != before
    assert set(speed_files.made_for(CHIP)) == {"chip", "arch", "driver", "torch", "triton", "opmux"}


def test_nothing_is_stored_for_a_chip_that_is_absent():
    with pytest.raises(ValueError, match="sm_90: this chip is not present"):
        tuning.store(Chip.of_arch("sm_90"), {"k": entry()})
    assert tuning.find(Chip.of_arch("sm_90"), "k") is None


# ---- reading and writing --------------------------------------------------------------------------------------------


def test_stored_entries_are_found(lines):
    assert tuning.find(CHIP, "k") is None
    file = tuning.store(CHIP, {"k": entry(1)})
    tuning.store(CHIP, {"l": entry(2), "k": entry(3)})
    tuning.forget()
    assert (tuning.find(CHIP, "k"), tuning.find(CHIP, "l")) == (entry(3), entry(2))
    assert json.loads(file.read_text())["format"] == speed_files.FORMAT
    assert [p.name for p in file.parent.iterdir() if p.name != ".lock"] == [file.name]
    assert lines() == []


def test_a_file_of_the_previous_format_is_read_and_then_replaced(lines):
    file = tuning.store(CHIP, {"k": entry(1)})
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    tuning.forget()
    assert tuning.find(CHIP, "k") == entry(1)
    tuning.store(CHIP, {"l": entry(2)})
    assert json.loads(file.read_text())["format"] == speed_files.FORMAT == 2
    assert tuning.entries(CHIP) == {"k": entry(1), "l": entry(2)} and lines() == []


def test_a_file_is_read_once_until_forget_is_called(cache):
    tuning.store(CHIP, {"k": entry(1)})
    tuning.forget()
    assert tuning.find(CHIP, "k") == entry(1)
    file = tuning.path(CHIP)
    file.write_text(file.read_text().replace('"BLOCK_M": 1', '"BLOCK_M": 2'))
    assert tuning.find(CHIP, "k") == entry(1)
    tuning.forget()
    assert tuning.find(CHIP, "k") == entry(2)


SICK = {
    "empty": "",
    "half": '{"format": 1, "entries": {"k": {"tiles"',
    "no object": "[1, 2]",
    "no text": b"\xff\xfe\x00",
    "deep": "[" * 100_000,
    "other format": '{"format": 99}',
    "other chip": json.dumps({"format": speed_files.FORMAT, "made_for": {"chip": "other"}, "entries": {}}),
    "no entries": lambda: {"format": speed_files.FORMAT, "made_for": speed_files.made_for(CHIP), "entries": []},
}


@pytest.mark.parametrize("text", SICK.values(), ids=SICK)
def test_an_unreadable_file_is_moved_aside_with_one_warning(text, lines):
    file = tuning.path(CHIP)
    file.parent.mkdir(parents=True)
    text = json.dumps(text()) if callable(text) else text
    file.write_bytes(text := text if isinstance(text, bytes) else text.encode())
    assert [tuning.find(CHIP, "k"), tuning.find(CHIP, "k")] == [None, None]
    (line,) = lines()
    assert str(file) in line and "is ignored" in line
    assert tuning.store(CHIP, {"l": entry(1)}) == file
    tuning.forget()
    assert tuning.find(CHIP, "l") == entry(1)
    (damaged,) = file.parent.glob("*.damaged-*")
    assert damaged.read_bytes() == text
    assert len(lines()) == 2 and lines()[1].endswith(f"it is kept as {damaged.name}")
    assert set(tuning.clear()) == {file, damaged}


@pytest.mark.parametrize(
    "bad",
    [
        {"ms": 1},
        "fast",
        None,
        {**asdict(entry()), "tiles": [1]},
        {**asdict(entry()), "ms": "1"},
        {**asdict(entry()), "x": 1},
    ],
)
def test_an_invalid_entry_is_skipped_and_the_others_are_used(bad, lines):
    good = {f"k{i}": entry(i) for i in range(50)}
    file = tuning.store(CHIP, good)
    data = json.loads(file.read_text())
    data["entries"]["worn"] = bad
    file.write_text(json.dumps(data))
    tuning.forget()
    assert tuning.find(CHIP, "k7") == entry(7) and tuning.find(CHIP, "worn") is None
    tuning.store(CHIP, {"new": entry(50)})
    tuning.store(CHIP, {"newer": entry(51)})
    (line,) = lines()
    assert line.startswith(f"{file}: damaged entries are skipped, of 51: 'worn' (") and "Error: " in line
    tuning.forget()
    assert tuning.entries(CHIP) == good | {"new": entry(50), "newer": entry(51)}


def test_a_folder_in_place_of_the_file_is_moved_aside(lines):
    file = tuning.path(CHIP)
    (file / "inner").mkdir(parents=True)
    assert tuning.find(CHIP, "k") is None
    assert tuning.store(CHIP, {"k": entry()}) == file
    (damaged,) = file.parent.glob("*.damaged-*")
    assert (damaged / "inner").is_dir() and file.is_file()
    assert "is ignored" in lines()[0] and "not a regular file" in lines()[1] and len(lines()) == 2


def test_clear_deletes_the_entries(cache):
    tuning.store(CHIP, {"k": entry()})
    assert tuning.clear() == [tuning.path(CHIP)]
    assert tuning.find(CHIP, "k") is None
    assert tuning.clear() == []


# ---- many processes -------------------------------------------------------------------------------------------------


def _store_many(rank: int) -> None:
    for i in range(20):
        assert tuning.store(CHIP, {f"k{rank}.{i}": entry(i)}) is not None


def test_many_writers_lose_no_entry():
    ranks = [fork.Process(target=_store_many, args=(rank,)) for rank in range(6)]
    for rank in ranks:
        rank.start()
    entries = set()
    while any(rank.is_alive() for rank in ranks):  # readers see only complete files; no entry disappears
        now = set(tuning.entries(CHIP))
        assert entries <= now
        entries = now
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    assert set(tuning.entries(CHIP)) == {f"k{rank}.{i}" for rank in range(6) for i in range(20)}


def _die_before_the_rename() -> None:
    Path.replace = lambda self, to: os.kill(os.getpid(), signal.SIGKILL)
    tuning.store(CHIP, {"lost": entry()})


def test_a_killed_writer_does_no_harm(cache, monkeypatch, lines):
    tuning.store(CHIP, {"k": entry(1)})
    victim = fork.Process(target=_die_before_the_rename)
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    (left,) = cache.glob(".*.tmp")
    theirs = cache / ".another_chip.json.1.2.tmp"
    theirs.touch()
    start = time.monotonic()
    tuning.store(CHIP, {"l": entry(2)})
    assert time.monotonic() - start < speed_files.LOCK_TIMEOUT / 2  # the lock was released when its process died
    assert set(tuning.entries(CHIP)) == {"k", "l"}
    assert not left.exists()
    assert theirs.exists()  # it might belong to another writer ...
    os.utime(theirs, (0, 0))
    tuning.store(CHIP, {"m": entry(3)})
    assert not theirs.exists()  # ... but not after an hour
    assert lines() == []


def _store_for_ever() -> None:
    for i in range(10**9):
        tuning.store(CHIP, {f"k{i % 50}": entry(i)})


def test_a_writer_may_be_killed_at_any_moment(lines):
    for i in range(8):
        victim = fork.Process(target=_store_for_ever)
        victim.start()
        time.sleep(0.05 + 0.007 * i)
        victim.kill()
        victim.join()
        tuning.forget()
        assert tuning.store(CHIP, {f"mine{i}": entry()}) is not None
    assert {f"mine{i}" for i in range(8)} <= set(tuning.entries(CHIP))
    assert lines() == []


def _hold_the_lock(folder: Path, started) -> None:
    with speed_files.exclusive(folder):
        started.set()
        time.sleep(60)


def test_a_writer_that_cannot_get_the_lock_stores_nothing(cache, monkeypatch, lines):
    file = tuning.store(CHIP, {"k": entry(1)})
    before = file.read_bytes()
    started = fork.Event()
    holder = fork.Process(target=_hold_the_lock, args=(cache, started))
    holder.start()
    assert started.wait(30)
    monkeypatch.setattr(speed_files, "LOCK_TIMEOUT", 0.2)
    monkeypatch.setattr(cache_dir, "NOTICE", 0.1)
    assert tuning.store(CHIP, {"l": entry(2)}) is None
    assert file.read_bytes() == before and tuning.clear() == []
    held = f"another process has held {cache}/.lock for 0.2 s"
    waiting = f"waiting for another process that holds {cache}/.lock, 0.2 s at most"
    not_stored, cleared = f"tuning results are not stored: {held}", f"the tuning cache is not cleared: {held}"
    assert lines() == [waiting, not_stored, waiting, cleared]
    holder.kill()
    holder.join()
    assert tuning.store(CHIP, {"l": entry(2)}) == file
    assert set(tuning.entries(CHIP)) == {"k", "l"}


def _no_locks(*args):
    raise OSError(37, "No locks available")


def _store_many_without_locks(rank: int) -> None:
    cache_dir.fcntl.flock = _no_locks
    _store_many(rank)


def test_entries_are_stored_on_a_file_system_without_locks(monkeypatch, lines, cache):
    ranks = [fork.Process(target=_store_many_without_locks, args=(rank,)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    assert set(tuning.entries(CHIP)) == {f"k{rank}.{i}" for rank in range(3) for i in range(20)}
    monkeypatch.setattr(cache_dir.fcntl, "flock", _no_locks)
    assert tuning.store(CHIP, {"k": entry()}) is not None
    assert len(lines()) == 1 and "No locks available" in lines()[0]
    (cache / ".lock.held").touch()  # left by a killed process
    monkeypatch.setattr(speed_files, "LOCK_TIMEOUT", 0.1)
    assert tuning.store(CHIP, {"l": entry()}) is None
    assert "/.lock.held for 0.1 s. Remove the file if no process uses it" in lines()[-1]


def test_a_folder_that_is_replaced_while_a_writer_waits_is_locked_again(cache, monkeypatch):
    """The writer must lock the new folder, because the lock in the deleted folder excludes no other writer."""
    tuning.store(CHIP, {"old": entry()})
    flock, locked = fcntl.flock, []

    def remove_first(lock, operation):
        if operation & fcntl.LOCK_NB and not locked:
            locked.append(lock)
            shutil.rmtree(cache)
            cache.mkdir()
        return flock(lock, operation)

    monkeypatch.setattr(cache_dir.fcntl, "flock", remove_first)
    with speed_files.exclusive(cache):
        assert (cache / ".lock").exists()


def _kill_me_forked(folder: Path, pids) -> None:
    with speed_files.exclusive(folder):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        pids.put(child)
        time.sleep(60)


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(cache, monkeypatch):
    tuning.store(CHIP, {"k": entry(1)})
    pids = fork.SimpleQueue()
    holder = fork.Process(target=_kill_me_forked, args=(cache, pids))
    holder.start()
    child = pids.get()
    holder.kill()
    holder.join()
    monkeypatch.setattr(speed_files, "LOCK_TIMEOUT", 5.0)
    try:
        assert tuning.store(CHIP, {"l": entry(2)}) is not None
    finally:
        os.kill(child, signal.SIGKILL)


# ---- folders that cannot be written ---------------------------------------------------------------------------------


def _store_as_nobody(answers) -> None:
    """Runs as an unprivileged user, because root can write anywhere."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    messages = []
    speed_files.logger.addHandler(handler := logging.Handler())
    handler.emit = lambda record: messages.append((record.levelname, record.getMessage()))
    answers.put((tuning.store(CHIP, {"k": entry()}), tuning.find(CHIP, "k"), messages))


@pytest.mark.parametrize("there", [True, False], ids=["the folder is there", "it is not"])
def test_a_read_only_folder_warns(monkeypatch, there):
    home = Path(tempfile.mkdtemp(prefix="opmux-read-only-"))  # pytest's own folders are private
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(home))
    try:
        if there:
            (home / "tuning").mkdir(mode=0o555)
        home.chmod(0o555)
        answers = fork.SimpleQueue()
        child = fork.Process(target=_store_as_nobody, args=(answers,))
        child.start()
        child.join()
        assert child.exitcode == 0
        stored, entries, ((level, line),) = answers.get()
    finally:
        home.chmod(0o755)
        shutil.rmtree(home)
    assert (stored, entries, level) == (None, None, "WARNING")
    assert line.startswith("tuning results are not stored: ")
    assert line.endswith("Set OPMUX_CACHE_DIR to a writable folder")


def test_without_a_home_directory_nothing_is_stored(monkeypatch, lines):
    monkeypatch.delenv("OPMUX_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert tuning.directory() is None
    assert tuning.find(CHIP, "k") is None
    assert tuning.store(CHIP, {"k": entry()}) is None
    assert lines() == ["tuning results are not stored: there is no home directory. Set OPMUX_CACHE_DIR"]
    assert tuning.clear() == []


# ---- the chip -------------------------------------------------------------------------------------------------------


def forget():
    devices._chip.cache_clear()
    devices.forget()


def test_tuning_uses_the_chip_of_the_current_device(monkeypatch):
    chips = [("NVIDIA H200", (9, 0)), ("NVIDIA A10", (8, 6))]
    current = 0
    monkeypatch.setattr(devices, "accelerators", lambda: ("cuda",))
    monkeypatch.setattr(devices, "arch_of", lambda kind, i=0: "sm_{}{}".format(*chips[i or 0][1]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: chips[i][0])
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    forget()
    try:
        assert (devices.current_chip().vendor, devices.current_chip().arch, str(devices.current_chip())) == (
            "nvidia",
            "sm_90",
            "NVIDIA H200 (sm_90)",
        )
        current = 1
        assert (devices.current_chip().name, devices.current_chip().arch) == ("NVIDIA A10", "sm_86")
        monkeypatch.setattr(torch.version, "hip", "6.0")
        forget()
        assert devices.current_chip().vendor == "amd"
    finally:
        forget()


def test_without_an_accelerator_no_chip_is_reported(monkeypatch):
    monkeypatch.setattr(devices, "accelerators", lambda: ())
    assert devices.current_chip() is None

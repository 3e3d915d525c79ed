"""The tuning cache: which tiles were fastest on which chip, in files that many processes and ranks share.

One JSON file for each chip, driver and set of versions, in `tuning/` of the cache directory (`OPMUX_CACHE_DIR`). A file
is replaced as a whole, so a reader sees the old one or the new one; writers merge under a lock. What cannot be read is
as good as absent, and said once. Results never depend on it, only speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..core import knobs
from ..core.facts import dtype_name, size_class
from ..core.log import logger
from .vendors import Chip

try:
    import fcntl
except ImportError:  # not a Unix: files are still replaced as a whole
    fcntl = None

FORMAT = 1
PATIENCE = 10.0  # seconds to wait for another writer
LEFTOVER = 3600.0  # seconds after which a file that was never finished belongs to nobody


@dataclass(frozen=True)
class Entry:
    """What was found for one key: the tiles, and how it was measured."""

    tiles: dict[str, Any]  # threads, stages, sizes: where they are not the default's
    ms: float
    before_ms: float  # with the tiles that held until then
    op: str
    sample: str


def key(name: str, facts: Mapping[str, Any]) -> str:
    """`softmax.rows[dtype=bfloat16 n<=8192]`: lengths by their shape class, all else as it is."""
    return f"{name}[{' '.join(_word(k, facts[k]) for k in sorted(facts))}]"


def _word(fact: str, value: Any) -> str:
    if type(value) is int and value >= 0:
        return f"{fact}<={1 << (size_class(value) - 1) if value else 0}"
    return f"{fact}={dtype_name(value) if isinstance(value, torch.dtype) else value}"


# ---- where ----------------------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The folder of the files; None where there is neither a setting nor a home."""
    asked = knobs.CACHE_DIR.get()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    root = Path(asked) if asked else Path(base, "opmux") if base else Path("~/.cache/opmux")
    try:
        return root.expanduser().absolute() / "tuning"
    except RuntimeError:  # a user without a home, as in many containers
        return None


def path(chip: Chip) -> Path | None:
    """The file of a chip under the versions of this process; a chip that is not here has none."""
    folder = directory()
    if folder is None or not chip.name:
        return None
    facts = made_for(chip)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=5).hexdigest()
    return folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', chip.name).strip('_')}-{digest}.json"


def made_for(chip: Chip) -> dict[str, str]:
    """What a measured time depends on."""
    ours = importlib.import_module("opmux")  # by name: runtime depends on nothing above it
    return {
        "chip": chip.name,
        "arch": chip.arch or "",
        "driver": chip.driver,
        "torch": torch.__version__,
        "triton": _triton(),
        "opmux": ours.__version__,
    }


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a vendor's build of it, under another name
        return getattr(sys.modules.get("triton"), "__version__", "")


# ---- reading --------------------------------------------------------------------------------------------------------

_tables: dict[Chip, dict[str, Entry]] = {}
_said: set[tuple[Path, str]] = set()


def find(chip: Chip, key: str) -> Entry | None:
    """What is remembered for a key on this chip."""
    table = _tables.get(chip)
    if table is None:
        table = _tables[chip] = entries(chip)
    return table.get(key)


def entries(chip: Chip) -> dict[str, Entry]:
    """All that the file of a chip holds now."""
    file = path(chip)
    return {} if file is None else _read(file, made_for(chip))


def forget() -> None:
    """Read the files again when next asked."""
    _tables.clear()
    _said.clear()


def _read(file: Path, expected: dict[str, str]) -> dict[str, Entry]:
    """The entries of a file; whatever is wrong with it, none, and one line in the log."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not even text
        return _ignored(file, f"{type(error).__name__}: {error}")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return _ignored(file, f"it is not of format {FORMAT}")
    if data.get("made_for") != expected:
        return _ignored(file, "it was made for another chip or other versions")
    found = data.get("entries")
    made = {k: _entry(v) for k, v in found.items()} if isinstance(found, dict) else {"": None}
    if None in made.values():
        return _ignored(file, "an entry of it is incomplete")
    return {k: e for k, e in made.items() if e is not None}


def _entry(data: Any) -> Entry | None:
    try:
        made = Entry(**data)
    except TypeError:
        return None
    return made if isinstance(made.tiles, dict) else None


def _ignored(file: Path, why: str) -> dict[str, Entry]:
    if (file, why) not in _said:
        _said.add((file, why))
        logger.warning("tuning cache %s is ignored: %s. `opmux tune --clear` removes it", file, why)
    return {}


# ---- writing --------------------------------------------------------------------------------------------------------


def store(chip: Chip, found: Mapping[str, Entry]) -> Path | None:
    """Add entries to the file of a chip; None, and a warning, where it cannot be written."""
    if not chip.name:
        raise ValueError(f"nothing can have been measured on {chip}, which is not here")
    file = path(chip)
    if file is None:
        logger.warning("what was tuned is not kept: there is no home directory. Set %s", knobs.CACHE_DIR.name)
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file.parent):
            _sweep(file.parent)
            table = {**_read(file, made_for(chip)), **found}
            _replace(file, {"format": FORMAT, "made_for": made_for(chip), "entries": _plain(table)})
    except OSError as error:
        logger.warning("what was tuned is not kept: %s. Set %s to a folder to write to", error, knobs.CACHE_DIR.name)
        return None
    _tables[chip] = table
    return file


def clear() -> list[Path]:
    """Remove every file of the cache, of any chip and version; returns what went."""
    folder = directory()
    gone = []
    if folder is not None and folder.is_dir():
        with _alone(folder):
            for file in sorted(folder.glob("*.json")):
                file.unlink(missing_ok=True)
                gone.append(file)
    forget()
    return gone


def _plain(table: Mapping[str, Entry]) -> dict[str, Any]:
    return {k: asdict(table[k]) for k in sorted(table)}


def _replace(file: Path, data: Any) -> None:
    """The whole file at once: written beside it, brought to the disk, renamed."""
    # The process id is not enough of a name: on a shared disk, another machine has the same one.
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with fresh.open("x", encoding="utf-8") as out:
            json.dump(data, out, indent=1)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _sweep(folder: Path) -> None:
    """Remove what killed writers left behind."""
    for file in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if time.time() - file.stat().st_mtime > LEFTOVER:
                file.unlink()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other writers out, so that nothing they add is lost.

    A lock that does not come in time, or that the file system does not know, is done without: at worst an entry of
    another process is lost, never a file. It ends with its process; a child that was forked meanwhile does not keep it.
    """
    if fcntl is None:
        yield
        return
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's: to wait for it, reading is enough
        lock = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    held = False
    try:
        held = _wait_for(lock)
        yield
    finally:
        if held:
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _wait_for(lock: int) -> bool:
    assert fcntl is not None
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                logger.warning("another process has been writing the tuning cache for %g s: not waiting", PATIENCE)
                return False
            time.sleep(0.01)
        except OSError as error:  # a file system without locks
            logger.info("the tuning cache is written without a lock: %s", error)
            return False

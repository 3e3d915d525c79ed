"""Tile settings in a vendor's folder: `backends/_<vendor>/[<arch>/]`.

A folder may contain `heuristics_config_utils.py` (rules), `tune_configs.yaml` (configs to try) and `ops/`. An arch
folder overrides its vendor's folder for each tunable and op that it contains; `ARCH_MAP` of the vendor's package names
the arch folders. Files are read on first use. A vendor's package outside of opmux has the same layout.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import OpmuxError
from ..core.log import logger
from ..core.machine import split_arch
from ..machine import vendors
from ..machine.devices import Chip
from . import flag_gems_tiles

RULES, TRIALS = "heuristics_config_utils", "tune_configs.yaml"


class BadTiles(OpmuxError, ValueError):
    """Raised for tiles that a kernel does not accept, or an unreadable file of a vendor. The message names the file."""


# ---- the folders ----------------------------------------------------------------------------------------------------


class FileEntry(NamedTuple):
    """The settings of one tunable in a file: {size: rule}, or a list of configs to try."""

    file: Path
    given: Any


def heuristics(chip: Chip, name: str) -> FileEntry | None:
    """A tunable's rules: {size: a value, or a function of the call's facts}."""
    return _first(chip, name, _rules)


def candidates(chip: Chip, name: str) -> FileEntry | None:
    """The configs to try for a tunable: [{size: value}]."""
    entry = _first(chip, name, _trials)
    return None if entry is None else FileEntry(entry.file, expand(entry.given, f"{entry.file}: {name}"))


def names_in_files(chip: Chip, unreadable: list[BadTiles] | None = None) -> dict[str, set[Path]]:
    """Every tunable that a file of this chip's vendor names, and the files that name it.

    Raises for a file that cannot be read. With `unreadable`, instead appends the error to this list and goes on with
    the other files.
    """
    files: dict[str, set[Path]] = {}
    for folder in folders(chip):
        for read in (_rules, _trials):
            try:
                file, table = read(folder)
            except BadTiles as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
                continue
            for name in table:
                files.setdefault(name, set()).add(file)
    return files


def folders(chip: Chip) -> tuple[str, ...]:
    """The packages with settings for a chip, the most specific first."""
    package = None if chip.vendor is None else vendors.get(chip.vendor)
    if package is None or not package.module:
        return ()
    folder = next((package.arch_map[k] for k in _arch_keys(chip.arch) if k in package.arch_map), None)
    near = f"{package.module}.{folder}"
    return (package.module,) if folder is None or not _is_folder(near) else (near, package.module)


@functools.cache
def _is_folder(package: str) -> bool:
    """Whether an arch folder exists. A copy of a package may lack folders that its ARCH_MAP names."""
    spec = importlib.util.find_spec(package)
    return spec is not None and bool(spec.submodule_search_locations)


def _arch_keys(arch: str | None) -> Iterable[Any]:
    """The keys by which an ARCH_MAP may name an arch: for sm_90 also "9.0", "9" and 9; for other vendors a prefix."""
    if arch is None:
        return
    yield arch
    if arch.startswith("sm_"):
        number = split_arch(arch)[1]
        yield from (f"{number // 10}.{number % 10}", str(number // 10), number // 10)
    yield from (arch[:n] for n in range(len(arch) - 1, 2, -1))


def _first(chip: Chip, name: str, read: Callable[[str], tuple[Path, dict[str, Any]]]) -> FileEntry | None:
    for folder in folders(chip):
        file, table = read(folder)
        if name in table:
            return FileEntry(file, table[name])
    return None


@functools.cache
def _rules(folder: str) -> tuple[Path, dict[str, Any]]:
    file = place(folder) / f"{RULES}.py"
    if not file.is_file():
        return file, {}
    try:
        table = importlib.import_module(f"{folder}.{RULES}").HEURISTICS_CONFIGS
    except Exception as error:  # a vendor's code may raise anything
        where = vendors.place_of(folder, error)
        raise BadTiles(f"{file} cannot be used: {where}: {type(error).__name__}: {error}") from error
    if not isinstance(table, dict) or not all(isinstance(rules, Mapping) for rules in table.values()):
        raise BadTiles(f"{file}: HEURISTICS_CONFIGS is {{tunable: {{size: value or function(args)}}}}")
    _warn_of_flag_gems(file, table)
    return file, table


@functools.cache
def _trials(folder: str) -> tuple[Path, dict[str, Any]]:
    file = place(folder) / TRIALS
    if not file.is_file():
        return file, {}
    import yaml

    try:
        table = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadTiles(f"{file} is not valid YAML: {error}") from None
    if table is not None and not isinstance(table, dict):
        raise BadTiles(f"{file}: expected tunables, each with a list of configs; got {type(table).__name__}")
    _warn_of_flag_gems(file, table or {})
    return file, table or {}


def _warn_of_flag_gems(file: Path, table: Iterable[Any]) -> None:
    """Warn about names of FlagGems' kernels, once for each file, because each is read once."""
    hint = flag_gems_tiles.hint(map(str, table))
    if hint is not None:
        logger.warning("%s: %s", file, hint)


def place(folder: str) -> Path:
    spec = importlib.util.find_spec(folder)
    assert spec is not None and spec.submodule_search_locations, folder
    return Path(next(iter(spec.submodule_search_locations)))


# ---- tune_configs.yaml ----------------------------------------------------------------------------------------------

_FIELDS = ("META", "num_warps", "num_stages")


def expand(items: Any, where: str) -> list[dict[str, Any]]:
    """Every config in a list of items, as {size: value}. An item with `gen: true` is a Cartesian product of lists."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadTiles(f"{where}: expected a list of configs such as {{META: {{BLOCK_M: 1}}, num_warps: 4}}")
    expanded = [_product(item, where) if item.get("gen") else [_plain(item, where)] for item in items]
    return [config for configs in expanded for config in configs]


def _plain(item: dict[str, Any], where: str) -> dict[str, Any]:
    meta = item.get("META", {})
    _only(item, ("gen", *_FIELDS), where)
    if not isinstance(meta, dict):
        raise BadTiles(f"{where}: META = {meta!r}. Allowed: sizes by name, such as {{BLOCK_M: 1}}")
    return {**meta, **{k: item[k] for k in _FIELDS[1:] if k in item}}


def _product(item: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The configs of an item with `gen: true`. `param_map` maps each field to a list of values or to a list's name."""
    fields = item.get("param_map")
    if not isinstance(fields, dict):
        raise BadTiles(f"{where}: gen needs a param_map such as {{META: {{BLOCK_M: rows}}, num_warps: warps}}")
    _only(fields, _FIELDS, f"{where}: param_map")
    values = lambda v: _as_list(item[v] if isinstance(v, str) and v in item else v, where)
    meta = fields.get("META", {})
    blocks = (
        values(meta)
        if not isinstance(meta, dict)
        else [dict(zip(meta, row)) for row in itertools.product(*(values(v) for v in meta.values()))]
    )
    if not all(isinstance(block, dict) for block in blocks):
        raise BadTiles(f"{where}: META = {meta!r}. Allowed: sizes by name, or the name of a list of such")
    rest = [name for name in _FIELDS[1:] if name in fields]
    return [
        {**block, **dict(zip(rest, row))}
        for block in blocks
        for row in itertools.product(*(values(fields[name]) for name in rest))
    ]


def _as_list(value: Any, where: str) -> list[Any]:
    if isinstance(value, str):
        raise BadTiles(f"{where}: param_map names a list {value!r}, and there is none of that name")
    return value if isinstance(value, list) else [value]


def _only(fields: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
    strange = [str(k) for k in fields if k not in allowed]
    if strange:
        raise BadTiles(f"{where}: unknown field {', '.join(strange)}. Allowed: {', '.join(allowed)}")

"""Every setting of opmux. One line for each declares the name, the type and the meaning.

A setting is read from the environment variable of its name, then from its aliases, then from a TOML file, where its
name is in lower case and without `OPMUX_`. `OPMUX_CONFIG` names the file. Without it, `opmux.toml` in the current
directory is read, then `opmux/opmux.toml` in the user's configuration folder (`$XDG_CONFIG_HOME`, else `~/.config`).
Importing reads nothing.

The current directory is not trusted: a file found there cannot name modules to import.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from .errors import BadKnob, quoted, suggestion
from .extension import extensions
from .tokens import parse_order, parse_prefer

T = TypeVar("T")

ORDER_EXAMPLE = "rms_norm=reference|*;softmax=opmux|reference"


@dataclass(frozen=True)
class SettingKind(Generic[T]):
    """The type of a setting. `parse` converts text or a TOML value, and raises ValueError for an invalid value."""

    name: str
    example: str
    parse: Callable[[Any], T]


@dataclass(frozen=True)
class Setting(Generic[T]):
    """The value of a setting in this process, and its source."""

    value: T | None
    source: str  # "env OPMUX_PREFER", "file opmux.toml", "default"

    @property
    def is_set(self) -> bool:
        return self.source != "default"

    @property
    def from_file(self) -> bool:
        return self.source.startswith("file ")


@dataclass(frozen=True)
class Knob(Generic[T]):
    name: str
    kind: SettingKind[T]
    default: T | None
    doc: str
    in_file: bool = True
    blank: bool = False  # whether an empty variable is an empty list; otherwise it counts as unset
    trusted: bool = False  # whether the setting is ignored in an opmux.toml found in the current directory
    own_example: str = ""  # a valid value, if the kind's example is invalid for this setting

    @property
    def example(self) -> str:
        return self.own_example or self.kind.example

    @property
    def key(self) -> str:
        return self.name.removeprefix("OPMUX_").lower()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of this setting, used by programs for other libraries."""
        return tuple(alias for e in extensions() for alias, name in e.aliases.items() if name == self.name)

    def look(self) -> Setting[T]:
        """The value and its source; raises BadKnob for an invalid value."""
        for name in (self.name, *self.aliases):
            text = os.environ.get(name)
            if text is not None and (text.strip() or self.blank):
                return Setting(self._read(text, name, f"{name}={self.example}"), f"env {name}")
        for path, table, in_cwd in files() if self.in_file else ():
            if self.key not in table:
                continue
            if self.trusted and in_cwd:
                self._refuse(path)
                continue
            example = f'{self.key} = "{self.example}"'
            return Setting(self._read(table[self.key], f"{path}: {self.key}", example), f"file {path}")
        return Setting(self.default, "default")

    def get(self) -> T | None:
        return self.look().value

    def _refuse(self, path: Path) -> None:
        if (self.name, path.absolute()) not in _refused:
            _refused.add((self.name, path.absolute()))
            logging.getLogger("opmux").warning(
                "%s: %s is ignored: a file found in the current directory may not name modules to import. Set %s, name "
                "the file by OPMUX_CONFIG, or put the line into %s",
                path,
                self.key,
                self.name,
                _users_file(),
            )

    def _read(self, value: Any, where: str, example: str) -> T:
        try:
            return self.kind.parse(value)
        except ValueError as error:
            raise BadKnob(
                f"{where}={_shown(value)} cannot be read as {self.kind.name}: {error}. A valid value: {example}"
            ) from None


_refused: set[tuple[str, Path]] = set()  # (setting, file) for which a warning was logged


class File(NamedTuple):
    """A TOML file of settings."""

    path: Path
    table: dict[str, Any]
    in_cwd: bool  # found in the current directory, not named by OPMUX_CONFIG


def files() -> list[File]:
    """The settings files by precedence. If OPMUX_CONFIG names a file, no other is read, and the file must exist."""
    configured = os.environ.get("OPMUX_CONFIG", "").strip()
    if configured:
        named = _read_file(Path(configured), in_cwd=False)
        if named is None:
            raise BadKnob(f"OPMUX_CONFIG={_shown(configured)} is not a file. Name a TOML file, or unset the variable")
        return [named]
    local, users = Path("opmux.toml"), _users_file()
    own = local.absolute() == users
    existing = (_read_file(local, in_cwd=not own), None if own else _read_file(users, in_cwd=False))
    return [file for file in existing if file is not None]


def _read_file(path: Path, in_cwd: bool) -> File | None:
    try:
        return File(path, _parse_toml(path), in_cwd) if path.is_file() else None
    except OSError as error:  # the name is too long, or the file is not readable
        raise BadKnob(
            f"{_shown(str(path))} cannot be read: {error.strerror}. Name a TOML file by OPMUX_CONFIG"
        ) from None


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else quoted(repr(value)).strip("'")


def _users_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME", "").strip() or Path("~/.config").expanduser()
    return Path(folder, "opmux", "opmux.toml")


_toml: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}


def _parse_toml(path: Path) -> dict[str, Any]:
    path, stat = path.absolute(), path.stat()
    known, state = _toml.get(path), (stat.st_mtime_ns, stat.st_size)
    if known is not None and known[0] == state:
        return known[1]
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadKnob(f"{path} is not valid TOML: {error}") from None
    _toml[path] = state, table
    return table


def all_knobs() -> list[Knob[Any]]:
    """Every setting, including those of the layers above core."""
    return [*OWN, *(k for e in extensions() for k in e.settings)]


def variables() -> list[str]:
    """The environment variables of opmux's own settings, and their aliases."""
    return [name for k in all_knobs() if k.name.startswith("OPMUX_") for name in (k.name, *k.aliases)]


def unknown_settings() -> list[str]:
    """One message for each unknown setting: a misspelt environment variable, an unknown key of a file."""
    names = {n for k in all_knobs() for n in (k.name, *k.aliases)}
    ours = ("OPMUX_", *(prefix for e in extensions() for prefix in e.prefixes))
    messages = [
        _unknown_message(f"environment variable {name}", name, names)
        for name in sorted(os.environ)
        if name.startswith(ours) and name not in names
    ]
    keys = {k.key for k in all_knobs() if k.in_file}
    messages += [_unknown_message(f"{f.path}: {key}", key, keys) for f in files() for key in f.table if key not in keys]
    return messages


def _unknown_message(where: str, name: str, names: set[str]) -> str:
    return f"{where} is not a setting of opmux{suggestion(name, names, ': did you mean {}?')}"


# ---- the types ------------------------------------------------------------------------------------------------------

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _flag(value: Any) -> bool:
    text = str(value).strip().casefold()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("expected 1 or 0")


def _names(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
        raise ValueError("expected names separated by commas")
    return tuple(name for name in (i.strip() for i in items) if name)


def _name(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError("expected a name")
    return value.strip() or None


def _level(value: Any) -> str:
    level = str(value).strip().upper()
    level = {"WARN": "WARNING"}.get(level, level)
    if level not in _LEVELS:
        raise ValueError(f"expected one of {', '.join(_LEVELS)}")
    return level


def _orders(value: Any) -> dict[str, tuple[str, ...]]:
    """`op=token|token;op=token`, or a TOML table of strings or lists."""
    if isinstance(value, str):
        parts = [p.strip() for p in value.split(";") if p.strip()]
        pairs = [p.partition("=") for p in parts]
        for (op, eq, order), part in zip(pairs, parts, strict=True):
            if not eq or not op.strip() or not order.strip():
                raise ValueError(f"'{part}' is not op=token|token")
            if "=" in order or "," in order:  # otherwise the second op would become part of a vendor's name
                raise ValueError(f"'{part}' is not op=token|token; separate two ops by ';'")
        items = [(op.strip(), order) for op, _, order in pairs]
    elif isinstance(value, dict):
        items = list(value.items())
    else:
        raise ValueError("expected op=token|token;op=token")
    return {op: parse_order(order) for op, order in items}


flag = SettingKind("a switch", "1", _flag)
names = SettingKind("a list of names", "acme,bolt", _names)
modules = SettingKind("a list of names", "acme_opmux,other", _names)
word = SettingKind("a name", "torch", _name)
path = SettingKind("a path", "/usr/local/cuda", _name)
toml = SettingKind("a path", "opmux.toml", _name)
level = SettingKind("a log level", "INFO", _level)
prefer = SettingKind("a preference", "vendor", parse_prefer)
orders = SettingKind("orders of choice per op", ORDER_EXAMPLE, _orders)


def knob(
    name: str,
    kind: SettingKind[T],
    *,
    default: T | None = None,
    doc: str,
    in_file: bool = True,
    blank: bool = False,
    trusted: bool = False,
    example: str = "",
) -> Knob[T]:
    """Declare a setting; a layer above core lists its own in its extension."""
    return Knob(name, kind, default, doc, in_file, blank, trusted, example)


# ---- the settings ---------------------------------------------------------------------------------------------------
# fmt: off
PREFER = knob("OPMUX_PREFER", prefer, doc="which kind comes first: opmux (or flagos), vendor, reference")
PREFER_VENDOR = knob("OPMUX_PREFER_VENDOR", flag, doc="1 prefers vendor, 0 opmux; OPMUX_PREFER overrides it")
STRICT = knob("OPMUX_STRICT", flag, default=False, doc="1 raises the preferred impl's error instead of falling back")
ALLOW_VENDORS = knob("OPMUX_ALLOW_VENDORS", names, doc="run only impls of these vendors, impls without a vendor, and our kernels for CPUs")
DENY_VENDORS = knob("OPMUX_DENY_VENDORS", names, doc="run no impl of these vendors; overrides OPMUX_ALLOW_VENDORS")
PER_OP = knob("OPMUX_PER_OP", orders, doc=f"the order for single ops: {ORDER_EXAMPLE}")
PLUGIN_MODULES = knob("OPMUX_PLUGIN_MODULES", modules, default=(), doc="modules to load as plugins; ignored in an opmux.toml found in the current directory", trusted=True)
ALLOW_PLUGINS = knob("OPMUX_ALLOW_PLUGINS", modules, doc="load only these plugins: distributions, or modules of OPMUX_PLUGIN_MODULES; set but blank: none", blank=True)
BLOCK_PLUGINS = knob("OPMUX_BLOCK_PLUGINS", modules, default=(), doc="never load or import these plugins, named as in OPMUX_ALLOW_PLUGINS")
LOG_LEVEL = knob("OPMUX_LOG_LEVEL", level, doc="show log lines of this level and above")
DEBUG = knob("OPMUX_DEBUG", flag, default=False, doc="1 is OPMUX_LOG_LEVEL=DEBUG")
CONFIG = knob("OPMUX_CONFIG", toml, doc="a TOML file of settings, instead of ./opmux.toml", in_file=False)
COMMIT = knob("OPMUX_COMMIT", word, doc="the commit to record with measurements, outside of a git checkout", in_file=False, example="1a2b3c4")
# fmt: on
OWN: tuple[Knob[Any], ...] = tuple(value for value in vars().values() if isinstance(value, Knob))

"""`flag_gems.enable`, `only_enable`, `use_gems`: opmux's `enable` and `use` in mode "all", under FlagGems' names."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..aten import engine, switch
from ..aten.overloads import table
from . import names, original

DEFAULT = ("softmax", "cumsum")  # the ops that only_enable() enables without names
LOG = "~/.flaggems/oplist.log"
Names = str | Iterable[str] | None

everything = switch.use(mode="all")  # for the functions of this interface; a new one chooses its overloads in 0.5 ms


def enable(
    lib: Any = None,
    unused: Names = None,
    registrar: Any = None,
    record: bool = False,
    once: bool = False,
    path: str | Path | None = None,
) -> None:
    """Override every torch op for which opmux has a kernel, in the whole process; `opmux.disable()` undoes it.

    Args:
        lib: ignored; opmux registers overrides in its own library, so that `disable` can remove them.
        unused: names of FlagGems' functions (`add`, `ge_scalar`) not to override, or the path of a YAML file with a
            list `exclude`. ATen's names (`add.Tensor`) are accepted too.
        registrar: ignored.
        record: log each call to `path`, as FlagGems does.
        once: log only the first call of each op.
        path: the log file; default ~/.flaggems/oplist.log.
    """
    _warn_unused(lib, registrar)
    excluded = _overloads(_listed(unused, "exclude"), "unused") or None
    _replace_log(record, path, once)
    switch.enable(exclude=excluded, mode="all")


def only_enable(
    lib: Any = None,
    include: Names = None,
    registrar: Any = None,
    record: bool = False,
    once: bool = False,
    path: str | Path | None = None,
) -> None:
    """Like `enable`, but only for the named ops. A call replaces an earlier `enable`.

    Args:
        lib: as in enable.
        include: names of FlagGems' functions, or the path of a YAML file with a list `include`. None and "default" mean
            softmax and cumsum.
        registrar: as in enable.
        record: as in enable.
        once: as in enable.
        path: as in enable.
    """
    _warn_unused(lib, registrar)
    requested = DEFAULT if include is None or include == "default" else _listed(include, "include")
    keys = _overloads(requested, "include")
    if not keys:
        warnings.warn("flag_gems.only_enable: none of these ops is known; nothing is enabled", stacklevel=2)
        return
    _replace_log(record, path, once)
    switch.enable(include=keys, mode="all")


class use_gems:
    """`with flag_gems.use_gems():` overrides torch's ops in the block. Blocks nest, and the innermost one applies.

    Args:
        exclude: names as in enable.
        include: names as in only_enable; if given, `exclude` is not used.
        record: as in enable.
        once: as in enable.
        path: as in enable.
    """

    def __init__(
        self,
        exclude: Names = None,
        include: Names = None,
        record: bool = False,
        once: bool = False,
        path: str | Path | None = None,
    ):
        included, excluded = _listed(include, "include"), _listed(exclude, "exclude")
        if included:
            self._use = switch.use(include=_overloads(included, "include"), mode="all")
        else:
            self._use = switch.use(exclude=_overloads(excluded, "exclude") or None, mode="all")
        self._record = (path, once) if record else None
        self._entered: list[contextlib.ExitStack] = []

    @property
    def experimental_ops(self) -> Any:
        """The module `flag_gems.experimental_ops`."""
        return names.submodule("experimental_ops")

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._use)
            if self._record is not None:
                stack.enter_context(recorded(*self._record))
            self._entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


def all_registered_keys() -> list[str]:
    """The ATen overloads that run opmux's kernels now."""
    return switch.enabled_ops()


def all_registered_ops() -> list[str]:
    """Like `all_registered_keys`, but returns the names of FlagGems' functions."""
    return sorted({names.function_of(key) for key in switch.enabled_ops()})


def flagtune(include: Names = None) -> None:
    """In FlagGems this enables a larger search of tile sizes. Here it sets FLAGTUNE_INCLUDE, and warns."""
    listed = [include] if isinstance(include, str) else list(include or ())
    os.environ["FLAGTUNE_INCLUDE"] = ",".join(listed)
    warnings.warn("flag_gems.flagtune has no effect: run `opmux tune` to search for tiles", stacklevel=2)


def _warn_unused(lib: Any, registrar: Any) -> None:
    for name, value in (("lib", lib), ("registrar", registrar)):
        if value is not None:
            warnings.warn(f"flag_gems: {name} is not used; opmux registers its overrides itself", stacklevel=3)


def _listed(value: Names, key: str) -> tuple[str, ...]:
    """Names from an argument, which may be the path of a YAML file."""
    if value is None or value == "default":
        return ()
    if not isinstance(value, str):
        return tuple(value)
    import yaml

    data = yaml.safe_load(Path(value).read_text(encoding="utf-8")) or {}
    if not isinstance(data, dict) or not isinstance(data.get(key, []), list):
        raise ValueError(f"flag_gems: {value} must be a mapping with a list '{key}'; got {type(data).__name__}")
    return tuple(data.get(key, []))


def _overloads(requested: Iterable[str], what: str) -> list[str]:
    """Resolve names to overloads of our table; a single warning lists all names that match no overload."""
    keys, unknown = names.selected(requested)
    if unknown:
        warnings.warn(f"flag_gems: {what} names ops that do not exist: {', '.join(unknown)}", stacklevel=3)
    return [key for key in keys if key in table()]


# ---- the log --------------------------------------------------------------------------------------------------------


class Calls(Counter[str]):
    """Counts calls of overloads, and logs each in FlagGems' format."""

    def __init__(self, once: bool):
        super().__init__()
        self._once = once

    def __setitem__(self, overload: str, count: int) -> None:
        if not (self._once and overload in self):
            function = names.function_of(overload)
            message = f"GEMS {original.labels().get(function, function.upper())}"
            log = logging.getLogger(f"flag_gems.{original.homes().get(function, f'ops.{function}')}")
            log.handle(logging.LogRecord(log.name, logging.DEBUG, __file__, 0, message, (), None, function))
        super().__setitem__(overload, count)


@contextlib.contextmanager
def recorded(path: str | Path | None, once: bool) -> Iterator[None]:
    """Log the calls of enabled ops to a file, one line each."""
    file = Path(path or LOG).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    log, handler = logging.getLogger("flag_gems"), logging.FileHandler(file, mode="w")
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s.%(funcName)s: %(message)s"))
    before = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    try:
        with engine.counted(Calls(once)):
            yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]


_log = contextlib.ExitStack()  # the open log of `enable`
atexit.register(_log.close)


def _replace_log(record: bool, path: str | Path | None, once: bool) -> None:
    """Close the log of the last `enable`; open a new log if `record` is true."""
    _log.close()
    if record:
        _log.enter_context(recorded(path, once))

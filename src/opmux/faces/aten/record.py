"""`record=` of `enable` and `use`: records which ops ran, on which implementation, how often, on which shapes.

While a recorder is live, each candidate of an overload is wrapped (`Overload.lifted`). Calls that auto mode leaves to
torch then go through Python too, so that they are counted. Without a recorder nothing is wrapped and nothing is
checked.
"""

from __future__ import annotations

import atexit
import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...core.errors import BadArgument, NotSupported, OpmuxError
from ...core.registry import OpImpl
from ...core.tensors import dtype_name, first_tensor, tensors_in

Sink = str | PathLike[str] | IO[str]


class BadSink(OpmuxError, OSError):
    """The file for recorded calls cannot be written."""


class CountedCall(NamedTuple):
    """The key of a count: calls that are equal in all fields are counted together."""

    overload: str
    impl: str
    dtype: str | None
    shapes: tuple[tuple[int, ...], ...]
    why: str  # why torch's own kernel ran; "" if another kernel ran


class CallRecorder:
    """Counts calls, and writes them as JSON lines: most frequent first."""

    def __init__(self, sink: Sink):
        self._file = None if hasattr(sink, "write") else Path(sink)  # type: ignore[arg-type]
        self._stream: Any = sink if self._file is None else None
        if self._file is not None:
            try:  # open the file now, so that an invalid path raises before the run
                self._file.write_text("", encoding="utf-8")
            except OSError as error:
                raise BadSink(
                    f"record={str(sink)!r} cannot be written: {error.strerror or error}. "
                    f"Name a file in a folder that exists and is writable, or pass an open file"
                ) from None
        self.calls: Counter[CountedCall] = Counter()

    def write(self) -> None:
        lines = [
            json.dumps({k: v for k, v in (c._asdict() | {"count": n}).items() if v != ""}) + "\n"
            for c, n in self.calls.most_common()
        ]
        if self._file is not None:
            self._file.write_text("".join(lines), encoding="utf-8")
        else:
            self._stream.write("".join(lines))
            self.calls.clear()  # so that the next write does not repeat them


live: tuple[CallRecorder, ...] = ()
# (overload, first tensor) -> why the current selection leaves the call to torch; "" if it does not.
left_to_torch: Callable[[str, Any], str] = lambda name, first: ""
_reason = threading.local()  # why this thread's last candidate declined


def start(recorder: CallRecorder) -> None:
    global live
    if recorder not in live:
        live = (*live, recorder)
        atexit.register(recorder.write)


def stop(recorder: CallRecorder) -> None:
    """Stop a recorder and write its counts."""
    global live
    if recorder in live:
        live = tuple(r for r in live if r is not recorder)
        atexit.unregister(recorder.write)
        recorder.write()


def wrapped(name: str, impl: OpImpl, natives: Mapping[str, Callable[..., Any]]) -> OpImpl:
    """Wrap a candidate so that its calls are counted; `natives`: device type -> torch's own kernel."""
    fn = _counting(name, impl)
    if impl.impl_id == "native":
        return replace(impl, fn=fn)

    @functools.wraps(impl.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = first_tensor(args, kwargs)
        kernel = None if first is None else natives.get(first.device.type)
        why = left_to_torch(name, first) if kernel is not None else ""
        if kernel is None or not why:
            return fn(*args, **kwargs)
        _count(name, "native", why, args, kwargs)
        return kernel(*args, **kwargs)

    return replace(impl, fn=call)


def _counting(name: str, impl: OpImpl) -> Callable[..., Any]:
    @functools.wraps(impl.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        native = impl.impl_id == "native"
        why = getattr(_reason, "of", {}).pop(name, "") if native else ""
        try:
            result = impl.fn(*args, **kwargs)
        except (NotSupported, BadArgument) as error:
            _reason.of = {name: f"{impl.impl_id}: {error}"}
            raise
        _count(name, impl.impl_id, why, args, kwargs)
        return result

    return call


def _count(name: str, impl: str, why: str, args: tuple, kwargs: dict) -> None:
    tensors = list(tensors_in((args, kwargs)))
    dtype = dtype_name(tensors[0].dtype) if tensors else None
    call = CountedCall(name, impl, dtype, tuple(tuple(t.shape) for t in tensors), why)
    for recorder in live:
        recorder.calls[call] += 1

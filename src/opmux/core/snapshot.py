"""Copies everything that a call may write, so that a failed implementation's writes are undone before the next one
runs.

Everything reachable from an argument is copied: tensors with their storage, shape, version counter, `.grad` and
attributes, numpy arrays, containers, and the attributes of objects (a quantizer's amax, a quantized tensor's scales).
If something cannot be copied, `take` returns the reason, and the call cannot fall back.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from .tensors import has_memory

LIMIT = 1 << 30  # bytes; a call that may write more gets no snapshot, so it cannot fall back
MOST_OBJECTS = 10_000  # reachable objects of one call

_IMMUTABLE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    enum.Enum,
    PurePath,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
)
# Handles have no state to restore.
_HANDLES = (torch.Stream, torch.Event)


class Unsaved(Exception):
    """A value that cannot be copied and restored; the message names the value and the reason."""


class Snapshot:
    """The state of some values, and of everything reachable from them."""

    def __init__(self, values: Iterable[tuple[str, Any]], generators: Iterable[torch.Generator] = ()):
        self._undo: list[Callable[[], None]] = []
        self._visited: dict[int, Any] = {}  # id -> object; keeping the object alive keeps its id unique
        self._nbytes = 0
        for name, value in values:
            self._save(value, name)
        for generator in generators:
            self._undo.append(_rewind(generator))

    def restore(self) -> None:
        """Restore the saved state."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _save(self, value: Any, name: str) -> None:
        if isinstance(value, (*_IMMUTABLE, *_HANDLES)) or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if len(self._visited) > MOST_OBJECTS:
            raise Unsaved(f"'{name}' refers to more than {MOST_OBJECTS} objects")
        if isinstance(value, Tensor):
            self._save_tensor(value, name)
        elif isinstance(value, (tuple, frozenset)):
            self._save_all(value, name)
        elif isinstance(value, dict):
            self._save_all(value.values(), name)
            self._undo.append(_refill(value, dict, dict.update, dict(value)))
        elif isinstance(value, list):
            self._save_all(value, name)
            self._undo.append(_refill(value, list, list.extend, list(value)))
        elif isinstance(value, set):
            self._undo.append(_refill(value, set, set.update, set(value)))
        elif isinstance(value, (collections.deque, bytearray)):
            kind = collections.deque if isinstance(value, collections.deque) else bytearray
            self._undo.append(_refill(value, kind, kind.extend, list(value)))
        elif isinstance(value, torch.Generator):
            self._undo.append(_rewind(value))
        elif _is_array(value):
            self._save_array(value, name)
        else:
            self._save_object(value, name)

    def _save_all(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self._save(value, name)

    def _save_object(self, value: Any, name: str) -> None:
        slots = [s for kind in type(value).__mro__ for s in _slots(kind) if hasattr(value, s)]
        if not hasattr(value, "__dict__") and not slots:
            if _is_group(value):
                return
            raise Unsaved(f"'{name}' refers to a {type(value).__name__}, whose state cannot be copied")
        held = {s: getattr(value, s) for s in slots}
        self._save_all(held.values(), name)
        self._undo.append(lambda: [object.__setattr__(value, s, v) for s, v in held.items()])  # type: ignore[func-returns-value]
        if hasattr(value, "__dict__"):
            self._save_attributes(value, name)

    def _save_attributes(self, value: Any, name: str) -> None:
        attributes = value.__dict__
        if attributes:
            self._save_all(list(attributes.values()), name)
            self._undo.append(_refill(attributes, dict, dict.update, dict(attributes)))
        else:
            self._undo.append(lambda: value.__dict__.clear())

    def _save_array(self, value: Any, name: str) -> None:
        self._count(value.nbytes)
        if value.dtype.hasobject:
            self._save_all(value.flat, name)
        copy, shape = value.copy(), value.shape

        def undo() -> None:
            value.shape = shape
            value[...] = copy

        self._undo.append(undo)

    def _save_tensor(self, value: Tensor, name: str) -> None:
        self._save_attributes(value, name)  # inner tensors of a wrapper subclass, attributes set by users
        grad = value.grad if value.is_leaf else None
        if grad is not None:
            self._save(grad, f"{name}.grad")
        if value.is_leaf and value.requires_grad:
            self._undo.append(lambda: setattr(value, "grad", grad))
        if not has_memory(value):
            inner = getattr(value, "__tensor_flatten__", None)
            if inner is not None:
                self._save_all([getattr(value, n) for n in inner()[0]], name)
            return
        dense = value.layout is torch.strided and not value.is_nested
        save = _dense if dense else _other
        try:
            self._count(value.nbytes if dense else value._nnz() * value.element_size() if value.is_sparse else 0)
            self._undo.append(save(value))
        except (RuntimeError, NotImplementedError) as error:
            message = str(error).strip().partition("\n")[0]
            raise Unsaved(f"'{name}' cannot be copied: {message}") from error

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._nbytes > LIMIT:
            raise Unsaved(f"the call may write more than {LIMIT >> 20} MiB, which is too much to copy")


def take(values: Iterable[tuple[str, Any]], generators: Iterable[torch.Generator] = ()) -> Snapshot | str:
    """A snapshot of named values and random number generators, or the reason why there is none."""
    if _capturing():
        return "a CUDA graph is being captured"
    try:
        return Snapshot(values, generators)
    except Unsaved as error:
        return str(error)
    except RuntimeError as error:  # out of memory
        return f"what the call may write cannot be copied: {str(error).strip().partition(chr(10))[0]}"


# ---- undo functions -------------------------------------------------------------------------------------------------


def _dense(tensor: Tensor) -> Callable[[], None]:
    """The undo function of a dense tensor: restores storage, offset, shape, strides, contents and version counter."""
    storage, nbytes = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
    layout = (tensor.storage_offset(), tensor.shape, tensor.stride())
    version = None if tensor.is_inference() else tensor._version
    # copy_ cannot write back elements that share memory (an expanded tensor), so copy the storage.
    whole = nbytes <= 2 * tensor.nbytes or _overlaps(tensor)
    copy = storage.clone() if whole else tensor.detach().clone()

    def undo() -> None:
        with torch.inference_mode(tensor.is_inference()):
            if storage.nbytes() != nbytes:
                storage.resize_(nbytes)
            moved = tensor.untyped_storage()._cdata != storage._cdata
            if moved or (tensor.storage_offset(), tensor.shape, tensor.stride()) != layout:
                tensor.set_(storage, *layout)  # type: ignore[call-overload]
            if isinstance(copy, Tensor):
                tensor.detach().copy_(copy)
            else:
                storage.copy_(copy)
        if version is not None:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))  # pyright: ignore[reportAttributeAccessIssue]

    return undo


def _other(tensor: Tensor) -> Callable[[], None]:
    """The undo function of a sparse, mkldnn or nested tensor: copies the contents back."""
    copy = tensor.detach().clone()
    return lambda: tensor.copy_(copy)  # type: ignore[return-value]


def _refill(value: Any, kind: Any, fill: Callable[..., Any], copy: Any) -> Callable[[], None]:
    def undo() -> None:
        kind.clear(value)
        fill(value, copy)

    return undo


def _rewind(generator: torch.Generator) -> Callable[[], None]:
    state = generator.get_state()
    return lambda: generator.set_state(state)  # type: ignore[return-value]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = (f"_{kind.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names)
    return tuple(n for n in private if n not in ("__dict__", "__weakref__"))


def _overlaps(tensor: Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)) or (
        torch._debug_has_internal_overlap(tensor) == 1
    )


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_group(value: Any) -> bool:
    return torch.distributed.is_available() and isinstance(value, torch.distributed.ProcessGroup)

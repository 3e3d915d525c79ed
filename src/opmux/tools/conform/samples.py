"""Arguments for checks: drawn on the CPU, copied to the device with the same layout, and compared after a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core.spec import Sample, Spec
from ...core.tensors import tensors_in
from .. import explain
from ..runner.check import as_tuple

# In order of preference, because all samples of an op are tried in the first dtype that it accepts.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAIN = (Tensor, bool, int, float, complex, str, torch.dtype, torch.device)
DTYPES = (*FLOATS, torch.int32, torch.int64, torch.bool)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's warnings about edge cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class Drawn:
    """One sample on the CPU, and the reference's results for it."""

    spec: Spec
    dtype: torch.dtype
    sample: Sample
    results: dict[str, Any]  # by name; includes the arguments that the op writes

    @property
    def id(self) -> str:
        return self.sample.id

    def on(self, device: torch.device) -> Sample:
        return moved(self.sample, device)


def drawn(spec: Spec, dtype: torch.dtype, matches: Callable[[str], bool] = lambda id: True) -> Iterator[Drawn]:
    """The samples of an op in a dtype; empty if its samples or its reference do not support it."""
    cpu = torch.device("cpu")
    assert spec.samples is not None
    with quiet(), torch.no_grad():
        try:
            samples = [s for s in spec.samples(dtype, cpu) if matches(s.id)]
        except (TypeError, ValueError, KeyError, RuntimeError):  # the samples support only the op's dtypes
            return
    for sample in samples:
        arguments = bound(spec, sample)
        sample_with_results = _with_results(spec, dtype, arguments) if _can_move(arguments) else None
        if sample_with_results is not None:
            yield sample_with_results


def _can_move(sample: Sample) -> bool:
    """Whether a sample can be copied to another device and compared. Objects with tensors in them cannot be copied."""
    leaves = tree_leaves((sample.args, sample.kwargs))
    return not sample.loose and all(leaf is None or isinstance(leaf, PLAIN) for leaf in leaves)


def _with_results(spec: Spec, dtype: torch.dtype, sample: Sample) -> Drawn | None:
    args, kwargs = (
        tree_map_only(Tensor, torch.clone, (sample.args, sample.kwargs))
        if spec.mutates
        else (sample.args, sample.kwargs)
    )
    with quiet(), torch.no_grad():
        try:
            returned = by_name(spec, spec.reference(*args, **kwargs))
        except (TypeError, ValueError, RuntimeError):  # includes NotImplementedError, a RuntimeError
            return None
    return Drawn(spec, dtype, sample, returned | written(spec, Sample(args, kwargs)))


def bound(spec: Spec, sample: Any) -> Sample:
    """Bind the arguments to the op's signature, because samples may pass keyword-only arguments by position."""
    named = dict(zip(spec.names, sample.args)) | sample.kwargs
    arguments = spec.signature.bind(**named)
    return Sample(arguments.args, arguments.kwargs, sample.id, getattr(sample, "loose", False))


def written(spec: Spec, sample: Sample) -> dict[str, Any]:
    """The arguments that an op has written, by name."""
    arguments = named(spec, sample)
    values = {name: value for n in spec.mutates for name, value in leaves(n, arguments.get(n))}
    return {f"{name} (written)": value for name, value in values.items() if isinstance(value, Tensor)}


def by_name(spec: Spec, returned: Any) -> dict[str, Any]:
    """The results of a call under the op's names for them. Lists and objects are flattened.

    Raises ValueError if there are not as many results as names. Lists that tex returns may have any length.
    """
    results = as_tuple(returned) if spec.out or returned is not None else ()
    if len(results) != len(spec.out) and spec.space == "tex":
        return dict(leaves("result", list(results)))
    if len(results) != len(spec.out):
        raise ValueError(f"{len(results)} results, expected {len(spec.out)}: {' '.join(spec.out)}")
    return dict(leaf for name, value in zip(spec.out, results) for leaf in leaves(name, value))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Flatten a value into named leaves: the items of a list, the tensors among an object's attributes."""
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(f"{name}[{i}]", item)
    elif value is None or isinstance(value, PLAIN) or not hasattr(value, "__dict__"):
        yield name, value
    else:
        yield from ((f"{name}.{n}", v) for n, v in vars(value).items() if isinstance(v, Tensor))


def named(spec: Spec, sample: Sample) -> dict[str, Any]:
    return dict(spec.signature.bind_partial(*sample.args, **sample.kwargs).arguments)


# ---- to the device --------------------------------------------------------------------------------------------------


def moved(sample: Sample, device: torch.device, dtype: torch.dtype | None = None) -> Sample:
    """Copy a sample to a device, with the same strides. `dtype`, if given, replaces the dtype of float tensors."""
    args, kwargs = tree_map_only(Tensor, lambda t: _laid(t, device, dtype), (sample.args, sample.kwargs))
    args, kwargs = tree_map_only(torch.device, lambda _: device, (args, kwargs))
    return Sample(args, kwargs, sample.id)


def _laid(t: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """Copy a tensor's whole storage and keep its strides, because a plain copy may be contiguous."""
    to = dtype if dtype is not None and t.is_floating_point() else t.dtype
    return whole(t).to(device, to, copy=True).as_strided(t.shape, t.stride(), t.storage_offset())


def whole(t: Tensor) -> Tensor:
    """A one-dimensional view of the tensor's whole storage."""
    return t.detach().as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


# ---- what a call runs ------------------------------------------------------------------------------------------------


class AtenRecorder(TorchDispatchMode):
    """Calls `tell` with the name (`aten::add.Tensor`) and the arguments of each ATen overload that runs."""

    def __init__(self, tell: Callable[[str, tuple, dict[str, Any]], Any]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._tell(func.name(), tuple(args), dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


# ---- what an impl does to its arguments -----------------------------------------------------------------------------


class Watch:
    """The state of arguments before a call (bytes of their storages, version counters), to detect writes."""

    def __init__(self, arguments: dict[str, Any], allowed: Iterable[str] = ()):
        skip = set(allowed)
        self._before = [
            (name, t, t._version, _bytes(t))
            for name, value in arguments.items()
            if name not in skip
            for t in tensors_in(value)
            if not t.is_meta
        ]

    def changed(self) -> str | None:
        """Describe the first argument that has changed; None if none has."""
        for name, t, version, before in self._before:
            after = _bytes(t)
            if not torch.equal(before, after):
                at = int((before != after).nonzero()[0]) // t.itemsize
                old, new = (b.view(t.dtype)[at].item() for b in (before, after))
                element = f"element {at - t.storage_offset()} of {name}'s memory"
                return f"{name} was written: {element} was {old:.6g}, and is {new:.6g}"
            if t._version != version:
                return f"{name} was written in place (version {version}, then {t._version}), with the same numbers"
        return None


def _bytes(t: Tensor) -> Tensor:
    """A copy of the storage as bytes, because copying bools could change their bits."""
    return whole(t).view(torch.uint8).to("cpu", copy=True)


def shared_memory(arguments: dict[str, Any], results: dict[str, Any]) -> str | None:
    """A message about the first result that shares memory with an argument; None if none does."""
    owners = {t.untyped_storage().data_ptr(): n for n, v in arguments.items() for t in tensors_in(v) if _has_memory(t)}
    for name, value in results.items():
        for t in tensors_in(value):
            owner = owners.get(t.untyped_storage().data_ptr()) if _has_memory(t) else None
            if owner is not None:
                return f"{name} shares memory with {owner}: results of this op must be new tensors"
    return None


def _has_memory(t: Tensor) -> bool:
    return not t.is_meta and t.numel() > 0


def in_words(t: Tensor) -> str:
    """A tensor in short form: `float32[5x64] on npu:0`."""
    return f"{explain.in_words(t)} on {t.device}"

"""Run references on meta tensors, which have no values: a reference that reads a value on the host fails there."""

from __future__ import annotations

from typing import Any

import torch

from opmux.core.tensors import tensors_in


def shapes(value: Any) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.dtype) for t in tensors_in(value)]


def nothing_is_read_on_the_host(spec: Any) -> None:
    """Assert that every sample runs on meta tensors, with the shapes and dtypes of its results on the CPU."""
    pairs = list(zip(spec.samples(torch.float32, "meta"), spec.samples(torch.float32, "cpu"), strict=True))
    assert pairs
    for meta, real in pairs:
        assert shapes(spec.reference(*meta.args)) == shapes(spec.reference(*real.args)), real.id

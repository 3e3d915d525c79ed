"""Device memory that is kept between calls: bounded, released by one call, kept for captured CUDA graphs."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

import opmux
from opmux.core import held


@pytest.fixture
def cache(monkeypatch):
    monkeypatch.setattr(held, "_release", [])
    return held.HeldTensors(most=3)


def test_a_tensor_is_created_once(cache):
    tensors = [cache.get("a", lambda: torch.ones(2), cuda=False) for _ in range(2)]
    assert tensors[0] is tensors[1]


def test_the_oldest_tensor_is_evicted(cache):
    for n in range(5):
        cache.get(n, lambda n=n: torch.ones(n), cuda=False)
    assert list(cache.cached) == [2, 3, 4]


def test_empty_cache_releases_memory(cache):
    alive = weakref.ref(cache.get("a", lambda: torch.ones(2), cuda=False))
    assert alive() is not None
    held.empty_cache()
    gc.collect()
    assert alive() is None


def test_memory_of_captured_graphs_is_kept(cache, monkeypatch):
    before = cache.get("before", lambda: torch.ones(2), cuda=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert cache.get("before", lambda: torch.ones(3), cuda=True) is before
    new = cache.get("new", lambda: torch.ones(4), cuda=True)
    assert "new" not in cache.cached, "memory of the graph is the graph's"
    held.empty_cache()
    assert cache.get("before", lambda: torch.ones(3), cuda=True) is before, "a replay reads it"
    assert cache.get("new", lambda: torch.ones(4), cuda=True) is not new


def held_tensors(value, depth=3):
    """The tensors in a module's tables, including caches and nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, held.HeldTensors):
        yield from held_tensors(value.cached, depth)
    elif depth and isinstance(value, dict):
        for item in list(value.values()):
            yield from held_tensors(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for item in list(value):
            yield from held_tensors(item, depth - 1)


def of_opmux():
    """(module, name) of each table in opmux that holds tensors."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "opmux"}
    return {
        (name, key)
        for name, module in modules.items()
        for key, value in list(vars(module).items())
        if isinstance(value, (dict, list, held.HeldTensors))
        and not key.startswith("__")
        and any(True for _ in held_tensors(value))
    }


def test_no_table_holds_tensors_after_empty_cache():
    """The calls in this test fill all tables: amax histories, norms without weights, attention without dropout."""
    from opmux import tex
    from opmux.faces.aten import norm
    from opmux.faces.tex.ops import attention

    histories = [torch.rand(4, 3), torch.rand(4, 2)]
    scales = [torch.ones(3), torch.ones(2)]
    tex.fused_amax_and_scale_update_after_reduction(torch.rand(5), histories, scales, "max", tex.DType.kFloat8E4M3, 0.0)
    norm.ones(8, torch.float32, torch.zeros(1))
    attention.no_rng_state(torch.device("cpu"))
    assert of_opmux()
    opmux.empty_cache()
    assert not of_opmux()

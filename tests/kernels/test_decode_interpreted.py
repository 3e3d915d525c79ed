"""Decoding in the interpreter: keys in several parts, caches with NaN in unused entries, chips without float8."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import specs
from opmux.kernels import decode
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.plans import forget
from opmux.specs import decode as family

MODE = "interpret"
CPU = torch.device("cpu")


@pytest.fixture
def parts(monkeypatch):
    """`parts(n)`: use blocks of 16 keys, split into n parts."""

    def of(splits):
        monkeypatch.setattr(decode, "splits_for", lambda programs, keys, slots: splits)
        monkeypatch.setattr(decode.key_tiles, "default", lambda **_: Tiles(128, 2, BLOCK_M=16, BLOCK_N=16, PER_CORE=1))
        forget()

    yield of
    forget()


def agree(name, args):
    got, want = getattr(decode, name)(*args), specs.find(name).reference(*args)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 5])
def test_only_valid_keys_are_read(parts, splits):
    """Tests lengths from 0 to the full cache, also with empty parts. Pages and table entries after the end are not
    read.
    """
    parts(splits)
    lengths, table = torch.tensor([70, 0, 1, 33]), torch.full((4, 3), 10**6)
    k_cache, v_cache = torch.full((2, 9, 32, 2, 16), math.nan)
    spare = iter(range(9))
    for z, length in enumerate(lengths.tolist()):
        for start in range(0, length, 32):
            page, count = next(spare), min(32, length - start)
            table[z, start // 32] = page
            k_cache[page, :count], v_cache[page, :count] = torch.randn(2, count, 2, 16)
    q, sinks = torch.randn(4, 2, 6, 16), torch.randn(6)
    for window in (-1, 20):
        agree("attention_decode", (q, k_cache, v_cache, lengths, table, sinks, None, None, window, 0.0, None))


def test_each_part_computes_a_tile_of_heads(parts):
    parts(3)
    q, cache = torch.randn(1, 1, 20, 40), torch.randn(1, 50, 40)
    agree("mla_decode", (q, cache, torch.tensor([50]), 32, None, None, None))


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_float8_works_on_chips_without_it(monkeypatch, kind):
    monkeypatch.setattr(decode, "multiplies_fp8", lambda: False)
    forget()
    dtype = family.KINDS[kind]
    k, v = (torch.randn(2, 20, 2, 16).to(dtype) for _ in range(2))
    q, lengths, scale = torch.randn(2, 1, 4, 16), torch.tensor([20, 3]), torch.tensor([2.0, 0.5])
    agree("attention_decode", (q, k, v, lengths, None, None, scale, scale, -1, 0.0, None))
    forget()


def test_float8_tokens_are_copied_unchanged():
    k, lengths = torch.randn(2, 2, 1, 16).to(torch.float8_e4m3fn), torch.tensor([2, 5])
    caches = [torch.zeros(2, 6, 1, 16).to(k.dtype) for _ in range(4)]
    decode.write_kv_cache(k, k, *caches[:2], lengths, None, None, None, None)
    family.write_kv_cache.reference(k, k, *caches[2:], lengths, None, None, None, None)
    assert torch.equal(caches[0].view(torch.uint8), caches[2].view(torch.uint8))
    assert torch.equal(caches[1].view(torch.uint8), caches[3].view(torch.uint8))


@pytest.mark.parametrize(
    ("programs", "keys", "splits"), [(128, 64, 2), (8, 512, 30), (512, 64, 1), (8, 4, 4), (1, 1, 1)]
)
def test_splits_fill_the_chip(programs, keys, splits):
    """The chip runs 264 programs at the same time: two on each of its 132 cores."""
    assert decode.splits_for(programs, keys, 264) == splits

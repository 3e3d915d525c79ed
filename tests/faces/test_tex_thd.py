"""tex's functions on halves of packed sequences match loops over tokens."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from meta_samples import nothing_is_read_on_the_host

from opmux.core.spec import specs
from opmux.faces.tex.ops import thd as tex_thd

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

CU = [0, 4, 4, 12, 18]
LENGTHS = torch.tensor(CU, dtype=torch.int32)
T, H, D = 18, 2, 3
SPANS = list(pairwise(CU))
FIRST = [t for a, b in SPANS for t in range(a, (a + b) // 2)]
SECOND = [t for a, b in SPANS for t in range((a + b) // 2, b)]


def call(name, *args):
    return specs.find(f"tex::{name}").reference(*args)


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("half", [0, 1])
def test_read_half_returns_the_tokens_of_one_half(half, dtype):
    tokens = (FIRST, SECOND)[half]
    x = (drawn(2, T, H, D) * 9).abs().to(dtype)
    assert torch.equal(call("thd_read_half_tensor", x, LENGTHS, half), x[:, tokens])
    assert torch.equal(call("thd_read_half_tensor", x[0], LENGTHS, half), x[0][tokens])


def by_sequence(lse, longest):
    """Convert lse [h, t] to [b, h, longest]."""
    out = lse.new_full((len(SPANS), H, longest), 7.0)
    for n, (a, b) in enumerate(SPANS):
        out[n, :, : b - a] = lse[:, a:b]
    return out


def halves_by_sequence(step, longest):
    out, offset = step.new_full((len(SPANS), H, longest), 7.0), 0
    for n, (a, b) in enumerate(SPANS):
        size = (b - a) // 2
        out[n, :, :size] = step[:, offset : offset + size]
        offset += size
    return out


@pytest.mark.parametrize("packed", [True, False])
def test_second_half_lse_correction_matches_a_loop(packed):
    lse, step = drawn(H, T), drawn(H, T // 2, seed=1)
    want = lse.clone()
    for i, t in enumerate(SECOND):
        want[:, t] = torch.log(torch.exp(lse[:, t]) + torch.exp(step[:, i]))
    shape = (lambda x: x) if packed else (lambda x: by_sequence(x, 9))
    mine, per = shape(lse).clone(), step if packed else halves_by_sequence(step, 5)
    call("thd_second_half_lse_correction", mine, per, LENGTHS, packed)
    torch.testing.assert_close(mine, shape(want))

    got = call("thd_read_second_half_lse", shape(lse), LENGTHS, packed, 11 if packed else 5)
    if packed:
        assert got.shape == (H, 11) and torch.equal(got[:, :9], lse[:, SECOND]) and got[:, 9:].eq(0).all()
    else:
        for n, (a, b) in enumerate(SPANS):
            size = (b - a) // 2
            assert torch.equal(got[n, :, :size], lse[:, b - size : b]) and got[n, :, size:].eq(0).all()


def test_lse_correction_of_minus_infinity_is_minus_infinity():
    lse = torch.full((H, T), -math.inf)
    call("thd_second_half_lse_correction", lse, torch.full((H, T // 2), -math.inf), LENGTHS, True)
    assert lse.eq(-math.inf).all()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_out_correction_matches_a_loop(second, packed, old, dtype):
    tokens = SECOND if second else range(T)
    out, step = drawn(T, H, D, dtype=dtype), drawn(len(tokens), H, D, seed=1, dtype=dtype)
    lse, per, before = drawn(H, T, seed=2), drawn(H, len(tokens), seed=3), drawn(H, T, seed=4)
    step[0] = 0
    per[:, 0] = math.inf
    want = out.double()
    for i, t in enumerate(tokens):
        expected = want[t] * torch.exp(before[:, t] - lse[:, t]).double()[:, None] if old else want[t]
        more = step[i].double() * torch.exp(per[:, i] - lse[:, t]).double()[:, None] if i else 0
        want[t] = expected + more
    if not packed:
        per = halves_by_sequence(per, 6) if second else by_sequence(per, 8)
        lse, before = by_sequence(lse, 8), by_sequence(before, 8)
    if old:
        tex_thd.thd_out_correction_from_old(out, step, before, lse, per, LENGTHS, second, packed)
    else:
        call("thd_out_correction", out, step, lse, per, LENGTHS, second, packed)
    torch.testing.assert_close(out.double(), want, rtol=1e-5 if dtype is torch.float32 else 4e-3, atol=1e-5)


@pytest.mark.parametrize("first", ["add", "copy", "zero", "none"])
@pytest.mark.parametrize("second", ["add", "copy", "zero", "none"])
@pytest.mark.parametrize("shape", [(T, H, D), (2, T, H, D)], ids=str)
def test_grad_correction_matches_a_loop(first, second, shape):
    whole = {first, second} <= {"add", "copy"}
    grad, step = drawn(*shape), drawn(*shape[:-3], T if whole else T // 2, H, D, seed=1)
    want = grad.clone()
    for half, tokens in ((first, FIRST), (second, SECOND)):
        for i, t in enumerate(tokens):
            g = step[..., t if whole else i, :, :]
            if half == "add":
                want[..., t, :, :] += g
            elif half != "none":
                want[..., t, :, :] = g if half == "copy" else 0
    call("thd_grad_correction", grad, step, LENGTHS, first, second)
    torch.testing.assert_close(grad, want)


def test_grad_correction_accepts_bytes():
    grad, step = torch.zeros(T, H, D, dtype=torch.uint8), torch.full((T // 2, H, D), 9, dtype=torch.uint8)
    call("thd_grad_correction", grad, step, LENGTHS, "zero", "copy")
    assert grad[SECOND].eq(9).all() and grad[FIRST].eq(0).all()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("rest", [0, 2])
def test_partitioned_indices_give_each_rank_its_tokens(world, rest):
    cu = [0, 4 * world, 4 * world, 10 * world]
    total, lengths = (10 + rest) * world, torch.tensor(cu, dtype=torch.int32)
    shares = []
    for rank in range(world):
        want = []
        for a, b in pairwise(cu):
            part = (b - a) // (2 * world)
            front, back = a + rank * part, a + (2 * world - 1 - rank) * part
            want += [*range(front, front + part), *range(back, back + part)]
        got = call("thd_get_partitioned_indices", lengths, total, world, rank)
        assert got.dtype is torch.int32 and got.shape == (total // world,)
        assert got[: len(want)].tolist() == want
        shares += got.tolist()
    assert sorted(shares) == list(range(total))
    x = drawn(total, H)
    there = call("thd_sequence_order_to_cp_rank_order", x, lengths, world, total)
    assert torch.equal(there, x[shares])
    assert torch.equal(call("thd_cp_rank_order_to_sequence_order", there, lengths, world, total), x)


def test_copy_valid_tokens_skips_padding():
    padded, lengths = LENGTHS, torch.tensor([0, 3, 3, 8, 14], dtype=torch.int32)
    out, inp = drawn(T + 2, H, D), drawn(T + 2, H, D, seed=1)
    want = out.clone()
    for (a, _), size in zip(SPANS, (3, 0, 5, 6), strict=True):
        want[a : a + size] = inp[a : a + size]
    call("thd_copy_valid_tokens_from_per_split_to_rank_local", out, inp, padded, lengths)
    assert torch.equal(out, want)


@pytest.mark.parametrize("spec", [s for s in specs if s.family == "tex_thd"], ids=lambda s: s.name)
def test_thd_functions_copy_nothing_to_the_host(spec):
    nothing_is_read_on_the_host(spec)

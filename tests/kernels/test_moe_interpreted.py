"""The mixture-of-experts kernels beyond the samples: copies, blocks, rows that are not written."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.core.errors import BadArgument
from opmux.core.spec import specs
from opmux.kernels import moe as kernels
from opmux.specs import moe as spec

MODE = "interpret"
CPU = torch.device("cpu")
specs.load("tex_moe")
TEX = [s for s in specs.by_key.values() if s.family == "tex_moe"]


def same(op, *args):
    got, want = getattr(kernels, op.spec.name)(*args), op.reference(*args)
    for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert a.dtype == b.dtype and a.is_contiguous()
        tol = op.spec.tol[b.dtype]
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)
    return got


@pytest.mark.parametrize("topk", [1, 5, 17])
@pytest.mark.parametrize("num_out", [0, 20, 200])
@pytest.mark.few(4)
def test_permute_and_unpermute_agree_with_the_reference(topk, num_out):
    """Tests more copies than the kernel unrolls, dropped rows, and more rows than copies."""
    indices = torch.rand(12, 30).argsort(-1)[:, :topk].int()
    row_map = same(spec.moe_row_map, indices, num_out)
    x, probs = torch.randn(12, 40), torch.rand(12, topk)
    y = same(spec.moe_spread, x, row_map, topk, num_out)
    same(spec.moe_spread_bwd, y, row_map, topk)
    same(spec.moe_collect, y, row_map, probs, topk, False)
    same(spec.moe_collect_bwd, x, y, row_map, probs, topk, False)
    same(spec.moe_collect_bwd, x, y, row_map, None, topk, False)


def test_a_row_out_of_range_is_skipped():
    """The map has rows out of range; the kernel reads and writes nothing outside of the tensors."""
    x, dy, probs = torch.randn(6, 8), torch.randn(4, 8), torch.rand(4, 2)
    row_map = torch.tensor([0, 9, 1, 2, 3, -1, 6, 4], dtype=torch.int32)
    same(spec.moe_collect, x, row_map, probs, 2, False)
    same(spec.moe_collect, x, row_map, None, 2, False)
    got, _ = kernels.moe_collect_bwd(dy, x, row_map, probs, 2, False)
    torch.testing.assert_close(got[:5], spec.moe_collect_bwd.reference(dy, x, row_map, probs, 2)[0][:5])
    got = kernels.moe_spread(dy, row_map, 2, 6)
    assert torch.equal(got[:5], spec.moe_spread.reference(dy, row_map, 2, 6)[:5])


def test_every_partial_sum_is_rounded():
    """NVIDIA's kernel rounds in the same way: in bfloat16, 1 + 2^-9 + 2^-9 + ... stays 1."""
    x = torch.tensor([[1.0]] + [[2.0**-9]] * 7, dtype=torch.bfloat16)
    row_map = torch.arange(8, dtype=torch.int32)
    for give in (kernels.moe_collect, spec.moe_collect.reference):
        assert give(x, row_map, None, 8, False).item() == 1.0
        assert give(x.float(), row_map, None, 8, False).item() == 1.0 + 7 * 2.0**-9
        assert give(x, row_map, None, 8, True) == torch.tensor(1.0 + 7 * 2.0**-9).bfloat16() != 1.0


@pytest.mark.parametrize("op", [spec.moe_pad_into, spec.moe_unpad_into])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_row_blocks_agree_with_the_reference(op, dtype):
    for sample in op.spec.samples(torch.float32, CPU):
        args = [a.to(dtype) if torch.is_tensor(a) else a for a in sample.args]
        want = [a.clone() if torch.is_tensor(a) else a for a in args]
        assert op.reference(*want) is None
        assert getattr(kernels, op.spec.name)(*args) is None
        assert torch.equal(args[1], want[1]), sample.id


@pytest.mark.parametrize("count", [8, 9, 64, 130])
def test_many_blocks_agree_with_the_reference(count):
    """Tests more blocks than one launch takes. Empty blocks with padding, and rows after the last block, are
    skipped.
    """
    sizes = [k % 4 for k in range(count)]
    padded = [4] * count
    x = torch.randn(sum(sizes), 5)
    out, want = torch.full((4 * count + 3, 5), 7.0), torch.full((4 * count + 3, 5), 7.0)
    kernels.moe_pad_into(x, out, sizes, padded)
    spec.moe_pad_into.reference(x, want, sizes, padded)
    assert torch.equal(out, want) and (out[-3:] == 7).all() and (out[:4] == 7).all()
    back = torch.full_like(x, 7.0)
    kernels.moe_unpad_into(out, back, padded, sizes)
    assert torch.equal(back, x)


def test_views_are_written_in_place():
    x, out = torch.randn(5, 16)[:, 3:9], torch.full((8, 16), 7.0)
    kernels.moe_pad_into(x, out[:, 4:10], [2, 3], [4, 4])
    want = torch.full((8, 16), 7.0)
    spec.moe_pad_into.reference(x, want[:, 4:10], [2, 3], [4, 4])
    assert torch.equal(out, want)


@pytest.mark.parametrize("op", [spec.moe_pad_into, spec.moe_unpad_into])
def test_invalid_arguments_raise_and_nothing_is_written(op):
    """Tests all invalid arguments of the right types; dispatch rejects wrong types."""
    kinds = (torch.Tensor, torch.Tensor, list, list)
    for bad in (b for b in op.spec.errors(CPU) if all(map(isinstance, b.args, kinds))):
        before = bad.args[1].clone()
        with pytest.raises(bad.error, match=bad.match):
            getattr(kernels, op.spec.name)(*bad.args)
        torch.testing.assert_close(bad.args[1], before, rtol=0, atol=0)


@pytest.mark.parametrize("name", TEX, ids=lambda s: s.name)
def test_tex_functions_over_the_kernels_agree_with_the_references(name):
    """Wrong arguments are rejected by the function or by a kernel's plan, and nothing is written."""
    copies = lambda args: [a.clone() if torch.is_tensor(a) else a for a in args]
    bound = name.adapter.bind({part.key: getattr(kernels, part.name) for part in name.adapter.over})
    for sample in name.samples(torch.bfloat16, CPU):
        if torch.uint8 in (a.dtype for a in sample.args if torch.is_tensor(a)) and name.name != "moe_permute_fwd":
            continue  # float8 sums run on the reference
        ours, theirs = copies(sample.args), copies(sample.args)
        got, want = bound(*ours), name.reference(*theirs)
        results = lambda r: r if isinstance(r, tuple) else (r,)
        for a, b in zip((*results(got), *ours), (*results(want), *theirs), strict=True):
            if torch.is_tensor(b):
                tol = name.tol.get(b.dtype)
                torch.testing.assert_close(a, b, rtol=tol.rtol if tol else 0, atol=tol.atol if tol else 0)
    for bad in (b for b in name.errors(CPU) if b.typed):
        before = copies(bad.args)
        with pytest.raises(BadArgument):
            bound(*bad.args)
        for a, b in zip(bad.args, before, strict=True):
            assert not torch.is_tensor(a) or a.is_meta or torch.equal(a, b), bad.id

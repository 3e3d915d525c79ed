"""Softmax of attention logits, and tex's four functions for it, against the definition in float64; gradients against
autograd's.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from bad_arguments import assert_rejected

import opmux
from opmux.core import specs
from opmux.specs import softmax as family

CPU = torch.device("cpu")
INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
TEX = [s for s in specs if s.family == "tex_softmax"]
over_tex = pytest.mark.parametrize("spec", TEX, ids=lambda s: s.name)


def truth(x, mask=None, scale=1.0, causal=False):
    """The definition, without torch's softmax: exp(scale * x), divided by its sum over unmasked keys; 0 if all keys are
    masked.
    """
    visible = torch.ones(x.shape[-2:], dtype=torch.bool)
    if causal:
        visible = visible.tril(x.shape[-1] - x.shape[-2])
    if mask is not None:
        visible = visible & (mask == 0)
    e = torch.exp(scale * x) * visible
    return e / (e.sum(-1, keepdim=True) + (e.sum(-1, keepdim=True) == 0))


def close(got, want, dtype, what, slack=1):
    tol = family.scaled_softmax.spec.tol[dtype]
    torch.testing.assert_close(
        got.double(), want, rtol=slack * tol.rtol, atol=slack * tol.atol, msg=lambda m: f"{what}: {m}"
    )


@every_dtype
def test_values_and_gradients_equal_the_definition(dtype):
    for sample in family.SCALED_FWD(dtype, CPU):
        x, *rest = sample.args
        leaf, true_leaf = x.detach().clone().requires_grad_(), x.detach().double().requires_grad_()
        y, want = opmux.ops.scaled_softmax(leaf, *rest), truth(true_leaf, *rest)
        close(y, want, dtype, sample.id)
        dy = torch.randn(y.shape, dtype=dtype)
        (got,) = torch.autograd.grad(y, leaf, dy)
        (want,) = torch.autograd.grad(want, true_leaf, dy.double())
        # the gradient uses the rounded y: the rounding error of y is multiplied by sums of dy
        close(got, want, dtype, sample.id, slack=1 if dtype in (torch.float64, torch.float32) else 20)


def test_causal_masks_are_aligned_to_the_last_key():
    x = torch.zeros(3, 5)
    visible = opmux.ops.scaled_softmax(x, causal=True) > 0
    assert visible.sum(-1).tolist() == [3, 4, 5] and visible[0].tolist() == [True] * 3 + [False] * 2
    assert (opmux.ops.scaled_softmax(torch.zeros(5, 3), causal=True) > 0).sum(-1).tolist() == [0, 0, 1, 2, 3]


def test_masked_logits_give_zero_whatever_their_value():
    x = torch.randn(2, 4, 8)
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 1] = mask[2] = True
    want = opmux.ops.scaled_softmax(x, mask, 0.5, True)
    for junk in (NAN, INF, -INF, 1e30):
        corrupted = x.masked_fill(mask | family.after(x), junk)
        assert torch.equal(opmux.ops.scaled_softmax(corrupted, mask, 0.5, True), want)
    assert want[:, 2].eq(0).all() and want[..., 1].eq(0).all() and want[:, 1, 0].gt(0).all()


def test_gradients_of_later_keys_are_ignored():
    y = opmux.ops.scaled_softmax(torch.randn(4, 8), causal=True)
    dy = torch.randn(4, 8)
    want = opmux.ops.scaled_softmax_bwd(dy, y, 2.0, True)
    corrupted = dy.masked_fill(family.after(y), NAN)
    assert torch.equal(opmux.ops.scaled_softmax_bwd(corrupted, y, 2.0, True), want)
    assert opmux.ops.scaled_softmax_bwd(corrupted, y, 2.0, False).isnan().any()


def test_unmasked_infinities_are_as_in_torch():
    x = torch.tensor([[1.0, -INF, 2.0], [-INF, -INF, -INF], [INF, 1.0, 2.0], [NAN, 1.0, 2.0]])
    torch.testing.assert_close(opmux.ops.scaled_softmax(x), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("bits", [torch.bool, torch.uint8])
def test_any_nonzero_mask_value_masks(bits):
    x, mask = torch.randn(3, 4), torch.tensor([0, 1, 0, 7]).to(bits)
    y = opmux.ops.scaled_softmax(x, mask)
    torch.testing.assert_close(y[:, [0, 2]], torch.softmax(x[:, [0, 2]], -1))
    assert y[:, [1, 3]].eq(0).all()


# ---- tex ------------------------------------------------------------------------------------------------------------

# NVIDIA's signatures, verbatim.
SIGNATURES = {
    "scaled_softmax_forward": "input scale_factor",
    "scaled_softmax_backward": "output_grad softmax_results scale_factor",
    "scaled_masked_softmax_forward": "input mask scale_factor",
    "scaled_masked_softmax_backward": "output_grad softmax_results scale_factor",
    "scaled_upper_triang_masked_softmax_forward": "input scale_factor",
    "scaled_upper_triang_masked_softmax_backward": "output_grads softmax_results scale_factor",
    "scaled_aligned_causal_masked_softmax_forward": "input scale_factor",
    "scaled_aligned_causal_masked_softmax_backward": "output_grads softmax_results scale_factor",
}


def true_tex(spec, *args):
    """Compute what tex computes, in double precision: masked logits become -10000, fully masked rows become zeros."""
    causal = "causal" in spec.name or "triang" in spec.name
    if spec.name.endswith("forward"):
        x, *mask, scale = args
        logits = scale * x.double()
        if mask:
            logits = logits.masked_fill(mask[0] != 0, -10000.0)
        if causal:
            later = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1 + x.shape[-1] - x.shape[-2])
            logits = logits.masked_fill(later, -10000.0)
        if not x.numel():
            return logits
        return torch.softmax(logits, -1).masked_fill(logits.amax(-1, keepdim=True) == -10000.0, 0.0)
    dy, y, scale = args[0].double(), args[1].double(), args[2]
    return scale * (y * dy - y * (y * dy).sum(-1, keepdim=True))


def test_every_tex_softmax_is_listed():
    assert {s.name for s in TEX} == set(SIGNATURES)
    for spec in TEX:
        assert " ".join(spec.names) == SIGNATURES[spec.name]
        assert all(p.default is p.empty for p in inspect.signature(spec.reference).parameters.values())
        part = "scaled_softmax_bwd" if spec.name.endswith("backward") else "scaled_softmax"
        assert set(spec.parts) == {f"opmux::{part}"}
        assert not spec.mutates


@every_dtype
@over_tex
def test_tex_softmaxes_equal_the_definition(spec, dtype):
    samples = list(spec.samples(dtype, CPU))
    assert samples
    for sample in samples:
        tensors = [a for a in sample.args if torch.is_tensor(a)]
        before = [a.clone() for a in tensors]
        got = spec.reference(*sample.args)
        close(got, true_tex(spec, *sample.args), dtype, f"{spec.name} {sample.id}")
        assert got.dtype is dtype and got.is_contiguous()
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True)), "tex 2.9 wrote here; we do not"
        assert all(got.untyped_storage().data_ptr() != a.untyped_storage().data_ptr() for a in tensors if a.numel())


@over_tex
def test_wrong_tex_arguments_raise_with_the_ops_name(spec):
    assert_rejected(spec, spec.reference)


@over_tex
def test_tex_functions_record_no_gradient_and_use_dispatch(spec):
    for sample in spec.samples(torch.float32, CPU):
        args = [a.detach().clone().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a
                for a in sample.args]  # fmt: skip
        got = getattr(opmux.ops, spec.name)(*args)
        assert not got.requires_grad
        torch.testing.assert_close(got, spec.reference(*sample.args), rtol=0, atol=0)


def test_for_squares_the_triangular_form_equals_the_aligned_one():
    x = torch.randn(6, 9, 9)
    ops = opmux.ops
    triangle = ops.scaled_upper_triang_masked_softmax_forward(x, 0.5)
    assert torch.equal(triangle, ops.scaled_aligned_causal_masked_softmax_forward(x, 0.5))
    with pytest.raises(ValueError, match=r"input must have shape \[batches, n, n\]; got \(6, 9, 8\)"):
        ops.scaled_upper_triang_masked_softmax_forward(x[:, :, 1:], 0.5)

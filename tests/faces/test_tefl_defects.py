"""Each test covers a defect that running the TE-FL plugin's reference backend showed, and that opmux must not have."""

import os
import sys
from pathlib import Path

import fresh
import pytest
import torch
import torch.nn.functional as F

from opmux.faces.tex import interface

tex = interface.module()
SRC = Path(__file__).parents[2] / "src"
BF16 = torch.bfloat16


def gemm(A, transA, B, transB, D=None, *, bias=None, gelu=False, gelu_in=None, grad=False, accumulate=False, **more):
    return tex.generic_gemm(
        A, transA, B, transB, D, None, None, bias, None, gelu, gelu_in, grad, None, 0, accumulate, False, **more
    )


# ---- gemm -----------------------------------------------------------------------------------------------------------


def test_the_bias_gradient_is_returned_and_not_added_to_the_weights():
    x, dy, bias = torch.randn(6, 5), torch.randn(6, 4), torch.randn(4)
    dw, db, _, _ = gemm(x, False, dy, True, bias=bias, grad=True)
    torch.testing.assert_close(dw, dy.T @ x)
    torch.testing.assert_close(db, dy.sum(0))


def test_gelu_with_grad_is_its_derivative_and_does_not_write_its_input():
    w, dy, saved = torch.randn(4, 5), torch.randn(6, 4), torch.randn(6, 5)
    leaf = saved.clone().requires_grad_()
    F.gelu(leaf, approximate="tanh").backward(dy @ w)
    got = gemm(w, False, dy, False, gelu=True, gelu_in=saved, grad=True)
    torch.testing.assert_close(got[0], leaf.grad)
    assert saved.equal(leaf.detach())


def test_bias_gelu_alpha_and_beta_are_all_applied():
    x, w, bias = torch.randn(6, 5), torch.randn(4, 5), torch.randn(4)
    y, none, pre, _ = gemm(w, True, x, False, bias=bias, gelu=True)
    torch.testing.assert_close(pre, x @ w.T + bias)
    torch.testing.assert_close(y, F.gelu(pre, approximate="tanh"))
    assert none is None
    D = torch.ones(6, 4)
    gemm(w, True, x, False, D, accumulate=True, alpha=2.0, beta=3.0)
    torch.testing.assert_close(D, 2 * (x @ w.T) + 3)


# ---- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
def test_rsigma_is_float32_and_one_dimensional(dtype):
    x, w = torch.randn(2, 3, 8).to(dtype), torch.ones(8).to(dtype)
    out, none, rsigma = tex.rmsnorm_fwd(x, w, 1e-5, None, None, tex.DType.kFloat32, 0, False)
    assert (rsigma.dtype, tuple(rsigma.shape), none, out.dtype) == (torch.float32, (6,), None, torch.float32)
    torch.testing.assert_close(rsigma, torch.rsqrt(x.float().square().mean(-1) + 1e-5).flatten())


def test_norms_use_ln_out_and_otype():
    x, w = torch.randn(3, 8).to(BF16), torch.ones(8).to(BF16)
    buffer = torch.empty(3, 8)
    out, mu, _ = tex.layernorm_fwd(x, w, w, 1e-5, buffer, None, tex.DType.kFloat32, 0, False)
    assert out is buffer and mu.dtype is torch.float32 and mu.dim() == 1
    torch.testing.assert_close(buffer, F.layer_norm(x.float(), (8,), w.float(), w.float(), 1e-5))


# ---- softmax --------------------------------------------------------------------------------------------------------


def test_the_causal_softmax_mask_is_bottom_right_aligned():
    x = torch.randn(2, 3, 4, 16).to(BF16)
    got = tex.scaled_aligned_causal_masked_softmax_forward(x, 0.5)
    visible = torch.ones(4, 16).tril(12).bool()
    want = torch.softmax((x.float() * 0.5).masked_fill(~visible, -torch.inf), -1)
    torch.testing.assert_close(got.float(), want, rtol=1.6e-2, atol=1e-3)
    assert got[..., 0, 13:].eq(0).all() and got[..., 0, 12].ne(0).all()


def test_a_fully_masked_row_is_zero():
    x = torch.randn(2, 3, 4, 16).to(BF16)
    mask = torch.zeros(2, 1, 4, 16, dtype=torch.bool)
    mask[0, 0, 1] = True
    got = tex.scaled_masked_softmax_forward(x, mask, 1.0)
    assert got[0, :, 1].eq(0).all()
    torch.testing.assert_close(got[1].float().sum(-1), torch.ones(3, 4), rtol=0, atol=2e-2)


# ---- optimizers -----------------------------------------------------------------------------------------------------


def noop():
    return torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize(("mode", "optimizer"), [(0, torch.optim.Adam), (1, torch.optim.AdamW)])
def test_adam_decays_weights_in_both_modes(mode, optimizer):
    p, m, v = torch.randn(37), torch.zeros(37), torch.zeros(37)
    twin = torch.nn.Parameter(p.clone())
    other = optimizer([twin], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)
    for step in range(1, 4):
        g = torch.randn(37)
        twin.grad = g.clone()
        other.step()
        tex.multi_tensor_adam(65536, noop(), [[g], [p], [m], [v]], 0.01, 0.9, 0.95, 1e-8, step, mode, 1, 0.3)
    torch.testing.assert_close(p, twin.detach(), rtol=1e-5, atol=1e-6)


def test_adam_keeps_master_weights_in_float32():
    master = torch.randn(37)
    p, m, v, g = master.to(BF16), torch.zeros(37), torch.zeros(37), torch.full((37,), 1e-3).to(BF16)
    twin = torch.nn.Parameter(master.clone())
    other = torch.optim.AdamW([twin], lr=1e-4, weight_decay=0.0)
    for step in range(1, 6):
        twin.grad = g.float()
        other.step()
        tex.multi_tensor_adam(65536, noop(), [[g], [p], [m], [v], [master]], 1e-4, 0.9, 0.999, 1e-8, step, 1, 1, 0.0)
    torch.testing.assert_close(master, twin.detach(), rtol=1e-6, atol=1e-7)
    assert p.equal(master.to(BF16)) and not master.equal(p.float())


def test_sgd_accepts_nvidias_eleven_arguments_in_order():
    p, mom = torch.randn(37), torch.zeros(37)
    twin = torch.nn.Parameter(p.clone())
    other = torch.optim.SGD([twin], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    for step in range(3):
        g = torch.randn(37)
        twin.grad = g.clone()
        other.step()
        tex.multi_tensor_sgd(65536, noop(), [[g], [p], [mom]], 0.01, 0.9, 0.0, 0.1, True, step == 0, False, 1.0)
    torch.testing.assert_close(p, twin.detach())


def test_l2norm_returns_the_total_and_per_tensor_norms():
    xs = [torch.randn(37), torch.randn(5, 7)]
    norm, each = tex.multi_tensor_l2norm(65536, noop(), [xs], True)
    torch.testing.assert_close(norm, torch.cat([x.flatten() for x in xs]).norm().reshape(1))
    torch.testing.assert_close(each, torch.stack([x.norm() for x in xs]))
    _, none = tex.multi_tensor_l2norm(65536, noop(), [xs], False)
    assert none.numel() == 0


# ---- the interface --------------------------------------------------------------------------------------------------


def test_optimizers_are_the_functions_themselves():
    import inspect

    assert len(inspect.signature(tex.multi_tensor_adam).parameters) == 11
    assert "eps" not in inspect.signature(tex.rmsnorm_bwd).parameters


def test_import_prints_nothing_and_adds_no_foreign_top_level_module():
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import transformer_engine_fl_torch as tex\n"
        "tex.gelu(torch.randn(3, 8), None)\n"
        "tops = {n.partition('.')[0] for n in set(sys.modules) - before}\n"
        "assert not tops & {'core', 'ops', 'backends', 'transformer_engine_torch', 'transformer_engine'}, tops"
    )
    result = fresh.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        timeout=240,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_unavailable_functions_raise_not_implemented_error():
    with pytest.raises(NotImplementedError, match="needs"):
        tex.nvshmem_finalize()

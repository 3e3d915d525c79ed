"""opmux serves the parts of Liger's functions that programs import: kernels, host functions, base classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opmux.faces import compat

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def liger():
    compat.install("liger_kernel")
    yield
    compat.uninstall("liger_kernel")


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def close(got, want, dtype=torch.float32):
    """`want` is computed in float64, or in the dtype of `got`."""
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want.to(got.dtype), **tolerance)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("weighted", "reduction"), [(False, "mean"), (True, "mean"), (True, "sum")])
def test_the_cross_entropy_kernel_writes_losses_and_gradients(dtype, weighted, reduction):
    from liger_kernel.ops.cross_entropy import liger_cross_entropy_kernel

    z, smoothing, cap = 0.1, 0.2, 5.0
    x, target = normal(5, 17, dtype=dtype), torch.tensor([3, -100, 0, 16, 3])
    weight = normal(17).abs() + 0.1 if weighted else None
    counts = target != -100
    own = x.double().requires_grad_()
    logits, w = cap * torch.tanh(own / cap), None if weight is None else weight.double()
    each = F.cross_entropy(logits, target, w, reduction="none", label_smoothing=smoothing)
    total = counts.sum() if w is None else w[target[counts]].sum()
    of_z = z * logits.logsumexp(-1) ** 2 * counts
    want = each / total + of_z / counts.sum() if reduction == "mean" else each + of_z
    (dx,) = torch.autograd.grad(want.sum(), own)
    loss, z_loss, accuracy, tokens = (torch.full((5,), 7.0) for _ in range(4))
    written = x.clone()
    liger_cross_entropy_kernel[(5,)](
        X_ptr=written, X_stride=17, Y_ptr=target, Y_stride=1, weight_ptr=weight, loss_ptr=loss, z_loss_ptr=z_loss,
        loss_stride=1, token_accuracy_ptr=accuracy, token_accuracy_stride=1, predicted_tokens_ptr=tokens,
        predicted_tokens_stride=1, n_cols=17, n_non_ignore=4, sum_non_ignore_weight=float(total), weight_sum=1.0,
        ignore_index=-100, lse_square_scale=z, label_smoothing=smoothing, reduction=reduction, softcap=cap,
        RETURN_Z_LOSS=True, RETURN_TOKEN_ACCURACY=True, RETURN_PREDICTED_TOKENS=True, BLOCK_SIZE=32,
        HAS_WEIGHT=weighted, HAS_SOFTCAPPING=True, HAS_GRADIENTS=True, num_warps=4,
    )  # fmt: skip
    close(loss[counts], want[counts], dtype)
    close(z_loss[counts], of_z[counts] / (4 if reduction == "mean" else 1), dtype)
    assert loss[1] == z_loss[1] == 7.0  # an ignored row is not written
    close(written, dx, dtype)
    best = x.argmax(-1)
    assert tokens.tolist() == torch.where(counts, best, -1).tolist()
    assert accuracy.tolist() == ((best == target) & counts).float().tolist()


def test_the_kernels_of_embeddings_and_products_write_their_results():
    from liger_kernel.ops.experimental.embedding import embedding_backward_kernel, embedding_forward_kernel
    from liger_kernel.ops.utils import element_mul_kernel

    x, table, index = normal(4, 9), normal(6, 5), torch.tensor([[1, 5], [1, 0]])
    part = x.clone()
    element_mul_kernel[(3,)](part, part.stride(0), torch.tensor(2.5), 7, BLOCK_SIZE=16, num_warps=32)
    want = x.clone()
    want[:3, :7] *= 2.5
    assert torch.equal(part, want)
    out, grad = torch.empty(4, 5), torch.zeros(6, 5)
    embedding_forward_kernel[lambda meta: (1, meta["BLOCK_SIZE_N"])](table, index, out, 4, 5, 8, 8)
    assert torch.equal(out, table[index.flatten()])
    embedding_backward_kernel[(1, 1)](out, grad, index, 4, embedding_dim=5, BLOCK_SIZE_M=8, BLOCK_SIZE_N=8)
    torch.testing.assert_close(grad, torch.zeros(6, 5).index_add(0, index.flatten(), out))


def test_a_kernel_that_opmux_lacks_says_what_to_use_when_it_is_launched():
    from liger_kernel.ops.swiglu import silu
    from liger_kernel.ops.utils import element_mul_kernel
    from liger_kernel.ops.vocab_parallel_cross_entropy import liger_vocab_parallel_ce_forward_kernel as kernel

    with pytest.raises(NotImplementedError, match="use LigerVocabParallelCEFunction.apply"):
        kernel[(4,)](normal(4, 9), 9)
    with pytest.raises(NotImplementedError, match="torch.nn.functional.silu"):
        silu(normal(3))
    with pytest.raises(TypeError, match="missing a required argument: 'grad_output_ptr'"):
        element_mul_kernel[(3,)](normal(3, 4), 4)

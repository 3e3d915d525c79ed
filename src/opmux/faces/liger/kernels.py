"""Liger's Triton kernels under their names: objects that are launched as `kernel[grid](...)`.

A `LaunchedKernel` with a function runs it on the memory of the launch. Another one raises when it is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.errors import OpmuxError
from ...functional import losses, rows
from .function import LigerArguments, with_gradients
from .losses import IGNORED

TRITON = ("num_warps", "num_stages", "num_ctas")  # options of a launch; they have no effect


class KernelRefused(OpmuxError, NotImplementedError):
    """A kernel of Liger that opmux does not have."""


class LaunchedKernel:
    """A kernel of Liger: `function` gets the grid's size, and the launch's arguments by name."""

    def __init__(self, name: str, takes: str, function: Callable[..., None] | None = None, instead: str = ""):
        self.arguments, self.function, self.instead = LigerArguments.parse(name, takes), function, instead
        self.__name__ = name

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            if self.function is None:
                raise KernelRefused(f"{self.__name__}: opmux does not have this kernel of Liger; {self.instead}")
            kwargs = {name: value for name, value in kwargs.items() if name not in TRITON}
            values = dict(zip(self.arguments.names, self.arguments.in_order(args, kwargs), strict=True))
            sizes = grid(values) if callable(grid) else grid
            self.function(sizes[0] if isinstance(sizes, tuple) else sizes, **values)

        return launch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise KernelRefused(f"{self.__name__}: {self.instead or 'launch it as kernel[grid](...)'}")


def _rows(tensor: Tensor, count: int, stride: int, columns: int = 0) -> Tensor:
    """A view of `count` rows with this stride, as a kernel reads them from a pointer; one-dimensional for columns=0."""
    if columns:
        return tensor.as_strided((count, columns), (stride, 1))
    return tensor.as_strided((count,), (stride,))


# ---- cross entropy ---------------------------------------------------------------------------------------------------


def _cross_entropy(
    programs: int,
    X_ptr: Tensor,
    X_stride: int,
    Y_ptr: Tensor,
    Y_stride: int,
    weight_ptr: Tensor | None,
    loss_ptr: Tensor,
    z_loss_ptr: Tensor | None,
    loss_stride: int,
    token_accuracy_ptr: Tensor | None,
    token_accuracy_stride: int,
    predicted_tokens_ptr: Tensor | None,
    predicted_tokens_stride: int,
    n_cols: int,
    n_non_ignore: float,
    sum_non_ignore_weight: float,
    weight_sum: float,
    ignore_index: int,
    lse_square_scale: float,
    label_smoothing: float,
    reduction: str,
    softcap: float | None,
    RETURN_Z_LOSS: bool,
    RETURN_TOKEN_ACCURACY: bool,
    RETURN_PREDICTED_TOKENS: bool,
    BLOCK_SIZE: int,
    HAS_WEIGHT: bool,
    HAS_SOFTCAPPING: bool,
    HAS_GRADIENTS: bool,
) -> None:
    """Writes the loss of each row, and over the logits their gradient; the loss of an ignored row is not written."""
    x, target = _rows(X_ptr, programs, X_stride, n_cols), _rows(Y_ptr, programs, Y_stride)
    weight, mean = weight_ptr if HAS_WEIGHT else None, reduction == "mean"
    scale_of_z = 1.0 / n_non_ignore if mean else 1.0
    scale = 1.0 / sum_non_ignore_weight if mean and HAS_WEIGHT else scale_of_z
    counts = target != ignore_index
    options: dict[str, Any] = dict(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
        softcap=softcap if HAS_SOFTCAPPING else None,
        return_predicted_tokens=True,
    )
    outputs: dict[str, Tensor] = {}

    def loss(logits: Tensor) -> Tensor:
        plain: Any = losses.cross_entropy(logits, target, weight, **options)
        outputs["tokens"], total = plain.predicted_tokens, plain.loss * scale
        outputs["z"] = torch.zeros_like(total.detach())
        if lse_square_scale:
            more: Any = losses.cross_entropy(logits, target, weight, z_loss=lse_square_scale, **options)
            z = (more.loss - plain.loss) * scale_of_z
            outputs["z"], total = z.detach(), total + z
        return total

    each, (gradient,) = with_gradients(loss, x.detach().requires_grad_(bool(HAS_GRADIENTS)))
    written = [(True, loss_ptr, loss_stride, each), (RETURN_Z_LOSS, z_loss_ptr, loss_stride, outputs["z"])]
    for requested, to, stride, values in written:
        if requested and to is not None:
            at = _rows(to, programs, stride)
            at.copy_(torch.where(counts, values.to(at.dtype), at))
    tokens = torch.where(counts, outputs["tokens"], IGNORED)
    if RETURN_TOKEN_ACCURACY and token_accuracy_ptr is not None:
        _rows(token_accuracy_ptr, programs, token_accuracy_stride).copy_((tokens == target) & counts)
    if RETURN_PREDICTED_TOKENS and predicted_tokens_ptr is not None:
        _rows(predicted_tokens_ptr, programs, predicted_tokens_stride).copy_(tokens)
    if gradient is not None:
        x.detach().copy_(gradient)


liger_cross_entropy_kernel = LaunchedKernel(
    "liger_cross_entropy_kernel",
    "X_ptr, X_stride, Y_ptr, Y_stride, weight_ptr, loss_ptr, z_loss_ptr, loss_stride, token_accuracy_ptr, "
    "token_accuracy_stride, predicted_tokens_ptr, predicted_tokens_stride, n_cols, n_non_ignore, "
    "sum_non_ignore_weight, weight_sum, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, "
    "RETURN_Z_LOSS, RETURN_TOKEN_ACCURACY, RETURN_PREDICTED_TOKENS, BLOCK_SIZE, HAS_WEIGHT, HAS_SOFTCAPPING, "
    "HAS_GRADIENTS",
    _cross_entropy,
)


# ---- others ----------------------------------------------------------------------------------------------------------


def _element_mul(
    programs: int, X_ptr: Tensor, X_stride: int, grad_output_ptr: Tensor, n_cols: int, BLOCK_SIZE: int
) -> None:
    _rows(X_ptr, programs, X_stride, n_cols).detach().mul_(grad_output_ptr.detach().reshape(-1)[0])


element_mul_kernel = LaunchedKernel(
    "element_mul_kernel", "X_ptr, X_stride, grad_output_ptr, n_cols, BLOCK_SIZE", _element_mul
)


def _embedding_forward(
    programs: int,
    embeddings_ptr: Tensor,
    indices_ptr: Tensor,
    output_ptr: Tensor,
    n_elements: int,
    embedding_dim: int,
    BLOCK_SIZE_M: int,
    BLOCK_SIZE_N: int,
) -> None:
    index = _rows(indices_ptr, n_elements, 1)
    output = _rows(output_ptr, n_elements, embedding_dim, embedding_dim).detach()
    output.copy_(rows.embedding(index, embeddings_ptr.detach().view(-1, embedding_dim)))


def _embedding_backward(
    programs: int,
    grad_output_ptr: Tensor,
    grad_weight_ptr: Tensor,
    indices_ptr: Tensor,
    n_elements: int,
    embedding_dim: int,
    BLOCK_SIZE_M: int,
    BLOCK_SIZE_N: int,
) -> None:
    """Adds to the gradient of the table."""
    gradient = _rows(grad_output_ptr, n_elements, embedding_dim, embedding_dim).to(grad_weight_ptr.dtype)
    grad_weight_ptr.view(-1, embedding_dim).index_add_(0, _rows(indices_ptr, n_elements, 1), gradient)


embedding_forward_kernel = LaunchedKernel(
    "embedding_forward_kernel",
    "embeddings_ptr, indices_ptr, output_ptr, n_elements, embedding_dim, BLOCK_SIZE_M, BLOCK_SIZE_N",
    _embedding_forward,
)
embedding_backward_kernel = LaunchedKernel(
    "embedding_backward_kernel",
    "grad_output_ptr, grad_weight_ptr, indices_ptr, n_elements, embedding_dim, BLOCK_SIZE_M, BLOCK_SIZE_N",
    _embedding_backward,
)

_VOCAB_PARALLEL = "use LigerVocabParallelCEFunction.apply, which also exchanges the sums between processes"
liger_vocab_parallel_ce_forward_kernel = LaunchedKernel(
    "liger_vocab_parallel_ce_forward_kernel",
    "X_ptr, X_stride, EXP_ptr, EXP_stride, logits_max_ptr, Y_ptr, pred_ptr, sum_exp_ptr",
    instead=_VOCAB_PARALLEL,
)
liger_vocab_parallel_ce_backward_kernel = LaunchedKernel(
    "liger_vocab_parallel_ce_backward_kernel",
    "EXP_ptr, EXP_stride, sum_exp_ptr, Y_ptr, grad_out_ptr",
    instead=_VOCAB_PARALLEL,
)
matmul_kernel = LaunchedKernel(
    "matmul_kernel", "a_ptr, b_ptr, c_ptr", instead="use matmul(a, b) of liger_kernel.ops.experimental.mm_int8int2"
)
silu = LaunchedKernel(
    "silu", "x", instead="it is a part of Liger's kernels; use torch.nn.functional.silu, or LigerSiLUMulFunction"
)

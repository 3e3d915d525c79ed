"""Losses as modules. Each calls a function of `opmux.functional`, whose options are the module's attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..functional import divergences, losses, vocab_parallel


class _WithOptions(nn.Module):
    """A module whose options are attributes; each call reads them."""

    def __init__(self, **options: Any):
        super().__init__()
        self._names = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class CrossEntropyLoss(_WithOptions):
    """`opmux.functional.cross_entropy` as a module; its state dict is the same as `torch.nn.CrossEntropyLoss`'s.

    Args:
        weight: the weight of each class.
        ignore_index: as in the function.
        reduction: as in the function.
        label_smoothing: as in the function.
        z_loss: as in the function.
        softcap: as in the function.
        return_z_loss: as in the function.
        return_token_accuracy: as in the function.
        return_predicted_tokens: as in the function.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ):
        super().__init__(
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            softcap=softcap,
            return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor | losses.CrossEntropyOutput:
        return losses.cross_entropy(input, target, self.weight, **self.options)


class FusedLinearCrossEntropyLoss(_WithOptions):
    """`opmux.functional.fused_linear_cross_entropy` as a module. The weight of the linear layer is passed to forward.

    Args:
        ce_weight: the weight of each class.
        ignore_index: as in the function.
        reduction: as in the function.
        label_smoothing: as in the function.
        z_loss: as in the function.
        softcap: as in the function.
        accum_dtype: as in the function.
        use_token_scaling: as in the function.
        return_z_loss: as in the function.
        return_token_accuracy: as in the function.
        return_predicted_tokens: as in the function.
    """

    ce_weight: Tensor | None

    def __init__(
        self,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ):
        super().__init__(
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            softcap=softcap,
            accum_dtype=accum_dtype,
            use_token_scaling=use_token_scaling,
            return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )
        self.register_buffer("ce_weight", ce_weight)

    def forward(
        self, input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | losses.CrossEntropyOutput:
        return losses.fused_linear_cross_entropy(input, weight, target, bias, self.ce_weight, **self.options)


class KLDivLoss(_WithOptions):
    """`opmux.functional.kl_div` as a module.

    Args:
        reduction: as in the function.
        log_target: as in the function.
        eps: as in the function.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, eps: float = 1e-10):
        super().__init__(reduction=reduction, log_target=log_target, eps=eps)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return divergences.kl_div(input, target, **self.options)


class JSD(_WithOptions):
    """`opmux.functional.jsd` as a module.

    Args:
        beta: as in the function.
        ignore_index: as in the function.
    """

    def __init__(self, beta: float = 0.5, ignore_index: int = -100):
        super().__init__(beta=beta, ignore_index=ignore_index)

    def forward(self, input: Tensor, target: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return divergences.jsd(input, target, shift_labels, **self.options)


class FusedLinearJSD(_WithOptions):
    """`opmux.functional.fused_linear_jsd` as a module. The weights of the linear layers are passed to forward.

    Args:
        jsd_beta: as in the function.
        ignore_index: as in the function.
        temperature: as in the function.
        accum_dtype: as in the function.
    """

    def __init__(
        self,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ):
        super().__init__(jsd_beta=jsd_beta, ignore_index=ignore_index, temperature=temperature, accum_dtype=accum_dtype)

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
    ) -> Tensor:
        layers = student_input, student_weight, teacher_input, teacher_weight
        return divergences.fused_linear_jsd(*layers, shift_labels, **self.options)


class TVDLoss(_WithOptions):
    """`opmux.functional.tvd` as a module.

    Args:
        reduction: as in the function.
        ignore_index: as in the function.
    """

    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100):
        super().__init__(reduction=reduction, ignore_index=ignore_index)

    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        return divergences.tvd(p, q, shift_labels, **self.options)


class VocabParallelCrossEntropy(_WithOptions):
    """`opmux.functional.vocab_parallel_cross_entropy` as a module. The group of processes is passed to forward.

    Args:
        ignore_index: as in the function.
        label_smoothing: as in the function.
        reduction: as in the function.
        formula: as in the function.
        mode: as in the function.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        formula: str = "pytorch",
        mode: str = "global",
    ):
        super().__init__(
            ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, formula=formula, mode=mode
        )

    def forward(self, logits: Tensor, target: Tensor, group: Any = None) -> Tensor:
        return vocab_parallel.vocab_parallel_cross_entropy(logits, target, group, **self.options)

"""`liger_kernel.megatron`: norms, gates and the loss of Megatron-Core."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument
from ...core.log import logger
from .divergences import LigerVocabParallelCrossEntropy
from .names import ops

PATCHED = "__liger_patched__"


class LigerMegatronRMSNorm(nn.Module):
    """An RMS norm with the constructor arguments of Megatron-Core's norms. `persist_layer_norm` has no effect."""

    def __init__(
        self,
        config: Any,
        hidden_size: int | Sequence[int],
        eps: float = 1e-5,
        persist_layer_norm: bool = False,
        zero_centered_gamma: bool = False,
        normalization: str = "RMSNorm",
    ):
        super().__init__()
        for name, value in (
            ("config.normalization", getattr(config, "normalization", "RMSNorm")),
            ("normalization", normalization),
        ):
            if value != "RMSNorm":
                raise BadArgument.of("LigerMegatronRMSNorm", name, "be 'RMSNorm'", repr(value))
        self.config, self.eps = config, eps
        self.hidden_size = torch.Size([hidden_size] if isinstance(hidden_size, int) else hidden_size)
        self.zero_centered_gamma = bool(zero_centered_gamma or getattr(config, "layernorm_zero_centered_gamma", False))
        self.weight = nn.Parameter(torch.empty(self.hidden_size))
        self.weight.sequence_parallel = bool(getattr(config, "sequence_parallel", False))  # pyright: ignore[reportAttributeAccessIssue]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        offset = 1.0 if self.zero_centered_gamma else 0.0
        return ops.LigerRMSNormFunction.apply(x, self.weight, self.eps, offset, "llama", False, None)

    def extra_repr(self) -> str:
        return f"{tuple(self.hidden_size)}, eps={self.eps}, zero_centered_gamma={self.zero_centered_gamma}"


def _unsupported(bias: Tensor | None, fp8_input_store: bool, cpu_offload_input: bool) -> str | None:
    """Why LigerMegatronSwiGLU cannot compute a call, as text for an error message; None if it can."""
    if bias is not None:
        return "a bias"
    if fp8_input_store:
        return "its input is to be saved in fp8"
    return "its input is to be moved to the CPU" if cpu_offload_input else None


class LigerMegatronSwiGLU(nn.Module):
    """silu(gate) * up, with the arguments of Megatron's `bias_swiglu_impl`.

    Calls that it cannot compute go to `fallback_impl`, Megatron's function; if that is None, they raise. `in_place` has
    no effect: the input is not modified.
    """

    def __init__(self, fallback_impl: Callable[..., Tensor] | None = None, in_place: bool = False):
        super().__init__()
        self.fallback_impl, self.in_place = fallback_impl, in_place

    def forward(
        self,
        input: Tensor,
        bias: Tensor | None = None,
        fp8_input_store: bool = False,
        cpu_offload_input: bool = False,
    ) -> Tensor:
        reason = _unsupported(bias, fp8_input_store, cpu_offload_input)
        if reason is None:
            return ops.LigerFusedGateUpSiLUMulFunction.apply(input, False)
        if self.fallback_impl is None:
            raise RuntimeError(
                f"LigerMegatronSwiGLU: {reason}, which it does not support; pass fallback_impl="
                f"megatron.core.fusions.fused_bias_swiglu.bias_swiglu_impl"
            )
        return self.fallback_impl(input, bias, fp8_input_store, cpu_offload_input)


class LigerMegatronCrossEntropy(
    LigerVocabParallelCrossEntropy,
    options="ignore_index=-100, label_smoothing=0.0, reduction='none', label_smoothing_formula='megatron', "
    "label_smoothing_mode='partition'",
):
    """Cross entropy of logits whose classes are split over ranks, with Megatron-LM's label smoothing."""


# ---- patches ---------------------------------------------------------------------------------------------------------


def apply_liger_kernel_to_megatron(rms_norm: bool = True, cross_entropy: bool = False, swiglu: bool = False) -> None:
    """Replace parts of Megatron-Core. Call it before a model is created; a second call has no effect.

    Args:
        rms_norm: replace the RMS norms of the local spec provider, and a block's last norm if it is torch's.
        cross_entropy: replace both loss functions for a vocabulary that is split over ranks.
        swiglu: replace the gate of dense MLPs and shared experts. Megatron's gate still runs for fp8 or offloaded
            inputs.
    """
    if rms_norm:
        _replace("models.backends", "LocalSpecProvider.layer_norm", _layer_norm)
        _replace("transformer.transformer_block", "LayerNormImpl", _last_norm)
    if cross_entropy:
        _replace("fusions.fused_cross_entropy", "fused_vocab_parallel_cross_entropy", _fused_loss)
        _replace("tensor_parallel.cross_entropy", "vocab_parallel_cross_entropy", _loss)
    if swiglu:
        _replace("fusions.fused_bias_swiglu", "SwiGLUFunction", _swiglu)


def _replace(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of a Megatron-Core module by `make(attribute)`, unless `make` returns None."""
    where = f"megatron.core.{module}"
    try:
        owner: Any = importlib.import_module(where)
        *above, last = name.split(".")
        for part in above:
            owner = getattr(owner, part)
        before = getattr(owner, last)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"apply_liger_kernel_to_megatron: {where}.{name} is not there: {error}. Is megatron-core installed, and of "
            f"a version that has it?"
        ) from None
    if getattr(before, PATCHED, False):
        return
    replacement = make(before)
    if replacement is None:
        logger.info("%s.%s is %s and stays", where, name, getattr(before, "__name__", before))
        return
    setattr(replacement, PATCHED, True)
    replacement.__wrapped__ = before
    setattr(owner, last, replacement)


def _layer_norm(before: Callable[..., Any]) -> Callable[..., Any]:
    def layer_norm(self: Any, rms_norm: bool = False, for_qk: bool = False, **options: Any) -> Any:
        return LigerMegatronRMSNorm if rms_norm else before(self, rms_norm=rms_norm, for_qk=for_qk, **options)

    return layer_norm


def _last_norm(before: Any) -> Any:
    """Replace only torch's norm: if it is Transformer Engine's or Apex's, the user has chosen it."""
    if before is not importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm:
        return None

    class WrappedTorchNorm:
        def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> Any:
            is_rms = getattr(config, "normalization", None) == "RMSNorm"
            return (LigerMegatronRMSNorm if is_rms else before)(config, hidden_size, eps, **options)

    return WrappedTorchNorm


def _fused_loss(before: Any) -> Callable[..., Tensor]:
    def fused_vocab_parallel_cross_entropy(
        vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any = None
    ) -> Tensor:
        return LigerMegatronCrossEntropy()(vocab_parallel_logits, target, tp_group)

    return fused_vocab_parallel_cross_entropy


def _loss(before: Any) -> Callable[..., Tensor]:
    def vocab_parallel_cross_entropy(
        vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0, tp_group: Any = None
    ) -> Tensor:
        module = LigerMegatronCrossEntropy(label_smoothing=label_smoothing)
        return module(vocab_parallel_logits, target, tp_group)

    return vocab_parallel_cross_entropy


def _swiglu(before: Any) -> type:
    class SwiGLU:
        @staticmethod
        def apply(input: Tensor, fp8_input_store: bool = False, cpu_offload_input: bool = False) -> Tensor:
            if _unsupported(None, fp8_input_store, cpu_offload_input) is not None:
                return before.apply(input, fp8_input_store, cpu_offload_input)
            return ops.LigerFusedGateUpSiLUMulFunction.apply(input, False)

    return SwiGLU

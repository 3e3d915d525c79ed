"""`liger_kernel.transformers.trainer`: TRL's trainer of ORPO, with the loss computed without logits."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from .chunked import LigerFusedLinearORPOLoss
from .sharding import _FSDPForwardRedirection


def __getattr__(name: str) -> Any:
    if name == "LigerORPOTrainer":
        return _trainer()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


@functools.cache
def _trainer() -> type:
    """LigerORPOTrainer, created on first use because it imports trl."""
    try:
        base: Any = importlib.import_module("trl.trainer").ORPOTrainer
    except (ImportError, AttributeError) as error:
        raise ImportError(f"LigerORPOTrainer needs trl, in a version with ORPOTrainer: {error}") from None
    members = {
        "concatenated_forward": concatenated_forward,
        "get_batch_loss_metrics": get_batch_loss_metrics,
        "__doc__": "TRL's ORPOTrainer, with the loss computed from hidden states.",
        "__module__": __name__,
    }
    return type("LigerORPOTrainer", (base,), members)


def concatenated_forward(self: Any, model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    """The loss of a batch of pairs, and ORPO's values for logging."""
    ignored, encodes = self.label_pad_token_id, self.is_encoder_decoder
    pairs = self.concatenated_inputs(
        batch,
        is_encoder_decoder=encodes,
        label_pad_token_id=ignored,
        padding_value=self.padding_value,
        device=self.accelerator.device,
    )
    ids, mask, labels = (pairs[f"concatenated_{name}"] for name in ("input_ids", "attention_mask", "labels"))
    options = {"decoder_input_ids": self._shift_right(labels)} if encodes else {}
    options |= {"output_router_logits": True} if self.aux_loss_enabled else {}
    # The likelihood of the chosen answers includes their prompts.
    likely = labels.clone() if encodes else torch.where(mask == 1, ids, ignored)
    sharded = hasattr(model, "_fsdp_wrapped_module")
    inner = model._fsdp_wrapped_module if sharded else getattr(model, "module", model)
    in_model = functools.partial(_FSDPForwardRedirection(), model) if sharded else lambda run, *a, **k: run(*a, **k)
    outputs = in_model(inner.model, ids, attention_mask=mask, use_cache=False, **options)
    hidden = outputs.last_hidden_state
    if not encodes:  # each token predicts the next one
        hidden, labels, likely = hidden[:, :-1], labels[:, 1:], likely[:, 1:]
    module = LigerFusedLinearORPOLoss(ignore_index=ignored, beta=self.beta)
    compute = lambda head, x: module(head.weight, x, labels, getattr(head, "bias", None), nll_target=likely)
    loss, values = in_model(compute, inner.lm_head, hidden)
    return (loss + self.aux_loss_coef * outputs.aux_loss if self.aux_loss_enabled else loss), values


# Names of ORPO's values for logging, in their order.
VALUES = (
    "logps/chosen logps/rejected logits/chosen logits/rejected nll_loss rewards/chosen rewards/rejected log_odds_ratio "
    "log_odds_chosen"
)


def get_batch_loss_metrics(
    self: Any, model: Any, batch: dict[str, Any], train_eval: str = "train"
) -> tuple[Any, dict[str, float]]:
    """The loss, and the means of ORPO's values for logging."""
    loss, values = self.concatenated_forward(model, batch)
    named = dict(zip(VALUES.split(), values, strict=True))
    chosen, rejected = named["rewards/chosen"], named["rewards/rejected"]
    named["rewards/accuracies"], named["rewards/margins"] = chosen > rejected, chosen - rejected
    prefix = "eval_" if train_eval == "eval" else ""
    return loss, {f"{prefix}{name}": value.detach().float().mean().item() for name, value in named.items()}

"""Small models of transformers on one device: compares a training step under `opmux.enable(mode="all")` with torch's.

python tests/faces/model_steps.py cpu
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

import opmux
from opmux.faces.aten import engine


def gpt2() -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = dict(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    drops = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ids = torch.randint(0, 50, (2, 7))
    return GPT2LMHeadModel(GPT2Config(**sizes, **drops)), {"input_ids": ids, "labels": ids}


def bert() -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=50)
    drops = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    inputs = {"input_ids": torch.randint(0, 50, (2, 7)), "labels": torch.tensor([0, 1])}
    return BertForSequenceClassification(BertConfig(**sizes, **drops)), inputs


def vit() -> tuple[Any, dict[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24, image_size=16)
    drops = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return ViTForImageClassification(ViTConfig(patch_size=8, num_labels=2, **sizes, **drops)), inputs


def resnet() -> tuple[Any, dict[str, Any]]:
    """A ResNet-50 with all 50 layers and few channels."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = dict(embedding_size=4, hidden_sizes=[8, 8, 16, 16], depths=[3, 4, 6, 3], layer_type="bottleneck")
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return ResNetForImageClassification(ResNetConfig(num_labels=2, **sizes)), inputs


MODELS = {build.__name__: build for build in (gpt2, bert, vit, resnet)}


def step(model: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The loss and all gradients of one training step, copied to the CPU."""
    model.zero_grad(set_to_none=True)
    loss = model(**inputs).loss
    loss.backward()
    return [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]


def garbage(call: Callable[[], Any]) -> int:
    """The number of tensors that a call leaves in reference cycles, so that only the garbage collector frees them."""
    gc.collect()
    gc.disable()
    try:
        call()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def compared(name: str, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    # Use float64: in float32, batch norm over two values amplifies rounding errors without bound.
    model.train().double().to(device)
    inputs = {k: (v.double() if v.is_floating_point() else v).to(device) for k, v in inputs.items()}
    state = {k: v.clone() for k, v in model.state_dict().items()}
    native = step(model, inputs)
    model.load_state_dict(state)  # resets the running statistics
    opmux.enable(mode="all")
    try:
        with engine.counted() as calls:
            ours = step(model, inputs)
        left = garbage(lambda: step(model, inputs))
    finally:
        opmux.disable()
    error = max(float((a - b).norm() / (b.norm() + 1e-6)) for a, b in zip(ours, native, strict=True))
    return {
        "tensors": len(native),
        "largest distance": error,
        "overloads": len(calls),
        "calls": sum(calls.values()),
        "garbage": left,
    }


def main(device: str, names: Iterable[str] = MODELS) -> dict[str, Any]:
    return {name: compared(name, device) for name in names}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))

"""A small Llama for the tests of patch_model."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
VOCABULARY = 50


def llama(dtype=torch.float32, layers=2, **more):
    """A Llama whose norm weights are not all 1."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, **more,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "lm_head" in name:
                parameter.mul_(20)  # so that the losses of different batches differ
    return model.to(dtype)


def batch(rows=2, length=9, seed=1):
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone()}


def step(model, inputs=None):
    """The loss and the gradients of one step."""
    model.zero_grad()
    loss = model(**(inputs or batch())).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(ours, theirs, tol=2e-5):
    torch.testing.assert_close(ours, theirs, rtol=tol, atol=tol)

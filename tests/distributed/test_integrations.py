"""Two processes over gloo: accelerate and PEFT train a patched model as an unpatched one."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
import torch.distributed as dist

import opmux

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")


def built() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).train()


def adapted() -> torch.nn.Module:
    """A model with LoRA; B is not 0, so that A has a gradient."""
    model = peft.get_peft_model(built(), peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    return model.train()


def steps(accelerator, model, before: bool, after: bool) -> list[float]:
    """The losses of three steps on a rank, with the model patched before or after `prepare`, or not at all."""
    if before:
        opmux.patch_model(model)
    ids = torch.randint(97, (12, 8), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in ids], batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    if after:
        opmux.patch_model(model)
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    return losses


def run(rank: int, port: int, answers: dict) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True)
    try:
        for build in (built, adapted):
            expected = steps(accelerator, build(), False, False)
            assert len(expected) == 3
            for before, after in ((True, False), (False, True)):
                losses = steps(accelerator, build(), before, after)
                torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
        answers[rank] = "as without opmux"
    finally:
        dist.destroy_process_group()


def test_accelerate_trains_a_model_that_is_patched_before_or_after_prepare():
    assert ranks.run(run, 2) == dict.fromkeys(range(2), "as without opmux")

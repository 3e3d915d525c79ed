"""Two processes over gloo: a patched model trains under DDP and FSDP2 as it does in one process."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
import torch.distributed as dist

import opmux
from opmux.faces.models.logits import are_late

transformers = pytest.importorskip("transformers")
RANKS = 2


def built() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).train()


def tokens() -> torch.Tensor:
    return torch.randint(97, (2 * RANKS, 8), generator=torch.Generator().manual_seed(1))


def gradients(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    out = model(input_ids=ids, labels=ids)
    assert are_late(out) == bool(getattr(model, "patched", True))
    out.loss.backward()
    whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
    return out.loss.detach(), {n.removeprefix("module."): whole(p.grad) for n, p in model.named_parameters()}


def ddp(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model.lm_head)  # its weight is unsharded only in its own forward
    return fully_shard(model)


def run(rank: int, port: int, answers: dict) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        one = built()
        one.patched = False
        _, expected = gradients(one, tokens())
        for wrap in (ddp, fsdp):
            model = built()
            opmux.patch_model(model)
            _, grads = gradients(wrap(model), tokens().chunk(RANKS)[rank])
            assert grads.keys() == expected.keys()
            for name, grad in expected.items():
                torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        answers[rank] = "as in one process"
    finally:
        dist.destroy_process_group()


def test_a_patched_model_trains_under_ddp_and_fsdp2_as_in_one_process():
    assert ranks.run(run, RANKS) == dict.fromkeys(range(RANKS), "as in one process")

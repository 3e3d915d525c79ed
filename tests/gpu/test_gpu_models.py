"""Patched models of `transformers` on a GPU: values, gradients, CUDA graphs and decoding."""

import pytest
import torch

import opmux
from opmux.faces.models import attention

pytestmark = pytest.mark.gpu
transformers = pytest.importorskip("transformers")
KINDS = {"llama": {}, "qwen3": {}, "gemma2": {}, "mixtral": {"num_local_experts": 8}, "phi3": {"pad_token_id": 0}}


def built(kind: str, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](
        hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        head_dim=64, vocab_size=32003, max_position_embeddings=1024, **KINDS[kind],
    )  # fmt: skip
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def ids(rows: int = 2, length: int = 300) -> torch.Tensor:
    return torch.randint(3, 32003, (rows, length), generator=torch.Generator().manual_seed(1)).cuda()


def step(model: torch.nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.train()
    model.zero_grad()
    loss = model(input_ids=ids(), labels=ids()).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_a_patched_model_are_at_most_a_third_larger(kind):
    """Errors of loss and gradients are measured against float32."""
    truth_loss, truth = step(built(kind, torch.float32))
    model = built(kind)
    plain_loss, plain = step(model)
    report = opmux.patch_model(model)
    assert "reference" not in str(report), report  # every part runs a kernel
    loss, grads = step(model)
    assert abs(loss - truth_loss) <= 1.34 * abs(plain_loss - truth_loss) + 2e-3
    assert grads.keys() == truth.keys()
    for name, grad in truth.items():
        assert error(grads[name], grad) <= 1.34 * error(plain[name], grad) + 5e-3, name


def test_a_patched_model_generates_the_same_tokens():
    model = built("llama", torch.float32).eval()
    prompt = ids(1, 20)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    expected = model.generate(prompt, **options)
    opmux.patch_model(model)
    assert torch.equal(model.generate(prompt, **options), expected)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral"])
def test_patched_attention_decodes_with_flash_attention(kind, monkeypatch):
    """Flash attention runs for each token. The errors of the logits are at most a third larger than with the kernel
    that torch selects.
    """
    prompt, steps = ids(2, 50), ids(2, 6)

    def decoded(model):
        with torch.no_grad():
            past = model.eval()(prompt, use_cache=True).past_key_values
            rows = [model(steps[:, i : i + 1], past_key_values=past, use_cache=True).logits for i in range(6)]
        return torch.cat(rows, 1)

    truth = decoded(built(kind, torch.float32))
    model = built(kind)
    plain = decoded(model)
    opmux.patch_model(model, include=["attention"])
    calls, flash = [], attention.flash
    monkeypatch.setattr(attention, "flash", lambda *args, **kwargs: calls.append(1) or flash(*args, **kwargs))
    assert error(decoded(model), truth) <= 1.34 * error(plain, truth) + 1e-3
    assert len(calls) == 6 * model.config.num_hidden_layers
    opmux.unpatch_model(model)
    assert torch.equal(decoded(model), plain)


def test_attention_of_one_query_can_be_captured_in_a_graph():
    module = built("llama").model.layers[0].self_attn
    functions = attention.functions_of(type(module).forward)
    assert functions is not None
    query, keys = (torch.randn(1, heads, n, 64, device="cuda", dtype=torch.bfloat16) for heads, n in ((8, 1), (2, 99)))
    with torch.no_grad():
        eager, _ = functions.ours(module, query, keys, keys, None, scaling=0.125)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = functions.ours(module, query, keys, keys, None, scaling=0.125)
        graph.replay()
    assert torch.equal(captured, eager)


def test_a_training_step_of_a_patched_model_can_be_captured():
    model = built("llama")
    opmux.patch_model(model)
    model.config.use_cache = False
    data = ids()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(input_ids=data, labels=data).loss.backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(input_ids=data, labels=data).loss
        loss.backward()
    graph.replay()
    captured, grad = loss.clone(), model.lm_head.weight.grad.clone()
    expected, grads = step(model)
    torch.testing.assert_close(captured, expected)
    assert error(grad, grads["lm_head.weight"]) < 1e-2


def test_a_patched_model_can_be_compiled():
    model = built("llama")
    plain, _ = step(model)
    opmux.patch_model(model)
    compiled = torch.compile(model)
    loss = compiled(input_ids=ids(), labels=ids()).loss
    loss.backward()
    assert abs(loss - plain) < 2e-2

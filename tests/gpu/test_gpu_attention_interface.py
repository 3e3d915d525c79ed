"""attn_implementation="opmux" on a GPU: values, gradients and decoding, against transformers' own attention."""

import pytest
import torch

import opmux
from opmux.faces.models import interface

pytestmark = pytest.mark.gpu
transformers = pytest.importorskip("transformers")
WINDOW = 100
KINDS = {
    "llama": {},
    "qwen3": {},
    "mistral": dict(sliding_window=WINDOW),
    "gemma2": dict(sliding_window=WINDOW, attn_logit_softcapping=2.0),
    "gpt_oss": dict(sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    opmux.register_attention()


def built(kind, dtype):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](
        hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        head_dim=64, vocab_size=3203, max_position_embeddings=1024, **KINDS[kind],
    )  # fmt: skip
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)


def inputs(padded, length=300):
    ids = torch.randint(3, 3203, (2, length), generator=torch.Generator().manual_seed(1)).cuda()
    seen = torch.ones_like(ids)
    if padded:
        seen[0, :70] = 0
    return {"input_ids": ids, "attention_mask": seen}


def step(model, given):
    """The logits of tokens that are not padding, and the gradients of a step."""
    model.train()
    model.zero_grad()
    logits = model(**given).logits[given["attention_mask"].bool()]
    logits.float().square().mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "gpt_oss"])  # whose routers choose by the last bit
def test_as_exact_as_eager(kind, padded):
    """In bfloat16, against float32: errors are no larger than those of "eager" by more than a third."""
    given = inputs(padded)
    truth, exact = step(built(kind, torch.float32), given)
    model = built(kind, torch.bfloat16)
    plain, theirs = step(model, given)
    model.set_attn_implementation("opmux")
    made, ours = step(model, given)
    assert error(made, truth) <= 1.34 * error(plain, truth) + 2e-3
    for name, gradient in exact.items():
        assert error(ours[name], gradient) <= 1.34 * error(theirs[name], gradient) + 5e-3, name


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_float32(kind, padded):
    model, given = built(kind, torch.float32), inputs(padded)
    plain, theirs = step(model, given)
    model.set_attn_implementation("opmux")
    made, ours = step(model, given)
    assert error(made, plain) < 1e-3
    for name, gradient in theirs.items():
        assert error(ours[name], gradient) < 1e-2, name


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_generation(kind, padded, cache):
    model, given = built(kind, torch.float32).eval(), inputs(padded, 130)
    more = dict(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0, disable_compile=True)
    want = model.generate(**given, **more, cache_implementation=cache)
    model.set_attn_implementation("opmux")
    assert torch.equal(model.generate(**given, **more, cache_implementation=cache), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_new_token(dtype):
    """The keys as a cache has them: [batch, heads, keys, dim] in one piece."""
    q = torch.randn(3, 16, 1, 128, device="cuda", dtype=dtype)
    k, v = (torch.randn(3, 4, 777, 128, device="cuda", dtype=dtype) for _ in range(2))
    sinks = torch.randn(16, device="cuda", dtype=dtype)
    with torch.no_grad():
        made, _ = interface.attend(None, q, k, v, None, scaling=0.1, softcap=20.0, s_aux=sinks)
    s = q.double() @ k.repeat_interleave(4, 1).double().mT * 0.1
    s = torch.cat([20.0 * torch.tanh(s / 20.0), sinks.double().view(1, 16, 1, 1).expand(3, -1, -1, -1)], -1)
    want = s.softmax(-1)[..., :-1] @ v.repeat_interleave(4, 1).double()
    assert error(made, want.transpose(1, 2)) < (1e-2 if dtype is torch.bfloat16 else 2e-3)

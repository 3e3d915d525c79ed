"""attn_implementation="opmux": models of `transformers` give the same results as with their own attention."""

import sys
import types

import fresh
import pytest
import torch

import opmux
from opmux.core.errors import BadArgument
from opmux.faces.models import interface

transformers = pytest.importorskip("transformers")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

SMALL = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    vocab_size=97, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
WINDOW = 4  # shorter than the sequences
# model type -> additional configuration values
TYPES = {
    "llama": {},
    "qwen3": {},
    "mistral": dict(sliding_window=WINDOW),
    "gemma2": dict(sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=8),
    "gpt_oss": dict(sliding_window=WINDOW, **EXPERTS),
    # phimoe's layers do not pass the window to attention, so only the mask contains the window.
    "phimoe": dict(sliding_window=WINDOW, **EXPERTS),
    "llama4_text": dict(attention_chunk_size=WINDOW, intermediate_size_mlp=48, **EXPERTS),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
}
LENGTH = 11


@pytest.fixture(autouse=True, scope="module")
def registered():
    opmux.register_attention()


def tiny(kind: str):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**SMALL, **TYPES[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, p in model.named_parameters():  # sinks are initialised to zeros
        if name.endswith("sinks"):
            torch.nn.init.normal_(p)
    return model


def inputs(padded: str):
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    visible = torch.ones_like(ids)
    if padded:
        visible[0, slice(0, 3) if padded == "left" else slice(LENGTH - 3, LENGTH)] = 0
    return {"input_ids": ids, "attention_mask": visible} if padded else {"input_ids": ids}


def step(model, inputs):
    """The logits and gradients of a training step, without the logits of padding, which are undefined."""
    model.train()
    model.zero_grad()
    torch.manual_seed(2)  # makes the noise of routers repeatable
    visible = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    logits = model(**inputs).logits[visible]
    logits.square().mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


class Calls:
    """Records the shape of the bias in each attention call of the interface, and counts the decoding calls."""

    def __init__(self, monkeypatch):
        self.biases, self.causal, self.lefts, self.decoded = [], [], [], 0
        whole, one = interface.attention, interface.attention_decode

        def attention(*args, **kwargs):
            bias = kwargs["bias"]
            self.biases.append(None if bias is None else tuple(bias.shape))
            self.causal.append(kwargs["causal"])
            self.lefts.append(kwargs["window"][0])
            return whole(*args, **kwargs)

        def decode(*args, **kwargs):
            self.decoded += 1
            return one(*args, **kwargs)

        monkeypatch.setattr(interface, "attention", attention)
        monkeypatch.setattr(interface, "attention_decode", decode)


@pytest.mark.parametrize("padded", ["", "left", "right"])
@pytest.mark.parametrize("kind", TYPES)
def test_training_steps_match_eager_attention(kind, padded, monkeypatch):
    model, batch = tiny(kind), inputs(padded)
    logits, gradients = step(model, batch)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    our_logits, our_gradients = step(model, batch)
    torch.testing.assert_close(our_logits, logits, atol=2e-5, rtol=2e-5)
    assert our_gradients.keys() == gradients.keys()
    for name, want in gradients.items():
        torch.testing.assert_close(our_gradients[name], want, atol=2e-5, rtol=2e-4, msg=name)
    assert len(calls.biases) == 2
    if kind != "llama4_text":  # chunked attention passes the whole mask as a bias
        assert all(calls.causal) and set(calls.biases) == {(2, 1, 1, LENGTH) if padded else None}
    if kind in ("mistral", "phimoe"):
        assert calls.lefts == [WINDOW - 1] * 2
    if kind in ("gemma2", "gpt_oss"):
        assert sorted(calls.lefts) == [-1, WINDOW - 1]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", ["", "left"])
@pytest.mark.parametrize("kind", TYPES)
def test_greedy_generation_gives_the_same_tokens(kind, padded, cache, monkeypatch):
    model, batch = tiny(kind).eval(), inputs(padded)
    more = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, cache_implementation=cache, disable_compile=True)
    want = model.generate(**batch, **more)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert torch.equal(model.generate(**batch, **more), want)
    if cache == "dynamic" and kind != "llama4_text":
        full = {"mistral": 0, "phimoe": 0, "gemma2": 1, "gpt_oss": 1}.get(kind, 2)  # number of layers without a window
        # Each layer makes a decoding call for each token after the first. If a batch is padded, only layers with a
        # window do, because their windows no longer contain padding.
        assert calls.decoded == 5 * (2 - full if padded else 2)


def test_encoder_masks_padding_with_one_row_per_sequence(monkeypatch):
    """A bidirectional model masks the same keys for each query, so a mask with one row is enough."""
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=97
    )
    torch.manual_seed(0)
    model, batch = transformers.BertModel(config).eval(), inputs("right")
    visible = batch["attention_mask"].bool()
    for inputs_ in (batch, {"input_ids": batch["input_ids"]}):
        model.set_attn_implementation("eager")
        want = model(**inputs_).last_hidden_state
        model.set_attn_implementation("opmux")
        calls = Calls(monkeypatch)
        hidden = model(**inputs_).last_hidden_state
        torch.testing.assert_close(hidden[visible], want[visible], atol=2e-5, rtol=2e-5)
        assert set(calls.biases) == {(2, 1, 1, LENGTH) if "attention_mask" in inputs_ else None} and not any(
            calls.causal
        )


def test_t5_position_bias_matches_eager_attention():
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=97,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config)
    batch = {**inputs("right"), "labels": inputs("")["input_ids"][:, :7].clone()}

    def run():
        model.zero_grad()
        out = model(**batch)
        out.loss.backward()
        return out.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}

    model.set_attn_implementation("eager")
    logits, gradients = run()
    model.set_attn_implementation("opmux")
    our_logits, our_gradients = run()
    torch.testing.assert_close(our_logits, logits, atol=2e-5, rtol=2e-5)
    for name, want in gradients.items():
        torch.testing.assert_close(our_gradients[name], want, atol=2e-5, rtol=2e-4, msg=name)


def test_a_mask_passed_by_the_user_is_applied_in_full():
    """If the user changes a mask that our function made, the mask loses its short description."""
    model, ids = tiny("llama").eval(), inputs("")["input_ids"]
    visible = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) > 0.4
    visible |= torch.eye(LENGTH, dtype=torch.bool)
    bias = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    want = model(input_ids=ids, attention_mask=bias).logits
    model.set_attn_implementation("opmux")
    for own in (visible, bias):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=own).logits, want, atol=2e-5, rtol=2e-5)
    full_mask = interface.mask(
        batch_size=2,
        q_length=4,
        kv_length=4,
        config=model.config,
        attention_mask=torch.tensor([[False] + [True] * 3] * 2),
    )
    assert getattr(full_mask, interface.BRIEF).causal
    assert not hasattr(full_mask & full_mask, interface.BRIEF) and not full_mask[:, :, :, 0].any()


def test_attention_interface_supports_dropout_and_a_gradient_of_q_only():
    layer = types.SimpleNamespace(is_causal=True)
    q, k = torch.randn(1, 4, 6, 8, requires_grad=True), torch.randn(1, 2, 6, 8)
    o, _ = interface.attend(layer, q, k, k, None, dropout=0.5)
    assert o.shape == (1, 6, 4, 8) and o.is_contiguous()
    assert not torch.equal(o, interface.attend(layer, q, k, k, None, dropout=0.5)[0])
    one = q[:, :, :1].detach().requires_grad_()
    interface.attend(layer, one, k, k, None)[0].sum().backward()
    assert one.grad is not None and one.grad.any()


def test_queries_with_batch_1_are_broadcast_to_all_sequences():
    layer = types.SimpleNamespace(is_causal=False)
    q, k = torch.randn(1, 4, 3, 8), torch.randn(2, 4, 6, 8)
    output, _ = interface.attend(layer, q, k, k, None)
    want = torch.nn.functional.scaled_dot_product_attention(q.expand(2, -1, -1, -1), k, k).transpose(1, 2)
    torch.testing.assert_close(output, want)


@pytest.mark.parametrize("name", interface.NOT_TAKEN)
def test_unsupported_options_raise(name):
    layer, t = types.SimpleNamespace(is_causal=True), torch.randn(1, 2, 3, 8)
    interface.attend(layer, t, t, t, None, **{name: None})
    with pytest.raises(BadArgument, match=f"{name} must be None"):
        interface.attend(layer, t, t, t, None, **{name: t})


@pytest.mark.slow
def test_compiled_models_have_the_same_logits():
    model, batch = tiny("mistral").eval(), inputs("left")
    visible = batch["attention_mask"].bool()
    model.set_attn_implementation("opmux")
    with torch.no_grad():
        want = model(**batch).logits
        torch._dynamo.reset()
        logits = torch.compile(model, backend="aot_eager", fullgraph=True)(**batch).logits
    torch.testing.assert_close(logits[visible], want[visible], atol=2e-5, rtol=2e-5)


def test_patched_models_can_use_the_attention_interface():
    model, batch = tiny("llama"), inputs("")
    model.set_attn_implementation("opmux")
    logits, gradients = step(model, batch)
    opmux.patch_model(model)
    our_logits, our_gradients = step(model, batch)
    torch.testing.assert_close(our_logits, logits, atol=2e-5, rtol=2e-5)
    for name, want in gradients.items():
        torch.testing.assert_close(our_gradients[name], want, atol=2e-5, rtol=2e-4, msg=name)


def test_only_register_attention_imports_transformers():
    code = "import sys, opmux; opmux.register_attention; assert 'transformers' not in sys.modules"
    result = fresh.run([sys.executable, "-c", code])
    assert result.returncode == 0, result.stderr

"""patch_model: patched models of `transformers` compute the same results as the originals, and are restored exactly."""

import copy
import functools
import inspect

import pytest
import torch
from torch import nn

import opmux
from opmux.core.errors import UnknownName
from opmux.faces.models import attention, loss
from opmux.faces.models.forms import form
from opmux.faces.models.logits import are_late
from opmux.faces.models.modules import KEY
from opmux.faces.models.patch import CannotPatch

transformers = pytest.importorskip("transformers")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

# Sizes of tiny models, under all names that configurations use for them.
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 16, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "moe_topk": 2,
    "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "mamba_d_ssm": 64, "mamba_n_heads": 8,
    "mamba_d_head": 8, "mamba_d_state": 8,
}  # fmt: skip
LLAMA = {"rms_norm", "add_rms_norm", "glu", "rope", "attention", "loss", "cross_entropy"}

# Model type -> the parts that must be replaced.
TYPES: dict[str, set[str]] = {
    "llama": LLAMA | {"mask"},
    "mistral": LLAMA,
    "ministral": LLAMA,
    "mixtral": LLAMA - {"glu"} | {"moe"},
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "qwen3_moe": LLAMA - {"glu"} | {"moe"},
    "qwen2_moe": LLAMA | {"moe"},
    "gemma": LLAMA,
    "gemma2": LLAMA,
    "gemma3_text": LLAMA,
    "gemma4_text": {"rms_norm", "glu", "rope", "loss"},
    "phi3": LLAMA - {"add_rms_norm"},
    "olmo2": {"rms_norm", "glu", "rope", "loss"},
    "olmo3": {"rms_norm", "glu", "rope", "loss"},
    "glm4": {"rms_norm", "glu", "rope", "loss"},
    "glm4_moe": LLAMA | {"moe"},
    "granite": {"rms_norm", "glu", "rope", "loss"},
    "deepseek_v2": {"rms_norm", "add_rms_norm", "glu", "rope", "loss", "moe"},
    "deepseek_v3": {"rms_norm", "add_rms_norm", "glu", "rope", "loss", "moe"},
    "gpt_oss": {"rms_norm", "rope", "loss"},
    "smollm3": LLAMA,
    "llama4_text": {"rms_norm", "glu", "rope", "loss"},
    "exaone4": {"rms_norm", "glu", "rope", "loss"},
    "hunyuan_v1_dense": LLAMA,
    "hunyuan_v1_moe": LLAMA | {"moe"},
    "qwen3_next": {"rms_norm", "glu", "rope", "loss", "moe"},
    "cohere2": {"glu", "rope", "loss"},
    "nemotron": {"rope", "loss"},
    "helium": LLAMA,
    "seed_oss": LLAMA,
}
MORE = {"deepseek_v2": {"num_key_value_heads": 4}, "deepseek_v3": {"num_key_value_heads": 4}}
MORE["qwen3_next"] = {"num_hidden_layers": 4}


# Vision-language model -> the parts that `patch_model` must replace; tested with text only.
VISION_LANGUAGE: dict[str, set[str]] = {
    "llava": LLAMA,
    "qwen2_vl": {"rms_norm", "add_rms_norm", "glu", "rope", "loss"},
    "qwen2_5_vl": {"rms_norm", "add_rms_norm", "glu", "rope", "loss"},
    "qwen3_vl": {"rms_norm", "glu", "rope", "loss"},
    "qwen3_vl_moe": LLAMA - {"glu"} | {"moe"},
    "gemma3": LLAMA,
    "gemma4": {"rms_norm", "glu", "rope", "loss"},
    "paligemma": LLAMA,
    "mllama": {"rms_norm", "glu", "rope", "loss"},
    "internvl": LLAMA,
    "smolvlm": LLAMA,
    "llama4": {"rms_norm", "glu", "rope"},
}
SIGHT = {
    "hidden_size": 32, "embed_dim": 32, "intermediate_size": 48, "num_hidden_layers": 1, "depth": 1, "num_heads": 4,
    "num_attention_heads": 4, "image_size": 28, "patch_size": 14, "out_hidden_size": 32, "num_global_layers": 1,
    "hidden_dim": 32, "projection_dim": 32, "mlp_dim": 48, "vision_output_dim": 64, "intermediate_layers_indices": [0],
    "attention_heads": 4, "num_layers": 1,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
MORE |= {"qwen2_vl_text": {"rope_parameters": ROPE}, "qwen2_5_vl_text": {"rope_parameters": ROPE}}


def sized(cls: type, sizes: dict) -> dict:
    """The sizes that this configuration class accepts."""
    names = set(inspect.signature(cls.__init__).parameters) | set(getattr(cls, "__dataclass_fields__", {}))
    return {name: value for name, value in {**sizes, **MORE.get(cls.model_type, {})}.items() if name in names}


def tiny(kind: str, **more) -> nn.Module:
    cls = CONFIG_MAPPING[kind]
    torch.manual_seed(0)
    if kind not in VISION_LANGUAGE:
        return transformers.AutoModelForCausalLM.from_config(cls(**{**sized(cls, SIZES), **more}))
    parts = {}
    for part, sizes in (("text_config", SIZES), ("vision_config", SIGHT)):
        default = getattr(cls(), part)
        if default is not None:
            parts[part] = {**sized(type(default), sizes), "model_type": default.model_type}
    return transformers.AutoModelForImageTextToText.from_config(cls(**parts))


def batch(rows=2, length=9):
    ids = torch.randint(3, 97, (rows, length), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def trained(model, **more):
    """The loss and the gradients of one training step."""
    model.train()
    model.zero_grad()
    torch.manual_seed(2)
    out = model(**batch(), **more)
    out.loss.backward()
    return out, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def answers(model):
    model.eval()
    with torch.no_grad():
        return model(**batch())


def close(ours, theirs, tol=2e-5):
    torch.testing.assert_close(ours, theirs, rtol=tol, atol=tol)


@pytest.mark.parametrize("kind", [kind for kind in {**TYPES, **VISION_LANGUAGE} if kind in CONFIG_MAPPING])
def test_a_patched_model_matches_the_original(kind):
    model = tiny(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain, (loss, grads) = answers(model), trained(model)
    report = opmux.patch_model(model)
    expected = {**TYPES, **VISION_LANGUAGE}[kind]
    assert {row.name for row in report.replaced} >= expected, report
    patched, (ours, our_grads) = answers(model), trained(model)
    assert are_late(ours) == ("loss" in expected) and not are_late(patched)
    close(patched.logits, plain.logits)
    close(patched.loss, plain.loss)
    close(ours.loss, loss.loss)
    assert our_grads.keys() == grads.keys()
    for name, grad in grads.items():
        close(our_grads[name], grad)
    assert model.state_dict().keys() == before.keys()
    opmux.unpatch_model(model)
    assert not any(KEY in module.__dict__ for module in model.modules())
    again, restored = trained(model)
    assert not are_late(again) and torch.equal(again.loss, loss.loss)
    assert all(torch.equal(restored[name], grad) for name, grad in grads.items())


def test_norms_in_bfloat16_round_as_the_models_own():
    for kind in ("llama", "gemma2", "olmo2"):
        model = tiny(kind).to(torch.bfloat16)
        plain = answers(model).logits
        opmux.patch_model(model, include=["rms_norm"])
        assert torch.equal(answers(model).logits, plain), kind


def test_a_model_type_is_patched_and_restored():
    from transformers.models.llama import modeling_llama as home

    originals = {
        name: vars(cls)["forward"] for name, cls in vars(home).items() if "forward" in getattr(cls, "__dict__", {})
    }
    expected, _ = trained(tiny("llama"))
    report = opmux.patch_model("llama")
    try:
        assert {row.name for row in report.replaced} == LLAMA | {"mask"}
        out, _ = trained(tiny("llama"))
        assert are_late(out)
        close(out.loss, expected.loss)
    finally:
        opmux.unpatch_model(home.LlamaForCausalLM)  # accepts a class instead of the type's name
    assert {name: vars(vars(home)[name])["forward"] for name in originals} == originals
    out, _ = trained(tiny("llama"))
    assert torch.equal(out.loss, expected.loss) and not are_late(out)


def test_other_models_of_the_type_are_unchanged():
    model, other = tiny("llama"), tiny("llama")
    opmux.patch_model(model)
    assert not are_late(answers(other)) and not are_late(trained(other)[0])
    assert not any(KEY in module.__dict__ for module in other.modules())


def test_include_and_exclude_select_parts():
    model = tiny("llama")
    assert {row.name for row in opmux.patch_model(model, include=["rope", "glu"]).replaced} == {"rope", "glu"}
    report = opmux.patch_model(model, exclude="loss")
    assert {row.name for row in report.replaced} == LLAMA - {"loss"} | {"mask"}
    assert not are_late(trained(model)[0])
    assert any(row.reason == "loss is excluded" for row in report.left)
    opmux.patch_model(model, exclude=["loss", "cross_entropy"])
    assert not are_late(trained(model)[0])
    with pytest.raises(UnknownName, match="rms_nrm.*rms_norm"):
        opmux.patch_model(model, include=["rms_nrm"])
    with pytest.raises(UnknownName, match="lama.*llama"):
        opmux.patch_model("lama")


def test_the_report_names_the_implementations_that_run():
    text = str(opmux.patch_model(tiny("llama")))
    assert "LlamaRMSNorm" in text and "rms_norm: " in text and "cpu" in text, text


def test_the_report_says_why_parts_are_not_replaced():
    left = {row.module: row.reason for row in opmux.patch_model(tiny("gpt_oss")).left}
    assert "grouped products" in left["GptOssExperts"], left
    left = {row.module: row.reason for row in opmux.patch_model(tiny("llama4")).left}
    assert left["Llama4VisionMLP"] == "it has no gate that could be fused", left


def test_the_report_says_that_a_mask_is_left():
    left = {row.module: row.reason for row in opmux.patch_model(tiny("qwen2")).left}
    assert left == {"Qwen2Model": "mask is left: it also calls create_sliding_window_causal_mask"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="parts that do nothing on a CPU")
def test_the_report_marks_parts_that_do_nothing_on_the_device():
    lines = str(opmux.patch_model(tiny("llama"))).splitlines()
    (row,) = [line.split(maxsplit=3) for line in lines if line.split()[2:3] == ["attention"]]
    assert row[3] == "nothing on cpu: it selects a kernel for NVIDIA GPUs"
    assert "reference.torch is plain PyTorch: on cpu, no kernel of opmux is chosen for these ops" in lines


def test_unpatching_says_what_it_restored():
    model = tiny("llama")
    opmux.patch_model(model, include=["rms_norm", "glu"])
    restored = opmux.unpatch_model(model)
    layers = model.config.num_hidden_layers
    assert dict(restored.modules) == {"LlamaMLP": layers, "LlamaRMSNorm": 2 * layers + 1}
    assert str(restored) == f"LlamaForCausalLM: restored {layers} LlamaMLP, {2 * layers + 1} LlamaRMSNorm"
    assert str(opmux.unpatch_model(model)) == "LlamaForCausalLM: nothing was patched"
    opmux.patch_model("llama", include=["glu"])
    assert str(opmux.unpatch_model("llama")) == "llama: restored LlamaMLP"


def test_an_unknown_model_raises_and_is_unchanged():
    model = nn.Sequential(nn.Linear(3, 3), nn.GELU())
    with pytest.raises(CannotPatch, match="nothing of Sequential can be replaced"):
        opmux.patch_model(model)
    assert not any(KEY in module.__dict__ for module in model.modules())


def test_changed_parts_of_a_model_are_not_replaced():
    from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

    class HalvedRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            return self.weight * hidden_states / 2

    class Again(LlamaMLP):
        def forward(self, x):
            down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
            return down_proj

    model = tiny("llama")
    model.model.norm.__class__ = HalvedRMSNorm
    model.model.layers[0].mlp.__class__ = Again  # the same computation by another name
    report = opmux.patch_model(model)
    assert [row.reason for row in report.left if row.module == "HalvedRMSNorm"] == [
        "its forward is not one that is known"
    ]
    assert KEY not in model.model.norm.__dict__ and KEY in model.model.layers[0].mlp.__dict__


def test_source_comparison_ignores_names_and_includes_helpers():
    def half(x):
        return x / 2

    def one(self, a: int = 1):
        """Doc."""
        b: int = half(a)
        return b + self.n

    def two(me, value=1):
        other = half(value)
        return other + me.n

    def three(self, a=1):
        b = half(a)
        return b - self.n

    assert form(one) == form(two) != form(three)


@pytest.mark.parametrize(
    "lines, scale",
    [
        ("logits = self.lm_head(x)", (1.0, 1.0, None)),
        ("logits = self.lm_head(x).float()", (1.0, 1.0, None)),
        ("logits = self.lm_head(x) * self.scale", (2.0, 1.0, None)),
        ("logits = self.lm_head(x); logits = logits / self.scale", (1.0, 2.0, None)),
        ("logits = self.lm_head(x); logits = torch.tanh(logits / 30.0) * 30.0", (1.0, 1.0, 30.0)),
        ("logits = self.lm_head(x); logits = torch.tanh(logits / 30.0) * 20.0", None),
        ("logits = self.lm_head(x); logits = logits + self.bias", None),
        ("logits = self.lm_head(x); logits = self.bias * logits", None),
        ("logits = self.lm_head(x); logits = logits[..., :7]", None),
        ("logits = self.lm_head(x); logits[..., 2] = -9.0", None),
        ("logits = self.lm_head(x); logits.mul_(2.0); logits = logits / 3.0", None),
        ("logits = self.lm_head(x); logits += self.bias", None),
        ("logits = self.lm_head(x); logits = torch.softmax(logits, -1)", None),
    ],
)
def test_logits_are_late_only_if_they_are_merely_scaled_or_capped(lines, scale, monkeypatch):
    torch.manual_seed(0)
    model, x, labels = nn.Module(), torch.randn(2, 5, 3), torch.randint(7, (2, 5))
    model.lm_head, model.scale, model.bias = nn.Linear(3, 7), 2.0, torch.randn(7)

    def run(self):
        space = {"self": self, "x": x, "torch": torch}
        exec(lines.replace("; ", "\n"), space)
        return self.loss_function(space["logits"], labels, 7)

    model.loss_function = loss.ForCausalLMLoss
    expected, fused = run(model), []
    monkeypatch.setattr(loss, "_fused", lambda *args, fn=loss._fused: fused.append(args[1]) or fn(*args))
    later = functools.partial(loss._loss_of_late, loss.ForCausalLMLoss)
    close(run(loss.ModelStandIn(model, later, model.lm_head)), expected)
    assert fused == ([] if scale is None else [scale])


@pytest.mark.parametrize(
    "source, why",
    [
        ("self.loss_function(self.lm_head(x))", ""),
        ("self.loss_function(self.head(x))", "it does not call self.lm_head"),
        ("self.loss_function(self.lm_head(x), self)", "it passes itself to a function"),
        ("self.loss_function(self.lm_head(super().forward(x)))", "it passes itself to a function"),
    ],
)
def test_a_forward_that_uses_the_model_itself_keeps_its_loss(source, why, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(f"def forward(self, x):\n    return {source}\n")
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    assert loss.why_not(space["forward"], "loss_function", "lm_head") == why


# ---- training features ----------------------------------------------------------------------------------------------


def test_gradient_accumulation_counts_tokens_of_the_whole_batch():
    model = tiny("llama")
    count = torch.tensor(40)
    expected, grads = trained(model, num_items_in_batch=count)
    for parts in ("loss", "cross_entropy"):
        opmux.patch_model(model, include=[parts])
        out, our_grads = trained(model, num_items_in_batch=count)
        assert are_late(out) == (parts == "loss")
        close(out.loss, expected.loss)
        close(our_grads["lm_head.weight"], grads["lm_head.weight"])


def test_ligers_cross_entropy_flag_patches_only_the_loss():
    from opmux.faces.liger import patching

    model = tiny("llama")
    expected, grads = trained(model)
    apply = patching.MODEL_TYPE_TO_APPLY_LIGER_FN["llama"]
    apply(model=model, cross_entropy=True, fused_linear_cross_entropy=False)
    out, our_grads = trained(model)
    assert not are_late(out)
    close(out.loss, expected.loss)
    close(our_grads["lm_head.weight"], grads["lm_head.weight"])


def test_router_losses_are_added():
    model = tiny("mixtral")
    expected, _ = trained(model, output_router_logits=True)
    opmux.patch_model(model)
    out, _ = trained(model, output_router_logits=True)
    assert expected.aux_loss is not None and expected.loss != trained(model)[0].loss
    close(out.loss, expected.loss)


def test_gradient_checkpointing_and_tuple_outputs_work():
    model = tiny("llama")
    expected, grads = trained(model)
    opmux.patch_model(model)
    model.gradient_checkpointing_enable()
    out, our_grads = trained(model)
    close(out.loss, expected.loss)
    close(our_grads["model.embed_tokens.weight"], grads["model.embed_tokens.weight"])
    loss, *_ = model(**batch(), return_dict=False)
    close(loss, expected.loss)


def test_a_patched_model_matches_under_autocast():
    model = tiny("llama")
    with torch.autocast("cpu", torch.bfloat16):
        expected, grads = trained(model)
        opmux.patch_model(model)
        out, our_grads = trained(model)
    close(out.loss, expected.loss, 2e-2)
    close(our_grads["model.embed_tokens.weight"], grads["model.embed_tokens.weight"], 2e-2)


def test_a_patched_model_generates_the_same_tokens():
    model = tiny("llama").eval()
    ids = batch()["input_ids"][:, :4]
    more = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **more)
    opmux.patch_model(model)
    assert torch.equal(model.generate(ids, **more), expected)


def test_decoding_one_query_uses_flash_attention(monkeypatch):
    """Flash attention runs only for decoding without padding; torch chooses the kernel for all other calls."""
    model = tiny("llama").eval()
    ids = batch()["input_ids"][:, :4]
    padded = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    more = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options = [{"attention_mask": torch.ones_like(ids)}, {"attention_mask": padded}, {"cache_implementation": "static"}]
    expected = [model.generate(ids, **more, **option) for option in options]
    calls = []

    def flash(query, key, value, scale):
        calls.append(tuple(key.shape))
        return nn.functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=True), None

    monkeypatch.setattr(attention, "flash", flash)
    monkeypatch.setattr(attention, "fits", lambda query, key, value: not torch.is_grad_enabled())
    opmux.patch_model(model)
    for way, tokens in zip(options, expected, strict=True):
        assert torch.equal(model.generate(ids, **more, **way), tokens)
    layers = 2
    # Only the first option calls flash attention.
    assert calls == [(2, 2, length, 8) for length in range(5, 10) for _ in range(layers)]
    opmux.unpatch_model(model)
    model.generate(ids, **more)
    assert len(calls) == 5 * layers


def test_flash_attention_runs_only_calls_that_it_supports(monkeypatch):
    def heads(count, length, width=64, dtype=torch.bfloat16):
        return torch.empty(2, count, length, width, dtype=dtype)

    assert not attention.has_flash(torch.device("cpu"))
    query, key = heads(8, 1), heads(2, 7)
    with torch.no_grad():
        assert not attention.fits(query, key, key)
        monkeypatch.setattr(attention, "has_flash", lambda device: True)
        assert attention.fits(query, key, key)
        assert not attention.fits(query.float(), key.float(), key.float())
        assert not attention.fits(query, key, key.half())
        assert not attention.fits(query, heads(2, 7, 32), heads(2, 7, 32))
        assert not attention.fits(query, heads(3, 7), heads(3, 7))
        assert not attention.fits(query, key[:1], key[:1])
        assert not attention.fits(heads(8, 1, 12), heads(2, 7, 12), heads(2, 7, 12))
        assert not attention.fits(heads(8, 1, 264), heads(2, 7, 264), heads(2, 7, 264))
        strided = heads(2, 64, 7).transpose(2, 3)
        assert not attention.fits(query, strided, strided)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            assert not attention.fits(query, key, key)
        torch.set_autocast_enabled("cuda", True)  # torch.autocast("cuda") needs a GPU
        try:
            assert not attention.fits(query, key, key)
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert not attention.fits(query, key, key)  # outside no_grad


def test_a_users_attention_is_kept():
    model = tiny("llama").eval()
    calls = []

    def own(module, query, key, value, attention_mask, **kwargs):
        calls.append(1)
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )

    transformers.AttentionInterface.register("own", own)
    model.set_attn_implementation("own")
    opmux.patch_model(model)
    answers(model)
    assert calls == [1, 1]
    model.set_attn_implementation("eager")
    answers(model)


def test_a_peft_model_can_be_patched():
    peft = pytest.importorskip("peft")
    model = tiny("llama")
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(target_modules=["q_proj", "gate_proj"], modules_to_save=["lm_head"], init_lora_weights=False),
    )
    expected, grads = trained(adapted)
    report = opmux.patch_model(adapted)
    assert {row.name for row in report.replaced} == LLAMA | {"mask"}
    out, our_grads = trained(adapted)
    assert are_late(out)
    close(out.loss, expected.loss)
    assert our_grads.keys() == grads.keys()
    for name, grad in grads.items():
        close(our_grads[name], grad)


def test_a_head_that_is_not_a_plain_linear_layer_computes_its_logits():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny("llama"), peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    expected, _ = trained(adapted)
    opmux.patch_model(adapted)
    out, _ = trained(adapted)
    assert not are_late(out)
    close(out.loss, expected.loss)


def test_a_users_loss_is_kept():
    model = tiny("llama")
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.sum()
    opmux.patch_model(model)
    out, _ = trained(model)
    close(out.loss, out.logits.sum())


def test_a_patched_model_compiles_to_one_graph():
    model = tiny("llama")
    expected, grads = trained(model)
    opmux.patch_model(model)
    out, our_grads = trained(torch.compile(model, backend="aot_eager", fullgraph=True))
    close(out.loss, expected.loss)
    for name, grad in grads.items():
        close(our_grads[f"_orig_mod.{name}"], grad)


def test_no_mask_is_created_if_attention_does_not_need_it(monkeypatch):
    """Training on whole sequences needs no mask; training on packed or padded sequences needs one."""
    model = tiny("llama", num_hidden_layers=1)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 2)
    padded = (torch.arange(9) < torch.tensor([[9], [5]])).long()
    options = ({}, {"position_ids": packed}, {"attention_mask": padded})
    expected = [trained(model, **option)[0].loss for option in options]
    opmux.patch_model(model)
    for kwargs, want in zip(options, expected, strict=True):
        close(trained(model, **kwargs)[0].loss, want)
    assert expected[0] != expected[1] != expected[2]
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention",
        lambda *args, attn_mask=None, **kwargs: calls.append(attn_mask) or attend(*args, attn_mask=attn_mask, **kwargs),
    )  # fmt: skip
    trained(torch.compile(model, backend="eager", fullgraph=False))
    assert calls == [None]


def test_hooks_of_norms_are_called():
    model = tiny("llama")
    calls = []
    model.model.layers[0].post_attention_layernorm.register_forward_hook(lambda *args: calls.append(1))
    opmux.patch_model(model)
    answers(model)
    assert calls == [1]


def test_a_copy_of_a_patched_model_is_patched():
    model = tiny("llama")
    opmux.patch_model(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.model.norm.weight.zero_()
    assert not torch.equal(answers(twin).logits, answers(model).logits)
    assert are_late(trained(twin)[0])
    opmux.unpatch_model(twin)
    assert not any(KEY in module.__dict__ for module in twin.modules())


def test_a_pickled_model_is_unpatched_and_can_be_patched(tmp_path):
    model = tiny("llama")
    opmux.patch_model(model)
    expected, _ = trained(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    plain, _ = trained(loaded)
    assert not are_late(plain)
    close(plain.loss, expected.loss)
    assert {row.name for row in opmux.patch_model(loaded).replaced} == LLAMA | {"mask"}
    again, _ = trained(loaded)
    assert are_late(again) and torch.equal(again.loss, expected.loss)
    opmux.unpatch_model(loaded)
    assert not any(KEY in module.__dict__ for module in loaded.modules())


def test_resized_embeddings_keep_the_fused_loss():
    for tied in (False, True):
        model = tiny("llama", tie_word_embeddings=tied)
        opmux.patch_model(model)
        trained(model)
        model.resize_token_embeddings(103)
        out, _ = trained(model)
        assert are_late(out)
        opmux.unpatch_model(model)
        expected, _ = trained(model)
        assert expected.logits.shape[-1] == 103
        close(out.loss, expected.loss)


def test_trainer_trains_a_patched_model(tmp_path):
    pytest.importorskip("accelerate")
    expected = None
    for patched in (False, True):
        model = tiny("llama")
        if patched:
            opmux.patch_model(model)
        args = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
            logging_steps=1, disable_tqdm=True, use_cpu=True, save_strategy="no", seed=3,
        )  # fmt: skip
        rows = [{name: value[0] for name, value in batch(1, 8).items()} for _ in range(12)]
        trainer = transformers.Trainer(model=model, args=args, train_dataset=rows)
        trainer.train()
        losses = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        expected = losses if expected is None else expected
        close(losses, expected, 1e-4)

"""patch_model combined with other changes to modules: offloading, parametrizations, quantised layers, fx."""

import copy
import itertools

import pytest
import torch
from tiny_llama import batch, close, llama, step
from torch import nn

import opmux
from opmux.faces.models.logits import are_late
from opmux.faces.models.modules import KEY

# ---- accelerate -----------------------------------------------------------------------------------------------------


def offloaded(kind, model, folder):
    accelerate = pytest.importorskip("accelerate")
    if kind == "cpu":
        accelerate.cpu_offload(model, torch.device("cpu"))
    else:
        accelerate.disk_offload(model, str(folder), torch.device("cpu"))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["cpu", "disk"])
def test_offloaded_weights_are_loaded_for_fused_modules(kind, when, training, tmp_path):
    model = llama().train(training)
    with torch.no_grad():
        expected = model(**batch())
    if when == "before":
        offloaded(kind, model, tmp_path)
    report = opmux.patch_model(model)
    assert {"rms_norm", "glu", "rope"} <= {row.name for row in report.replaced}
    if when == "before":
        assert any("post_attention_layernorm has a forward of its own" in row.reason for row in report.left)
    else:
        offloaded(kind, model, tmp_path)
    with torch.no_grad():
        out = model(**batch())
    close([out.loss, out.logits], [expected.loss, expected.logits])
    opmux.unpatch_model(model)
    with torch.no_grad():
        close(model(**batch()).logits, expected.logits)


@pytest.mark.parametrize("when", ["before", "after"])
def test_accelerates_hooks_can_be_removed_from_a_patched_model(when):
    accelerate = pytest.importorskip("accelerate")
    model = llama()
    expected = step(model)
    hook = accelerate.hooks.ModelHook()
    if when == "before":
        for module in model.modules():
            accelerate.hooks.add_hook_to_module(module, hook)
    opmux.patch_model(model)
    if when == "after":
        for module in model.modules():
            accelerate.hooks.add_hook_to_module(module, hook)
    close(step(model), expected)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    close(step(model), expected)
    opmux.unpatch_model(model)
    assert not any(KEY in vars(module) for module in model.modules())
    result = step(model)
    assert torch.equal(result[0], expected[0])


@pytest.fixture
def prepare():
    """`Accelerator.prepare` with mixed precision; resets accelerate, which allows one configuration per process."""
    accelerate = pytest.importorskip("accelerate")
    reset = accelerate.state.AcceleratorState._reset_state
    reset(reset_partial_state=True)
    yield accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare
    reset(reset_partial_state=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_unpatching_restores_a_prepared_model(when, prepare):
    """Unpatching must keep the forward that accelerate set on the model."""
    plain = prepare(llama())
    expected = plain(**batch())
    model = llama()
    if when == "before":
        opmux.patch_model(model)
        model = prepare(model)
    else:
        model = prepare(model)
        report = opmux.patch_model(model)
        assert ("LlamaForCausalLM", "its forward was replaced on the module") in {
            (row.module, row.reason) for row in report.left
        }
    out = model(**batch())
    assert are_late(out) == (when == "before")
    assert out.logits.dtype is expected.logits.dtype is torch.float32 and out.loss.dtype is expected.loss.dtype
    close([out.loss, out.logits], [expected.loss, expected.logits], 0.1)
    opmux.unpatch_model(model)
    again = model(**batch())
    assert not are_late(again) and torch.equal(again.logits, expected.logits) and torch.equal(again.loss, expected.loss)


# ---- dtypes ---------------------------------------------------------------------------------------------------------

PARTS = ("norm", "mlp", "self_attn", "lm_head", "embed_tokens")


def test_parts_kept_in_float32_work_as_in_the_original():
    """Tests bfloat16 models with float32 parts; the patched model must raise whenever the original raises."""

    def attempt(model):
        try:
            return step(model)
        except RuntimeError as error:
            return str(error)

    worked = 0
    for wide in itertools.chain.from_iterable(itertools.combinations(PARTS, n) for n in range(len(PARTS) + 1)):
        model = llama(torch.bfloat16, layers=1)
        for name, module in model.named_modules():
            if any(part in name.rpartition(".")[2] for part in wide):
                module.float()
        expected = attempt(model)
        opmux.patch_model(model)
        result = attempt(model)
        assert isinstance(result, str) == isinstance(expected, str), (wide, result, expected)
        if not isinstance(result, str):
            worked += 1
            close(result[0], expected[0], 0.05)
            assert {k: v.dtype for k, v in result[1].items()} == {k: v.dtype for k, v in expected[1].items()}
    assert worked >= 4


def test_float32_norms_work_under_autocast():
    model = llama(torch.bfloat16)
    for name, module in model.named_modules():
        if "norm" in name:
            module.float()
    with torch.autocast("cpu", torch.bfloat16):
        expected = step(model)
        opmux.patch_model(model)
        result = step(model)
    close(result[0], expected[0], 0.05)


def test_a_patched_model_can_be_moved_to_another_dtype():
    model = llama()
    opmux.patch_model(model)
    step(model)
    result = step(model.to(torch.float64))
    opmux.unpatch_model(model)
    expected = step(model)
    close(result[0].double(), expected[0].double())
    close(result[1], expected[1])


# ---- parametrizations, other layers ---------------------------------------------------------------------------------


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def parametrized(model):
    for module in (model.lm_head, model.model.norm, model.model.layers[0].post_attention_layernorm):
        nn.utils.parametrize.register_parametrization(module, "weight", Halved())


def weight_normed(model):
    nn.utils.parametrizations.weight_norm(model.lm_head)
    nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)


def old_weight_normed(model):
    nn.utils.weight_norm(model.lm_head)


def spectral(model):
    torch.manual_seed(5)
    nn.utils.spectral_norm(model.lm_head)
    nn.utils.parametrizations.spectral_norm(model.model.layers[0].mlp.gate_proj)


class Quantised(nn.Module):
    """A linear layer as quantisers create it: its `weight` is not a floating-point tensor."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.scale = layer.weight.detach().abs().max() / 127
        self.register_buffer("weight", (layer.weight.detach() / self.scale).round().to(torch.int8))

    def forward(self, input):
        return nn.functional.linear(input, self.weight.to(input.dtype) * self.scale.to(input.dtype))


class Scaled(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 3


def quantised(model):
    model.lm_head = Quantised(model.lm_head)
    mlp = model.model.layers[0].mlp
    mlp.gate_proj, mlp.down_proj = Quantised(mlp.gate_proj), Quantised(mlp.down_proj)


def derived(model):
    torch.manual_seed(5)
    model.lm_head = Scaled(32, 50)
    model.model.layers[1].mlp.up_proj = Scaled(32, 48)


def identities(model):
    """Turn a model into a pipeline stage, in which identities replace the layers of other stages."""
    model.model.norm = nn.Identity()
    model.model.layers[0].mlp.act_fn = nn.Identity()
    model.model.layers[1].post_attention_layernorm = nn.Identity()


def fewer_layers(model):
    del model.model.layers[0]


@pytest.mark.filterwarnings("ignore")  # torch deprecates the old weight_norm
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "change",
    [parametrized, weight_normed, old_weight_normed, spectral, quantised, derived, identities, fewer_layers],
)
def test_changed_layers_give_the_same_results_as_in_the_original(change, when):
    expected, model = llama(), llama()
    change(expected)
    if when == "before":
        change(model)
    opmux.patch_model(model)
    if when == "after":
        step(model)
        change(model)
    close(step(model), step(expected), 1e-4)  # spectral norm: each step changes its vectors
    opmux.unpatch_model(model)
    close(step(model), step(expected), 1e-4)


def test_a_parametrization_can_be_removed_from_a_patched_model():
    expected, model = llama(), llama()
    parametrized(model)
    opmux.patch_model(model)
    nn.utils.parametrize.remove_parametrizations(model.lm_head, "weight", leave_parametrized=False)
    for module in (model.model.norm, model.model.layers[0].post_attention_layernorm):
        nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    close(step(model), step(expected))


@pytest.mark.parametrize("layers", ["first", "last"])
def test_the_stages_of_a_pipeline_are_patched(layers):
    """The first stage has embeddings and no head, the last a head and no embeddings."""

    def run(model):
        model.model.layers = model.model.layers[:1] if layers == "first" else model.model.layers[1:]
        ids = batch()["input_ids"]
        if layers == "first":
            model.lm_head, model.model.norm = nn.Identity(), nn.Identity()
            inputs = {"input_ids": ids}
        else:
            model.model.embed_tokens = None
            inputs = {"inputs_embeds": torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)), "labels": ids}
        return model, inputs

    expected, inputs = run(llama())
    model, _ = run(llama())
    opmux.patch_model(model)
    actual, want = model(**inputs), expected(**inputs)
    close(actual.logits, want.logits)
    if layers == "last":
        close(actual.loss, want.loss)


def test_a_model_without_a_head_is_patched():
    expected, model = llama().model, llama().model
    report = opmux.patch_model(model)
    assert "rms_norm" in {row.name for row in report.replaced}
    ids = batch()["input_ids"]
    close(model(ids).last_hidden_state, expected(ids).last_hidden_state)


def test_disabled_adapters_use_the_original_head():
    """PEFT trains a copy of the head; `disable_adapter` switches back to the original."""
    peft = pytest.importorskip("peft")

    def adapted():
        torch.manual_seed(0)
        adapted_model = peft.get_peft_model(
            llama(), peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
        )
        with torch.no_grad():
            adapted_model.base_model.model.lm_head.modules_to_save["default"].weight.mul_(1.5)
        return adapted_model

    expected, model = adapted(), adapted()
    opmux.patch_model(model)
    close(model(**batch()).loss, expected(**batch()).loss)
    with model.disable_adapter(), expected.disable_adapter():
        close(model(**batch()).loss, expected(**batch()).loss)


def test_two_optimizers_can_share_a_patched_model():
    def losses(model):
        heads, rest = (
            torch.optim.SGD(model.lm_head.parameters(), 0.1),
            torch.optim.AdamW(model.model.parameters(), 0.01),
        )
        losses = []
        for seed in range(4):
            out = model(**batch(seed=seed))
            out.loss.backward()
            for optimizer in (heads, rest) if seed % 2 else (rest,):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(out.loss.detach())
        return torch.stack(losses)

    expected, model = llama(), llama()
    opmux.patch_model(model)
    close(losses(model), losses(expected), 1e-4)


# ---- tracers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.layers.0.mlp", "model.norm"])
def test_fx_traces_a_patched_module(name):
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    expected = llama().get_submodule(name)(x)
    model = llama()
    opmux.patch_model(model)
    traced = torch.fx.symbolic_trace(model.get_submodule(name))
    close(traced(x), expected)


def test_export_traces_a_patched_model():
    model = llama(layers=1).eval()
    ids = batch()["input_ids"]
    expected = model(ids, use_cache=False).logits
    opmux.patch_model(model)
    exported = torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
    close(exported.module()(ids, use_cache=False).logits, expected)


def test_a_deep_copy_of_an_offloaded_patched_model_runs_its_own_modules():
    accelerate = pytest.importorskip("accelerate")
    model = llama()
    opmux.patch_model(model)
    accelerate.hooks.add_hook_to_module(model.model.norm, accelerate.hooks.ModelHook())
    twin = copy.deepcopy(model)
    expected = copy.deepcopy(llama())
    close(twin(**batch()).loss, expected(**batch()).loss)

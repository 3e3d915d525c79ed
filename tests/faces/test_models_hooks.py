"""patch_model: on each replaced module, hooks of every kind get and change the same values as in the original model."""

import functools
import itertools

import pytest
import torch
from tiny_llama import batch, close, llama, step
from torch import nn
from torch.nn.modules import module as everywhere

import opmux
from opmux.faces.models import patch
from opmux.faces.models.known_classes import PARTS_OF

MODULES = (
    "", "model", "model.norm", "model.layers.0", "model.layers.0.self_attn", "model.layers.0.mlp",
    "model.layers.0.mlp.act_fn", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "lm_head",
)  # fmt: skip


def floats(value):
    """The floating-point tensors in the arguments or results of a module."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [t for name in ("loss", "logits", "last_hidden_state", "hidden_states") for t in floats(value.get(name))]
    return [t for one in value for t in floats(one)] if isinstance(value, (tuple, list)) else []


def scaled(value):
    """A copy of the value in which the first floating-point tensor is multiplied by 1.25."""
    if isinstance(value, torch.Tensor):
        return value * 1.25
    if isinstance(value, dict):
        name = next(name for name in ("loss", "last_hidden_state", "hidden_states") if value.get(name) is not None)
        value[name] = value[name] * 1.25
        return value
    first = next((index for index, one in enumerate(value) if floats(one)), None)
    return None if first is None else (*value[:first], value[first] * 1.25, *value[first + 1 :])


def forward_hook(module, calls):
    def hook(module, args, kwargs, output):
        calls.append(floats([args, kwargs, output]))
        return scaled(output)

    return module.register_forward_hook(hook, with_kwargs=True)


def forward_pre_hook(module, calls):
    def hook(module, args, kwargs):
        calls.append(floats([args, kwargs]))
        changed = scaled(args) or args
        return changed, scaled(kwargs) if "hidden_states" in kwargs else kwargs

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def backward_hook(module, calls):
    def hook(module, grad_input, grad_output):
        calls.append(floats([grad_input, grad_output]))
        return scaled(grad_input)

    return module.register_full_backward_hook(hook)


def backward_pre_hook(module, calls):
    def hook(module, grad_output):
        calls.append(floats(grad_output))
        return scaled(grad_output)

    return module.register_full_backward_pre_hook(hook)


def old_backward_hook(module, calls):
    """A deprecated backward hook, which gets the gradients of a single autograd node."""
    return module.register_backward_hook(lambda module, *grads: calls.append(floats(grads)))


# Excludes LlamaModel: its last autograd node belongs to its last norm, and our norm has other nodes.
OLD = [(name, old_backward_hook) for name in MODULES if name != "model"]
KINDS = (forward_hook, forward_pre_hook, backward_hook, backward_pre_hook)


@functools.cache
def expected_of(name, kind):
    model, calls = llama(), []
    kind(model.get_submodule(name), calls)
    return step(model), calls


# torch warns about modules whose inputs need no gradient, and about deprecated hooks
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name, kind", [*itertools.product(MODULES, KINDS), *OLD])
def test_a_hook_gets_and_changes_the_same_values_as_in_the_model(name, kind, when):
    (loss, grads), expected = expected_of(name, kind)
    model, calls = llama(), []
    if when == "before":
        kind(model.get_submodule(name), calls)
    opmux.patch_model(model)
    if when == "after":
        kind(model.get_submodule(name), calls)
    result, ours = step(model)
    close(result, loss)
    assert ours.keys() == grads.keys() and len(calls) == len(expected)
    close(ours, grads, 1e-4)
    close(calls, expected, 1e-4)


GLOBAL = {
    "forward": lambda calls: everywhere.register_module_forward_hook(lambda m, i, o: calls.append(type(m)) and None),
    "forward_pre": lambda calls: everywhere.register_module_forward_pre_hook(
        lambda m, i: calls.append(type(m)) and None
    ),
    "backward": lambda calls: everywhere.register_module_full_backward_hook(
        lambda m, i, o: calls.append(type(m)) and None
    ),
    "backward_pre": lambda calls: everywhere.register_module_full_backward_pre_hook(
        lambda m, o: calls.append(type(m)) and None
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", GLOBAL)
def test_global_module_hooks_are_called_for_every_module(kind):
    calls = []
    for patched in (False, True):
        model, hook_calls = llama(), []
        if patched:
            opmux.patch_model(model)
        handle = GLOBAL[kind](hook_calls)
        try:
            calls.append((step(model), hook_calls))
        finally:
            handle.remove()
    ((loss, grads), expected_calls), ((result, ours), hook_calls) = calls
    close(result, loss)
    close(ours, grads, 1e-4)
    assert len(expected_calls) > 20 and sorted(map(str, hook_calls)) == sorted(map(str, expected_calls))


def test_removing_a_hook_enables_the_fused_code_again(monkeypatch):
    model = llama()
    opmux.patch_model(model)
    norm, hook_calls = model.model.layers[0].post_attention_layernorm, []
    handle = norm.register_forward_hook(lambda *args: hook_calls.append(1))
    model(**batch())
    handle.remove()
    calls = []
    monkeypatch.setattr(
        type(norm), "__call__", lambda self, *args: calls.append(self) or nn.Module.__call__(self, *args)
    )
    model(**batch())
    assert hook_calls == [1] and model.model.norm in calls and norm not in calls


def test_the_report_names_the_modules_that_are_called_because_of_hooks():
    model = llama()
    model.model.layers[0].post_attention_layernorm.register_forward_hook(lambda *args: None)
    model.model.layers[1].mlp.act_fn.register_full_backward_hook(lambda *args: None)
    model.lm_head.register_forward_pre_hook(lambda *args: None)
    left = {(row.module, row.count, row.reason) for row in opmux.patch_model(model).left}
    assert left == {
        ("LlamaDecoderLayer", 1, "its post_attention_layernorm has hooks, and is called"),
        ("LlamaMLP", 1, "its act_fn has hooks, and is called"),
        ("LlamaForCausalLM", 1, "its logits are computed: lm_head is not a plain linear layer, or has hooks"),
    }


# ---- modules and functions replaced by the user ---------------------------------------------------------------------


def test_a_users_activation_is_called_even_with_a_known_name():
    class SiLU(nn.Module):
        def forward(self, input):
            return nn.functional.silu(input) * 1.1

    expected = llama()
    model = llama()
    for target in (expected, model):
        target.model.layers[0].mlp.act_fn = SiLU()
    opmux.patch_model(model)
    close(step(model), step(expected))


def test_an_activation_of_a_subclass_is_called():
    class Doubled(nn.SiLU):
        def forward(self, input):
            return 2 * super().forward(input)

    expected, model = llama(), llama()
    opmux.patch_model(model)
    for target in (expected, model):
        target.model.layers[0].mlp.act_fn = Doubled()
    close(step(model), step(expected))


def test_a_users_loss_is_called_even_with_a_known_name(monkeypatch):
    from transformers.loss import loss_utils

    def ForCausalLMLoss(logits, labels, vocab_size, **kwargs):
        return logits.square().mean()

    model = llama()
    opmux.patch_model(model)
    monkeypatch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", ForCausalLMLoss)
    out = model(**batch())
    close(out.loss, out.logits.square().mean())
    monkeypatch.undo()
    monkeypatch.setattr(loss_utils, "fixed_cross_entropy", lambda logits, *args, **kwargs: logits.square().mean())
    out = model(**batch())
    close(out.loss, out.logits.square().mean())
    report = opmux.patch_model(model)
    assert "its loss is left: ForCausalLMLoss of transformers was replaced" in {row.reason for row in report.left}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["LlamaMLP", "LlamaRMSNorm", "LlamaDecoderLayer", "LlamaAttention"])
def test_a_class_forward_replaced_after_patching_runs(name, again, monkeypatch):
    from transformers.models.llama import modeling_llama as home

    cls = getattr(home, name)
    model, expected = llama(), llama()
    opmux.patch_model(model)
    before = cls.forward

    @functools.wraps(before)
    def forward(self, *args, **kwargs):
        out = before(self, *args, **kwargs)
        return (out[0] * 1.1, *out[1:]) if isinstance(out, tuple) else out * 1.1

    monkeypatch.setattr(cls, "forward", forward)
    if again:
        report = opmux.patch_model(model)
        assert name not in {row.module for row in report.replaced}, report
    close(step(model), step(expected))
    opmux.unpatch_model(model)
    assert cls.forward is forward
    close(step(model), step(expected))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["apply_rotary_pos_emb", "create_causal_mask"])
def test_a_function_replaced_after_patching_runs(name, again, monkeypatch):
    from transformers.models.llama import modeling_llama as home

    model, expected = llama(), llama()
    plain = step(expected)[0]
    opmux.patch_model(model)
    replaced = {
        "apply_rotary_pos_emb": lambda q, k, *args, **kwargs: (q * 1.5, k),
        "create_causal_mask": lambda **kwargs: torch.eye(9, dtype=torch.bool)[None, None],
    }
    monkeypatch.setattr(home, name, replaced[name])
    if again:
        opmux.patch_model(model)
    actual, want = step(model), step(expected)
    assert not torch.allclose(want[0], plain)
    close(actual, want)


def test_the_next_patch_notices_a_replaced_helper(monkeypatch):
    from transformers.models.llama import modeling_llama as home

    model, expected = llama(), llama()
    opmux.patch_model(model)
    monkeypatch.setattr(home, "rotate_half", lambda x: x.flip(-1))
    report = opmux.patch_model(model)
    assert "rope" not in {row.name for row in report.replaced}
    close(step(model), step(expected))


def test_unpatching_the_last_model_restores_the_forward_of_its_classes():
    from transformers.models.llama.modeling_llama import LlamaMLP

    one, two = llama(), llama()
    opmux.patch_model(one)
    own = LlamaMLP.forward.__wrapped__
    opmux.patch_model(two)
    opmux.unpatch_model(one)
    assert LlamaMLP.forward is not own
    opmux.unpatch_model(two)
    assert LlamaMLP.forward is own


# ---- another version of transformers --------------------------------------------------------------------------------


def test_a_known_class_with_new_source_is_reported_with_a_warning(tmp_path, monkeypatch, caplog):
    """An RMS norm with new source keeps its own forward; the report and one warning say so."""
    from transformers.models.llama import modeling_llama as home

    monkeypatch.setattr(patch, "_warn", functools.cache(patch._warn.__wrapped__))
    path = tmp_path / "refactored.py"
    path.write_text("def forward(self, hidden_states):\n    return self.weight * hidden_states.sigmoid()\n")
    space = {}
    exec(compile(path.read_text(), home.__file__, "exec"), space)  # as if from transformers' own file
    monkeypatch.setattr(home.LlamaRMSNorm, "forward", space["forward"])
    with caplog.at_level("WARNING", "opmux"):
        rows = [row for _ in range(2) for row in opmux.patch_model(llama()).left]
    assert {row.module for row in rows} == {"LlamaRMSNorm"}
    assert "rms_norm is left: its source, or what it calls, is not what opmux knows (transformers" in rows[0].reason
    assert len([r for r in caplog.records if "LlamaRMSNorm" in r.getMessage()]) == 1


def test_the_table_of_known_classes_matches_the_installed_transformers():
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if transformers.__version__ < "5.23":
        pytest.skip("the table is that of transformers 5.23")
    checked = set()
    for kind in ("llama", "qwen3_moe", "gemma2", "deepseek_v3", "phi3", "qwen2_5_vl"):
        assert kind in CONFIG_MAPPING_NAMES
        for cls in patch._classes(patch._home(kind)):
            parts = {part.name for part in patch._known(cls).parts} - {"attention", "cross_entropy"}
            assert parts == set(PARTS_OF.get(cls.__name__, ())), cls
            checked.add(cls.__name__)
    assert len(checked & set(PARTS_OF)) > 30

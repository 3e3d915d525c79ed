"""Hugging Face `kernels`: `kernelize` takes our layers, and a model prepared for it can still be patched."""

import pytest
import torch
from tiny_llama import batch, close, llama, step
from torch import nn

import opmux
from opmux.core.errors import BadArgument
from opmux.integrations.kernels import mapping

transformers = pytest.importorskip("transformers")
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

NORM, MLP = modeling_llama.LlamaRMSNorm, modeling_llama.LlamaMLP


def function_module(func):
    """Wrap a function in a module, as `kernels` does (`use_kernel_forward_from_hub`)."""

    class Func(nn.Module):
        kernel_layer_name = "rotary_pos_emb"

        def forward(self, *args, **kwargs):
            return func(*args, **kwargs)

    return Func()


@pytest.fixture
def rotary(monkeypatch):
    """Make the rotary embedding a module, as transformers does if it supports the installed `kernels`."""
    made = function_module(modeling_llama.apply_rotary_pos_emb)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", made)
    return made


def test_a_rotary_embedding_that_kernels_made_a_module_is_replaced(rotary):
    expected, model = step(llama()), llama()
    report = opmux.patch_model(model)
    assert "rope" in {row.name for row in report.replaced}
    close(step(model), expected)
    rotary.forward = lambda q, k, cos, sin: (q * 0, k * 0)  # as `kernelize` does; the model must call it
    assert step(model)[0] != expected[0]
    del rotary.forward
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(compiled(**batch()).loss, expected[0])


# ---- with the package -----------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    """The package, with Llama's classes prepared for it even if transformers does not support its version."""
    package = pytest.importorskip("kernels", reason="needs Hugging Face's kernels")
    if not hasattr(package, "use_kernel_mapping"):
        pytest.skip("this version of kernels has no mapping")
    for cls, name in ((NORM, "RMSNorm"), (MLP, "SwiGLUMLP"), (GptOssRMSNorm, "RMSNorm")):
        monkeypatch.setattr(cls, "kernel_layer_name", name, raising=False)
        monkeypatch.setattr(cls, "kernel_condition", staticmethod(lambda module: True), raising=False)
    function = modeling_llama.apply_rotary_pos_emb
    made = package.use_kernel_forward_from_hub("rotary_pos_emb")(function)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", made)
    prepared = package.use_kernelized_func(made)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "__init__", modeling_llama.LlamaAttention.__init__)
    prepared(modeling_llama.LlamaAttention)
    return package


def kernelized(kernels, model, mode):
    with kernels.use_kernel_mapping(mapping(model)):
        return kernels.kernelize(model, mode=mode, use_fallback=False)


def test_kernelize_takes_our_layers_and_computes_the_same(kernels):
    expected, model = step(llama()), llama()
    kernelized(kernels, model, kernels.Mode.TRAINING)
    ours = {name: devices["cpu"].forward for name, devices in mapping(model).items()}
    assert ours.keys() == {"RMSNorm", "SwiGLUMLP", "rotary_pos_emb"}
    for module in (*model.modules(), modeling_llama.apply_rotary_pos_emb):
        if hasattr(module, "kernel_layer_name"):
            assert module.forward.__func__ is ours[module.kernel_layer_name]
    close(step(model), expected)


def test_a_compiled_model_takes_our_layers_too(kernels):
    expected, model = llama()(**batch()).logits, llama()
    kernelized(kernels, model, kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE)
    torch._dynamo.reset()
    close(torch.compile(model, backend="eager")(**batch()).logits, expected)


def test_the_mapping_rounds_as_the_model_does(kernels):
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    for cls in (NORM, GptOssRMSNorm):
        norm = cls(32).bfloat16()
        norm.weight.data.uniform_(0.5, 1.5)
        expected = norm(x)
        with kernels.use_kernel_mapping(mapping(norm)):
            kernels.kernelize(norm, mode=kernels.Mode.INFERENCE, use_fallback=False)
        assert torch.equal(norm(x), expected)
    assert mapping(nn.Sequential(NORM(32), MLP(llama().config))).keys() == {"RMSNorm", "SwiGLUMLP"}
    mixed = mapping(nn.Sequential(NORM(32), GptOssRMSNorm(32), MLP(llama().config)))
    assert mixed.keys() == {"SwiGLUMLP"}  # one name cannot have two layers


def test_a_model_that_is_not_prepared_is_an_error(kernels):
    with pytest.raises(BadArgument, match=r"mapping: model must have layers that are prepared .* got layers none"):
        mapping(nn.Linear(2, 2))

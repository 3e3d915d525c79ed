"""opmux serves the modules of `liger_kernel` that patch models, train them and describe the machine."""

from __future__ import annotations

import logging
import sys
import types
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from liger_served import liger, normal  # noqa: F401 - `liger` is a fixture

# ---- forwards of models ----------------------------------------------------------------------------------------------


def tiny(name):
    """A small model of a type, and a batch with labels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, pad_token_id=0,
    )  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes)
    ids = torch.randint(1, 53, (2, 6), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :2] = -100
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": ids, "labels": labels}


def gradients(model, out):
    model.zero_grad()
    out.loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "module"), [("Llama", "llama"), ("Gemma2", "gemma2"), ("Mixtral", "mixtral")])
def test_a_models_forward_can_be_replaced(monkeypatch, name, module):
    """Loss and gradients are those of transformers; Gemma 2 caps its logits."""
    model, batch = tiny(name)
    own, at = model.train()(**batch), __import__(f"liger_kernel.transformers.model.{module}", fromlist=["x"])
    want = gradients(model, own)
    from liger_kernel.transformers import monkey_patch
    from liger_kernel.transformers.model.output_classes import LigerCausalLMOutputWithPast

    assert getattr(monkey_patch, f"{module}_lce_forward") is at.lce_forward
    monkeypatch.setattr(type(model), "forward", at.lce_forward)
    out = model(**batch, return_token_accuracy=True, return_predicted_tokens=True)
    torch.testing.assert_close(out.loss, own.loss, rtol=1e-4, atol=1e-5)
    got = gradients(model, out)
    assert got.keys() == want.keys()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    target = F.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
    best = own.logits.argmax(-1)
    assert out.predicted_tokens.view(2, 6).tolist() == torch.where(target == -100, -1, best).tolist()
    torch.testing.assert_close(out.token_accuracy, (best == target)[target != -100].float().mean())
    assert name == "Mixtral" or isinstance(out, LigerCausalLMOutputWithPast)
    torch.testing.assert_close(out.logits, own.logits, rtol=1e-4, atol=1e-4)


def test_a_models_forward_has_ligers_options(monkeypatch):
    from liger_kernel.transformers.model.llama import lce_forward, lce_maybe_trainable_lm_head

    model, batch = tiny("Llama")
    own = model.eval()(**batch)
    forward = types.MethodType(lce_forward, model)
    plain = forward(batch["input_ids"], labels=batch["labels"])  # not in training: with logits
    torch.testing.assert_close((plain.loss, plain.logits), (own.loss, own.logits))
    torch.testing.assert_close(forward(**batch, skip_logits=True).loss, own.loss)
    shifted = F.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
    got = forward(batch["input_ids"], shift_labels=shifted, skip_logits=True, num_items_in_batch=5)
    count = (shifted != -100).sum()
    torch.testing.assert_close(got.loss, own.loss * count / 5)
    assert forward(batch["input_ids"]).loss is None
    assert isinstance(model.train()(**batch, return_dict=False), tuple)
    torch.testing.assert_close(forward(**batch, return_dict=False)[0], own.loss)
    with pytest.raises(ValueError, match="skip_logits must be False or None without labels"):
        forward(batch["input_ids"], skip_logits=True)
    with pytest.raises(TypeError, match="self must be a LlamaForCausalLM; got Linear"):
        lce_forward(torch.nn.Linear(2, 2), batch["input_ids"])
    hidden = model.model(batch["input_ids"])[0]
    loss = lce_maybe_trainable_lm_head(model, hidden, 16, batch["labels"], None)
    torch.testing.assert_close(loss, own.loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_loss_of_a_language_model_matches_its_formula(dtype):
    from liger_kernel.transformers.functional import CrossEntropyOutput
    from liger_kernel.transformers.model import loss_utils

    x, w = normal(2, 5, 8, dtype=dtype).requires_grad_(), normal(11, 8, dtype=dtype).requires_grad_()
    labels = torch.tensor([[1, 2, -100, 4, 5], [6, 7, 8, 9, 10]])
    logits = 5 * torch.tanh(F.linear(x.double(), w.double()) / 5)
    want = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / 3
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    options = {"num_items_in_batch": torch.tensor(3), "final_logit_softcapping": 5.0, "unknown": 1}
    got = loss_utils.LigerForCausalLMLoss(x, w, labels, 8, **options)
    torch.testing.assert_close(got.double(), want, **tolerance)
    for ours, theirs in zip(torch.autograd.grad(got, (x, w)), torch.autograd.grad(want, (x, w)), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    output = loss_utils.LigerForCausalLMLoss(x, w, labels, 8, **options, return_predicted_tokens=True)
    assert isinstance(output, CrossEntropyOutput) and output.token_accuracy is None
    loss, z, accuracy, tokens = loss_utils.unpack_cross_entropy_result(output)
    assert loss is output.loss and z is accuracy is None and tokens is output.predicted_tokens
    assert loss_utils.unpack_cross_entropy_result((1, 2)) == (1, 2, None, None)
    assert loss_utils.unpack_cross_entropy_result(3) == (3, None, None, None)


# ---- trainers, sharding ----------------------------------------------------------------------------------------------


class Wrapped(torch.nn.Module):
    """A stub of FSDP's wrapper: its forward calls the forward of the module."""

    def __init__(self, module):
        super().__init__()
        self._fsdp_wrapped_module, self.calls = module, 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self._fsdp_wrapped_module(*args, **kwargs)


def test_a_function_runs_in_place_of_a_wrapped_forward():
    from liger_kernel.transformers.fsdp import _FSDPForwardRedirection

    wrapped, x = Wrapped(torch.nn.Linear(3, 2)), normal(4, 3)
    run = lambda x, by: wrapped._fsdp_wrapped_module(x) * by
    got = _FSDPForwardRedirection()(wrapped, run, x, by=2)
    torch.testing.assert_close(got, 2 * wrapped._fsdp_wrapped_module(x))
    assert wrapped.calls == 1 and "forward" not in vars(wrapped._fsdp_wrapped_module)
    with pytest.raises(ZeroDivisionError):
        _FSDPForwardRedirection()(wrapped, lambda x: 1 / 0, x)
    torch.testing.assert_close(wrapped(x), wrapped._fsdp_wrapped_module(x))


def orpo(model, pairs, beta):
    ids, mask, labels = (pairs[f"concatenated_{name}"] for name in ("input_ids", "attention_mask", "labels"))
    logp = model(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    each = lambda t: logp.gather(-1, t[:, 1:].clamp(min=0)[..., None])[..., 0] * (t[:, 1:] != -100)
    mean = each(labels).sum(-1) / (labels[:, 1:] != -100).sum(-1)
    odds = mean[:1] - mean[1:] - (torch.log1p(-mean[:1].exp()) - torch.log1p(-mean[1:].exp()))
    likely = torch.where(mask == 1, ids, -100)[:1]
    return -beta * F.logsigmoid(odds).mean() - each(likely).sum() / (likely[:, 1:] != -100).sum()


def test_the_trainer_of_orpo_computes_its_loss(monkeypatch):
    model, batch = tiny("Llama")
    mask = torch.ones_like(batch["input_ids"])
    mask[1, -1] = 0
    batch["labels"][1, -1] = -100
    pairs = {"concatenated_input_ids": batch["input_ids"], "concatenated_attention_mask": mask}
    pairs["concatenated_labels"] = batch["labels"]

    class ORPOTrainer:
        """A stub of TRL's trainer."""

        is_encoder_decoder, aux_loss_enabled, beta, label_pad_token_id, padding_value = False, False, 0.3, -100, 0
        accelerator = SimpleNamespace(device="cpu")

        def concatenated_inputs(self, batch, **options):
            return pairs

    trl = types.ModuleType("trl.trainer")
    trl.ORPOTrainer = ORPOTrainer
    monkeypatch.setitem(sys.modules, "trl", types.ModuleType("trl"))
    monkeypatch.setitem(sys.modules, "trl.trainer", trl)
    from opmux.faces.liger import trainers

    trainers._trainer.cache_clear()
    try:
        from liger_kernel.transformers.trainer.orpo_trainer import LigerORPOTrainer

        loss, metrics = LigerORPOTrainer().get_batch_loss_metrics(model, None, "eval")
        want = orpo(model, pairs, 0.3)
        torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-5)
        parameters = [*model.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad(loss, parameters), torch.autograd.grad(want, parameters), rtol=1e-3, atol=1e-5
        )
        margin = metrics["eval_rewards/chosen"] - metrics["eval_rewards/rejected"]
        assert len(metrics) == 11 and metrics["eval_rewards/margins"] == pytest.approx(margin)
    finally:
        trainers._trainer.cache_clear()
        for module in ("transformers.trainer", "transformers.trainer.orpo_trainer"):
            sys.modules[f"liger_kernel.{module}"].forget()


def test_the_trainer_without_trl_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    import liger_kernel.transformers.trainer as at

    with pytest.raises(ImportError, match="LigerORPOTrainer needs trl"):
        at.LigerORPOTrainer  # noqa: B018


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_experts_whose_weights_are_arguments(dtype):
    from liger_kernel.transformers.moe import LigerExpertParallelFusedMoe

    x, weights = normal(2, 3, 8, dtype=dtype), normal(2, 3, 2, dtype=dtype).softmax(-1)
    gate, up, down = (0.5 * normal(*s, dtype=dtype) for s in ((4, 6, 8), (4, 6, 8), (4, 8, 6)))
    index = torch.tensor([[[0, 3], [1, 2], [3, 1]], [[2, 0], [0, 1], [1, 3]]])
    args = [t.clone().requires_grad_() for t in (x, weights, gate, up, down)]
    got = LigerExpertParallelFusedMoe()(args[0], index, *args[1:], 4)
    doubles = [t.double().clone().requires_grad_() for t in (x, weights, gate, up, down)]
    inner = F.silu(torch.einsum("bth,btkih->btki", doubles[0], doubles[2][index]))
    inner = inner * torch.einsum("bth,btkih->btki", doubles[0], doubles[3][index])
    want = (torch.einsum("btki,btkhi->btkh", inner, doubles[4][index]) * doubles[1][..., None]).sum(2)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got.double(), want, **tolerance)
    dy = normal(2, 3, 8, seed=3, dtype=dtype)
    grads = torch.autograd.grad(got, args, dy), torch.autograd.grad(want, doubles, dy.double())
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours.double(), theirs, **tolerance)
    with pytest.raises(ValueError, match="all_B must have num_experts = 8 experts"):
        LigerExpertParallelFusedMoe()(x, index, weights, gate, up, down, 8)


# ---- others ----------------------------------------------------------------------------------------------------------


def test_implementations_are_stored_and_selected(caplog):
    from liger_kernel.ops.backends import IMPL_REGISTRY, ImplInfo, register_impl, select_impl

    before = dict(IMPL_REGISTRY)
    try:
        with caplog.at_level(logging.WARNING, "opmux"):
            register_impl(ImplInfo("fast", ("cuda", "acm"), ("acm",), "acme.ops"))
        assert "call register_vendor" in caplog.text
        assert select_impl("acm").module_path == "acme.ops" and select_impl("cuda") is None
        assert select_impl("cuda", "fast") is IMPL_REGISTRY["fast"]
        for device, name, error in (("npu", "fast", "it supports cuda, acm"), ("cuda", "slow", "registered: fast")):
            with pytest.raises(RuntimeError, match=error):
                select_impl(device, name)
    finally:
        IMPL_REGISTRY.clear()
        IMPL_REGISTRY.update(before)
    for options, error in (
        ({"devices": ()}, "devices must have at least one"),
        ({"devices": ("cuda",)}, "module_path must be the import name"),
        ({"devices": ("cuda",), "module_path": "m", "default_devices": ("npu",)}, "default_devices must be some of"),
    ):
        with pytest.raises(ValueError, match=error):
            ImplInfo("fast", **options)


def test_the_report_has_the_versions(capsys):
    from liger_kernel.env_report import print_env_report

    print_env_report()
    printed = capsys.readouterr().out
    assert f"torch: {torch.__version__}" in printed and "provided by opmux" in printed


def test_the_cache_manager_is_tritons(monkeypatch):
    cache = pytest.importorskip("triton.runtime.cache")
    from liger_kernel.triton import apply_liger_triton_cache_manager
    from liger_kernel.triton.monkey_patch import LigerTritonFileCacheManager

    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)
    apply_liger_triton_cache_manager()
    assert LigerTritonFileCacheManager is cache.FileCacheManager


def test_ligers_patch_functions_print_the_report_of_patch_model(monkeypatch, capsys):
    transformers = pytest.importorskip("transformers")
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    import opmux
    from opmux.faces import compat

    monkeypatch.setattr(compat, "reporting", True)
    monkeypatch.setattr(compat, "_reported", set())
    monkeypatch.delenv("RANK", raising=False)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=97)
    model = transformers.LlamaForCausalLM(config)
    apply_liger_kernel_to_llama(model=model, rope=False)
    printed = capsys.readouterr().err
    report = str(opmux.patch_model(model, include=["add_rms_norm", "glu", "loss", "rms_norm"]))
    assert printed.startswith(f"opmux: {report}\n") and "rope is excluded" in report
    assert printed.endswith("Liger's flags have no name for attention and mask\n")

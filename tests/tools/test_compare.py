"""`opmux.compare`: it finds wrong results, leaves the model as it was, and rejects what it cannot compare."""

import json
import logging
import logging.handlers
import math
import random

import pytest
import torch
from torch import nn

import opmux
from opmux.core import BackendImplKind, OpImpl
from opmux.core.errors import BadArgument
from opmux.faces.aten import engine, switch
from opmux.faces.models.modules import is_patched
from opmux.specs import activation
from opmux.tools.arguments import BadOption
from opmux.tools.compare import command, timing
from opmux.tools.compare.step import Results, Step, WithoutDropout, distance
from opmux.tools.warm.model import config_of, errors_only

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64,
}  # fmt: skip
QUICK = {"seconds": 0.05}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(timing, "WARM", 2)
    monkeypatch.setattr(timing, "MOST", timing.LEAST)


def llama(**more) -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more))


def ids() -> torch.Tensor:
    return torch.randint(0, 97, (2, 8), generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """A model with buffers that change in each step, and with dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


def state(model: nn.Module) -> list:
    """All that `compare` must leave as it is."""
    modules = [
        (type(m).forward, {k: v for k, v in vars(m).items() if not k.startswith(("_parameters", "_buffers"))})
        for m in model.modules()
    ]
    tensors = {k: (id(v), v.clone()) for k, v in model.state_dict(keep_vars=True).items()}
    return [modules, tensors, [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()]]


def same(before: list, after: list) -> bool:
    grads = all(a == b and (x is None or torch.equal(x, y)) for (a, x), (b, y) in zip(before[2], after[2], strict=True))
    tensors = before[1].keys() == after[1].keys() and all(
        i == after[1][k][0] and torch.equal(v, after[1][k][1]) for k, (i, v) in before[1].items()
    )
    return grads and tensors and before[0] == after[0]


# ---- what it finds --------------------------------------------------------------------------------------------------


def test_all_variants_of_a_llama_are_right():
    found = opmux.compare(llama(), ids(), **QUICK)
    assert [row.name for row in found.rows] == ["native", "enable", "patch_model", "both"]
    assert found.right and found.row("native").speed == 1 and found.row("native").distance == 0
    assert 0 < found.row("patch_model").distance < 1e-4 and found.row("patch_model").loss_distance < 1e-5
    assert "3 rms_norm" in found.row("both").replaced
    assert all(row.to_float64.tensors < 1e-4 and row.ms > 0 and row.rounds >= timing.LEAST for row in found.rows)
    for row in found.rows:  # the names of version 0.2.0
        assert (row.error, row.loss, row.results) == (row.speed_error, row.loss_distance, row.distance)
        assert row.exact is row.to_float64
    text = str(found)
    head = "LlamaForCausalLM: a training step on cpu, float32, batch size 2, sequence length 8\n"
    assert text.startswith(head) and "n/a" not in text


def test_a_wrong_gradient_is_found(register):
    def off(dy, a, b):
        da, db = activation.silu_mul_bwd.reference(dy, a, b)
        return da, db * 1.1

    register(OpImpl("silu_mul_bwd", "vendor.wrong", BackendImplKind.VENDOR, "wrong", off))
    with opmux.policy("vendor:wrong"):
        found = opmux.compare(llama(), ids(), **QUICK)
    assert [row.right for row in found.rows] == [True, True, False, False]
    assert not found.right and found.row("both").distance == pytest.approx(0.1, rel=0.5)
    assert "patch_model and both: WRONG results" in str(found)


def test_eval_compares_outputs_without_gradients():
    model = llama().eval()
    found = opmux.compare(model, {"input_ids": ids()}, float64=False, **QUICK)
    assert found.right and not found.training and "outputs" in str(found) and "gradients" not in str(found)
    assert all(row.loss_distance is None and row.to_float64 is None for row in found.rows)


def test_a_model_that_cannot_be_patched_is_compared_without_patch_model():
    found = opmux.compare(Mixed(), torch.randn(4, 8), loss=lambda y: y.square().mean(), **QUICK)
    assert [row.name for row in found.rows] == ["native", "enable"] and found.right
    assert found.batch == "batch 4x8" and "float32, batch 4x8\n" in str(found)
    assert any(note.startswith("Not patched: nothing of Mixed can be replaced") for note in found.notes)


def test_results_and_counts_of_a_variant_are_taken_after_its_warm_up(monkeypatch):
    """Auto mode runs torch's kernels in the first steps: their results and counts would say nothing about ours."""
    events = []
    warmed, results, counted = timing.warmed, Step.results, engine.counted
    monkeypatch.setattr(timing, "warmed", lambda *args: (events.append("warm"), warmed(*args))[1])
    monkeypatch.setattr(Step, "results", lambda self: (events.append("results"), results(self))[1])
    monkeypatch.setattr(engine, "counted", lambda: (events.append("count"), counted())[1])
    opmux.compare(Mixed(), torch.randn(4, 8), loss=lambda y: y.mean(), float64=False, **QUICK)
    assert events == ["warm", "results", "count"] * 2


def test_dropout_does_not_count_as_a_difference():
    found = opmux.compare(llama(attention_dropout=0.5), ids(), **QUICK)
    assert found.right and found.row("patch_model").distance < 1e-4


def test_without_dropout_nothing_is_dropped():
    x = torch.ones(64)
    with WithoutDropout():
        assert torch.equal(nn.Dropout(0.5)(x), x)
        assert torch.equal(nn.functional.dropout(x, p=0.9), x)
        q = torch.ones(1, 1, 8, 8)
        assert torch.equal(nn.functional.scaled_dot_product_attention(q, q, q, None, 0.9), q)


# ---- what it leaves -------------------------------------------------------------------------------------------------


def test_weights_gradients_and_generator_are_as_before():
    model, batch = llama(), ids()
    model(input_ids=batch, labels=batch).loss.backward()
    before, drawn = state(model), (torch.get_rng_state(), random.getstate())
    opmux.compare(model, batch, **QUICK)
    assert same(before, state(model))
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[1] == random.getstate()


def test_buffers_are_as_before():
    model = Mixed()
    before = state(model)
    opmux.compare(model, torch.randn(4, 8), loss=torch.sum, **QUICK)
    assert same(before, state(model)) and model.layers[1].num_batches_tracked == 0


@pytest.mark.parametrize("at", [1, 5, 9, 30])
def test_after_an_error_all_is_as_before(at):
    """The model raises in the first step, in a patched step, or in a timed step."""
    model, count = llama(), 0

    def fails(module, args, kwargs):
        nonlocal count
        count += 1
        if count == at:
            raise ArithmeticError("out of order")

    model.register_forward_pre_hook(fails, with_kwargs=True)
    before = state(model)
    with opmux.use(include=["family:norm"], mode="all"):
        live = switch._live()
        with pytest.raises(ArithmeticError, match="out of order"):
            opmux.compare(model, ids(), float64=False, **QUICK)
        assert switch._live() is live
    assert same(before, state(model)) and switch._live() is None
    assert not any(map(is_patched, model.modules()))


def test_what_was_enabled_stays_enabled():
    opmux.enable(include=["add"], mode="all")
    try:
        base, names = switch._base, opmux.enabled_ops()
        with opmux.use(include=["mul"], mode="all"):
            stack = list(switch._stack)
            opmux.compare(llama().eval(), ids(), float64=False, **QUICK)
            assert switch._base is base and switch._stack == stack
        assert opmux.enabled_ops() == names
    finally:
        opmux.disable()


# ---- what it rejects ------------------------------------------------------------------------------------------------


def patched() -> nn.Module:
    model = llama()
    opmux.patch_model(model)
    return model


class Two(nn.Module):
    """Parameters on two devices."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, device="meta"))


@pytest.mark.parametrize(
    ("model", "batch", "more", "message"),
    [
        (llama, lambda: None, {}, "batch must be a tensor, a tuple, or a dict"),
        (llama, dict, {}, "batch must be a dict of the model's arguments"),
        (llama, lambda: {"input_id": ids()}, {}, "did you mean 'input_ids'"),
        (llama, lambda: torch.ones(2, 8), {}, "batch must be a dict of the model's arguments, or ids"),
        (llama, lambda: ids().to("meta"), {}, "batch must have all tensors on the model's device, cpu"),
        (Mixed, lambda: 5, {}, "batch must be a tensor, a tuple, or a dict"),
        (Mixed, lambda: torch.ones(4, 8, device="meta"), {}, "model's device, cpu; got a tensor on meta"),
        (llama, lambda: {"input_ids": ids()}, {}, "loss must be a function of the model's outputs"),
        (Mixed, lambda: torch.ones(4, 8), {}, "loss must be a function of the model's outputs"),
        (Mixed, lambda: torch.ones(4, 8), {"loss": lambda y: y}, "must return one floating-point number"),
        (Mixed, lambda: torch.ones(4, 8), {"loss": lambda y: y.detach().sum()}, "a loss that has a gradient"),
        (Mixed, lambda: torch.ones(4, 8), {"loss": lambda y: y.sum() * math.nan}, "a finite loss; got nan"),
        (Mixed, lambda: torch.ones(4, 8), {"loss": "mse"}, "loss must be a function"),
        (patched, ids, {}, "model must not be patched: call opmux.unpatch_model first"),
        (Two, lambda: torch.ones(1), {}, "all on one device; got cpu and meta"),
        (lambda: nn.ReLU(), lambda: torch.ones(1), {}, "got no parameters"),
        (lambda: "llama", ids, {}, "model must be a module of torch; got str"),
        (llama, ids, {"mode": "fast"}, "mode must be one of 'auto', 'all'; got 'fast'"),
        (llama, ids, {"seconds": -1}, "seconds must be a positive number; got -1"),
    ],
)
def test_bad_input_is_rejected_and_changes_nothing(model, batch, more, message):
    model = model()
    before = state(model) if isinstance(model, nn.Module) and not isinstance(model, Two) else None
    with pytest.raises(BadArgument, match="^compare: ") as raised:
        opmux.compare(model, batch(), **{**QUICK, **more})
    assert message in str(raised.value)
    assert before is None or same(before, state(model))


def test_a_patched_model_type_is_rejected():
    opmux.patch_model("llama")
    try:
        with pytest.raises(BadArgument, match="must not be patched"):
            opmux.compare(llama(), ids(), **QUICK)
    finally:
        opmux.unpatch_model("llama")


def test_it_rejects_to_run_while_calls_are_recorded(tmp_path):
    with opmux.use(record=tmp_path / "calls"), pytest.raises(BadArgument, match="while no calls are recorded"):
        opmux.compare(llama(), ids(), **QUICK)


# ---- helper functions -----------------------------------------------------------------------------------------------


def test_distances_treat_nan_as_infinity_and_small_gradients_as_noise():
    want = Results(2.0, {"w": torch.ones(4), "noise": torch.full((4,), 1e-9)})
    near = Results(2.0, {"w": torch.ones(4), "noise": torch.full((4,), 3e-9)})
    assert distance(near, want).tensors == pytest.approx(2e-6)
    assert distance(Results(math.nan, want.tensors), want).loss == math.inf
    assert distance(Results(2.0, {"w": torch.full((4,), math.nan), "noise": torch.ones(4)}), want).tensors == math.inf
    assert distance(Results(2.0, {"w": torch.ones(4)}), want).tensors == math.inf  # a gradient is missing


def test_each_variant_begins_as_many_rounds():
    orders = [list(timing.rotated(4, number)) for number in range(4)]
    assert orders[1] == [1, 2, 3, 0] and [sorted(column) for column in zip(*orders, strict=True)] == [[0, 1, 2, 3]] * 4


def test_the_speed_is_native_time_divided_by_the_variants():
    native, twice = timing._summary([[[2.0, 2.0]] * 4, [[1.0, 1.0]] * 4])
    assert (native.ms, native.speed, twice.ms, twice.speed, twice.speed_error, twice.rounds) == (
        2.0,
        1.0,
        1.0,
        2.0,
        0.0,
        4,
    )


@pytest.mark.skipif(not timing.PEAKS.exists(), reason="needs Linux")
def test_the_peak_on_a_cpu_is_what_a_step_allocates():
    found = timing.peak(lambda: torch.ones(64 * 2**18).add_(1), torch.device("cpu"))
    assert 60 * 2**20 < found < 90 * 2**20


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    return str(tmp_path / "config.json")


def test_the_command_prints_a_table(cli, config):
    result = cli("compare", config, "--device", "cpu", "--length", "8", "--seconds", "0.05")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        "LlamaForCausalLM: a training step on cpu, float32, batch size 4, sequence length 8\n"
    )
    for name in ("native", "enable", "patch_model", "both"):
        assert any(line.strip().startswith(f"{name} ") for line in result.stdout.splitlines())
    assert "All results are right" in result.stdout


def test_the_command_prints_json(cli, config):
    words = ("--device", "cpu", "--length", "8", "--seconds", "0.05", "--no-train", "--layers", "2", "--json")
    result = cli("compare", config, *words)
    found = json.loads(result.stdout)
    assert found["right"] and not found["training"] and len(found["rows"]) == 4
    assert found["rows"][2].keys() >= {"speed", "speed_error", "loss_distance", "distance", "to_float64"}
    assert "5 rms_norm" in found["rows"][2]["replaced"]  # two layers have five


@pytest.fixture
def chatty(tmp_path):
    """The config of a model about which transformers warns in its first step."""
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 97}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    return str(tmp_path / "config.json")


@pytest.mark.parametrize(("level", "count"), [("", 0), ("warning", 1)])
def test_the_command_shows_warnings_of_transformers_only_on_request(cli, chatty, monkeypatch, level, count):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", level)
    seen = logging.handlers.BufferingHandler(100)
    transformers.utils.logging.warning_once.cache_clear()
    transformers.utils.logging.add_handler(seen)
    try:
        result = cli("compare", chatty, "--device", "cpu", "--length", "8", "--seconds", "0.05")
    finally:
        transformers.utils.logging.remove_handler(seen)
    assert result.exit_code == 0, result.output
    assert sum("`loss_type=None` was set" in record.getMessage() for record in seen.buffer) == count


def test_only_warm_suggests_a_script():
    for what, hint in (("lamma", "did you mean 'llama'?"), ("meta-llama/x", "download it first, and name its folder")):
        with pytest.raises(BadOption, match="no such file.*Allowed: .*config.json or its folder$") as raised:
            config_of(what)
        assert hint in str(raised.value)
        with pytest.raises(BadOption, match=r"its folder, or a script \(train\.py\)$"):
            config_of(what, or_script=True)


def test_only_errors_of_transformers_are_shown_and_only_in_the_block(monkeypatch):
    shown = transformers.utils.logging
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    logger, before = shown.get_logger("transformers.models"), shown.get_verbosity()
    with pytest.raises(ValueError, match="no"), errors_only():
        assert logger.isEnabledFor(logging.ERROR) and not logger.isEnabledFor(logging.WARNING)
        assert not shown.is_progress_bar_enabled()
        raise ValueError("no")
    assert shown.get_verbosity() == before and shown.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lama",), "did you mean 'llama'"),
        (("train.py",), "a script cannot be compared"),
        (("vit",), "no causal language model"),
        (("llama", "--batch", "0"), "--batch 0 is not allowed"),
        (("llama", "--seconds", "0"), "--seconds 0 is not allowed"),
        (("gpt2", "--mode", "fast", "--layers", "1"), "--mode 'fast' is not allowed. Allowed: auto, all"),
    ],
)
def test_an_invalid_option_gives_one_line(cli, words, message):
    result = cli("compare", *words, "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip().count("\n") == 0 and message in result.stderr


def test_a_model_that_does_not_fit_is_not_built(cli, config, monkeypatch):
    monkeypatch.setattr(command, "free_memory", lambda device: 1000)
    result = cli("compare", config, "--device", "cpu")
    assert result.exit_code == 2 and "does not fit" in result.stderr and "Use fewer layers: --layers 2" in result.stderr

"""`opmux conform --real`: the table of real shapes, the error limit, and wrong kernels that it must find."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch

from opmux.core import get_default_manager, specs
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.core.spec import NAME_LOOKUP
from opmux.faces.aten.overloads import table
from opmux.specs.samples import LAYOUTS
from opmux.tools.conform import calls, real, shapes, yardstick
from opmux.tools.conform.poison import poisoned

CPU = torch.device("cpu")
f32, bf16, f64 = torch.float32, torch.bfloat16, torch.float64
ATTACKED = shapes.Sized(("activation",), (), (31, 4098), ("attacked",))


def op_named(name):
    return specs.find(name, NAME_LOOKUP["ops"])


# ---- the table ------------------------------------------------------------------------------------------------------


def test_every_row_names_existing_ops():
    rows = shapes.read()
    assert {c.op for c in rows.calls} <= set(table())
    list(get_default_manager().registry.list_operators())
    for row in rows.sized:
        assert set(row.families) <= set(specs.families) and row.layout in {*LAYOUTS, "channels_last"}
        assert all(row.models) and min(row.shape) > 0
        assert any(real._is_for(row, s) for s in specs), row
    models = {m.removesuffix(" channels-last") for r in (*rows.calls, *rows.sized) for m in r.models}
    for names in (
        *("resnet-50", "vit-b", "bert-base", "gpt2", "t5-base", "whisper-large-v3", "llama-3-8b", "qwen3-8b"),
        *("gemma-2-9b", "gemma-3-4b", "mixtral-8x7b", "deepseek-v3", "mamba-2.8b", "sd-1.5 unet", "sdxl unet"),
    ):
        assert names in models and names in rows.models, names


def test_every_op_with_a_triton_kernel_has_a_shape_of_a_model():
    pytest.importorskip("triton")
    registry = get_default_manager().registry
    registry.list_operators()
    kernels = [
        s for s in specs if s.space != "tex" and any(i.impl_id == "default.flagos" for i in registry.impls(s.key))
    ]
    assert len(kernels) > 300
    bare = [s.key for s in kernels if not any(r.models != ("random",) for r in real.rows_of(s))]
    assert set(bare) == set(shapes.read().without), "add a row to real_shapes.json, or a reason under its `without`"


def test_every_family_has_odd_sizes_and_strides():
    for family in ("norm", "softmax", "reduce", "scan", "activation", "channel_norm", "pointwise"):
        mine = [r for r in shapes.read().sized if family in r.families]
        assert {"packed", "step"} <= {r.layout for r in mine}, family
        assert any(n % 16 for r in mine for n in r.shape if n > 16), family


def test_calls_can_be_written_to_text_and_read_back(tmp_path):
    x = torch.empty(4, 6, 8, dtype=bf16, device="meta")
    text = shapes.text_of((x, x.transpose(1, 2), x.float(), [8], torch.bfloat16, None), {"approximate": "tanh"}, bf16)
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"models": {}, "without": {}, "ops": [], "aten": []}))
    shapes.write_calls([("gelu", text, ["gpt2"])], file)
    (call,) = shapes.read(file).calls
    assert str(call) == "T[4x6x8] T[4x8x6]@48,1,8 float32[4x6x8] [8] T None approximate='tanh'"
    assert call.kwargs == {"approximate": "tanh"} and call.models == ("gpt2",)


@pytest.mark.parametrize("name", ["native_batch_norm", "native_group_norm", "_softmax", "add.Tensor", "mul.Tensor"])
def test_a_call_with_fewer_samples_is_still_valid(name):
    """Only the number of samples shrinks: inner sizes stay the same, and torch accepts the arguments."""
    for row in [c for c in shapes.read().calls if c.op == name][:6]:
        small = calls.scaled(row, 1 << 14)
        if small is None:
            continue
        assert [k.shape[2:] for k in small.tensor_specs if len(k.shape) > 3] == [
            k.shape[2:] for k in row.tensor_specs if len(k.shape) > 3
        ] or name == "mul.Tensor"
        arguments = calls.Arguments(small, f32, CPU)
        assert calls.results(calls.OverloadSchema(name), *arguments.fresh())


# ---- the error limit ------------------------------------------------------------------------------------------------


def difference(got, truth, theirs=None, terms=1.0):
    return yardstick.far_off("y", got, theirs, truth, terms, 1.0)


@pytest.mark.parametrize("dtype", [f32, bf16, torch.float16, f64])
def test_one_rounding_is_allowed_and_an_error_of_2_percent_is_not(dtype):
    truth = torch.randn(50, 100, dtype=f64)
    got = truth.to(dtype, copy=True)
    assert difference(got, truth) is None
    got[7, 30] *= 1.02
    if dtype is bf16:  # in bfloat16, 2 % of the tensor's scale is only two roundings
        got[7, 30] *= 1.1
    assert "y[7, 30] is" in difference(got, truth) and "1 of 5000 numbers are too far" in difference(got, truth)


def test_twice_torchs_own_error_is_allowed():
    truth = torch.ones(100, dtype=f64)
    theirs = (truth + 1e-3).float()
    assert difference((truth + 1.9e-3).float(), truth, theirs) is None
    assert difference((truth + 2.3e-3).float(), truth, theirs) is not None


def test_infinities_and_nan_must_match():
    truth = torch.tensor([1.0, float("inf"), float("nan"), 1e6, 0.0], dtype=f64)
    good = truth.to(torch.float16)  # 1e6 overflows to infinity in float16
    assert difference(good, truth) is None
    for i, wrong in enumerate((float("nan"), 1.0, 1.0, 3.0, float("nan"))):
        bad = good.clone()
        bad[i] = wrong
        assert f"y[{i}] is" in difference(bad, truth), i
    assert difference(torch.zeros(1), torch.zeros(1, dtype=f64)) is None


# ---- wrong kernels --------------------------------------------------------------------------------------------------


def test_new_memory_contains_nan():
    with poisoned():
        assert torch.empty(100).isnan().all() and torch.empty(3, dtype=torch.int32).eq(2**31 - 1).all()
    assert not torch.are_deterministic_algorithms_enabled()


def wrong_by_one(x):
    y = torch.nn.functional.silu(x)
    y[-1, -1] += 0.25
    return y


def unwritten(x):
    y = torch.empty(x.shape, dtype=x.dtype)
    y[:-1] = torch.nn.functional.silu(x[:-1])
    y[-1, :-1] = torch.nn.functional.silu(x[-1, :-1])
    return y


def of_another_dtype(x):
    return torch.nn.functional.silu(x.float())


def raises(x):
    raise RuntimeError("no launch")


PLANTED = {
    "one element": (wrong_by_one, r"y\[30, 4097\] is .* 1 of 127038 numbers are too far"),
    "one element is not written": (unwritten, r"y\[30, 4097\] is nan"),
    "dtype": (of_another_dtype, "expected bfloat16"),
    "error": (raises, "RuntimeError: no launch"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_kernel_is_found(name, register, monkeypatch):
    fn, says = PLANTED[name]
    record = plant(register, monkeypatch, "silu", fn)
    outcome = run(record, bf16)
    assert outcome.status == "fail", outcome
    assert re.search(says, outcome.reason), outcome.reason


def test_a_wrong_gradient_is_found_although_results_are_right(register, monkeypatch):
    right = plant(register, monkeypatch, "silu", torch.nn.functional.silu)
    register(planted("silu_bwd", lambda dy, x: dy * 0.9))
    outcome = run(right, f32)
    assert outcome.status == "fail" and outcome.reason.startswith("gradient: dx["), outcome


def test_a_correct_kernel_passes(register, monkeypatch):
    outcome = run(plant(register, monkeypatch, "silu", torch.nn.functional.silu), bf16)
    assert outcome.status == "pass" and outcome.impl == "default.planted", outcome


def planted(op, fn):
    return OpImpl(op_named(op).key, "default.planted", BackendImplKind.DEFAULT, None, fn, 99)


def plant(register, monkeypatch, op, fn):
    """Register a function as the only kernel of an op."""
    register(planted(op, fn))
    spec = op_named(op)
    mine = [i for i in get_default_manager().registry.impls(spec.key) if i.impl_id == "default.planted"]
    monkeypatch.setattr(real, "our_impls", lambda spec, device: mine)
    monkeypatch.setitem(real.MOST, "cpu", 1 << 18)
    return spec


def run(spec, dtype):
    check = lambda device: real.check_op(spec, ATTACKED, dtype, True, device)
    return real.RealCase(spec.name, "31x4098", dtype, ("attacked",), check).run(CPU)


def test_a_wrong_kernel_of_an_aten_overload_is_found(monkeypatch):
    call = next(c for c in shapes.read().calls if c.op == "_softmax" and calls.scaled(c, real.most(CPU)))
    native = lambda arguments: calls.results(calls.OverloadSchema(arguments.call.op), *arguments.fresh())
    case = real.RealCase("aten::_softmax", str(call), f32, call.models, lambda d: real.check_call(call, f32, d))
    monkeypatch.setattr(calls, "ours", native)
    assert case.run(CPU).status == "pass"

    def wrong(arguments):
        (y,) = native(arguments)
        y.view(-1)[5] = float("nan")
        return [y]

    monkeypatch.setattr(calls, "ours", wrong)
    outcome = case.run(CPU)
    assert outcome.status == "fail" and "is nan, the truth is" in outcome.reason


# ---- the command ----------------------------------------------------------------------------------------------------


def test_cases_of_all_ops_are_interleaved(monkeypatch):
    monkeypatch.setattr(real, "our_impls", lambda spec, device: [spec])
    cases = real.cases(real.CaseSelection([op_named(n) for n in ("rms_norm", "softmax", "silu")], {}), CPU)
    assert {c.op for c in cases[:3]} == {"rms_norm", "softmax", "silu"}
    assert {c.dtype for c in cases if c.op == "softmax"} == {bf16, f32, torch.float16, f64}
    only = real.CaseSelection([op_named("rms_norm")], {}, (bf16,), ("gemma*",))
    assert {m for c in real.cases(only, CPU) for m in c.models} == {"gemma-2-9b", "gemma-3-4b"}


def test_the_command_checks_ops_and_writes_a_record(cli, tmp_path, register, monkeypatch):
    plant(register, monkeypatch, "rms_norm", op_named("rms_norm").reference)
    result = cli("conform", "--real", "--device", "cpu", "--op", "rms_norm", "--dtype", "bf16", "--model", "qwen*",
              "--seconds", "60", "--json", "run.json")  # fmt: skip
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "run.json").read_text())
    ops = {o["op"] for o in data["outcomes"]}  # includes ATen overloads, unless an earlier test has built their table
    assert "rms_norm" in ops and ops <= {"rms_norm", "aten::_fused_rms_norm"} and data["left"] == 0
    assert {o["status"] for o in data["outcomes"]} == {"pass"} and data["facts"]["device"] == "cpu"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--real", "--model", "lama-3-8b"], "did you mean 'llama-3-8b'"),
        (["--seconds", "5"], "--model, --seconds and --jobs go with --real"),
        (["--real", "--op", "nope"], "unknown op"),
        (["--real", "--seconds", "0"], "--seconds"),
    ],
)
def test_invalid_options_give_exit_code_2(cli, words, message):
    result = cli("conform", "--device", "cpu", *words)
    assert result.exit_code == 2 and message in result.output + str(result.exception)


def test_a_failure_gives_exit_code_1(cli, register, monkeypatch):
    plant(register, monkeypatch, "silu", wrong_by_one)
    result = cli("conform", "--real", "--device", "cpu", "--op", "silu", "--dtype", "fp32", "--model", "gpt2")
    assert (
        result.exit_code == 1 and "what is wrong" in result.output and "opmux conform --real --op silu" in result.output
    )


def test_float8_may_rarely_be_rounded_to_the_other_side():
    fp8 = torch.float8_e4m3fn
    want = torch.linspace(-400, 400, 40_000).to(fp8).view(torch.uint8)
    got = want.clone()
    got[7] += 1  # the next float8 value
    assert yardstick.fp8_differs("y", got, want, fp8) is None
    got[7] += 1
    assert "1 of them by more than a step of float8_e4m3fn" in yardstick.fp8_differs("y", got, want, fp8)
    got = want.clone()
    got[: 40_000 // 100] += 1
    assert "400 of 40000 numbers differ, 0 of them" in yardstick.fp8_differs("y", got, want, fp8)
    zeros = torch.zeros(4, dtype=torch.uint8)
    assert yardstick.fp8_differs("y", zeros + 128, zeros, fp8) is None  # -0 equals 0


def test_infinity_is_only_right_beyond_the_range_of_the_dtype():
    truth = torch.tensor([65519.0, 1.0], dtype=f64)
    inf = torch.tensor([torch.inf, 1.0], dtype=torch.float16)
    assert yardstick.far_off("y", inf, None, truth, 1.0, 1.0) is None
    assert yardstick.far_off("y", -inf, None, truth, 1.0, 1.0) is not None
    assert yardstick.far_off("y", inf, None, truth / 2, 1.0, 1.0) is not None


def test_a_dtype_is_not_tried_on_shapes_that_the_reference_refuses():
    """For a dimension that a tensor does not have, torch raises IndexError."""

    def refuses(x):
        raise IndexError("Dimension out of range")

    spec = dataclasses.replace(op_named("gelu"), reference=refuses)
    assert not real._takes(spec, f32) and real._takes(op_named("gelu"), f32)

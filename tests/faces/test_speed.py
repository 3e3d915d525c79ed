"""`opmux tune --aten` makes arguments of a given size for torch's overloads, and measures calls with them."""

import json
import warnings

import pytest
import speed_cases
import torch

import opmux
from opmux.faces.aten import decisions
from opmux.faces.aten.overloads import functional, table
from opmux.tools import screen
from opmux.tools.speed import cases, command, measure
from opmux.tuning.speed_files import chip_of

NAMES = (
    "native_layer_norm", "native_layer_norm_backward", "_softmax", "_softmax.out", "add.Tensor", "add_.Tensor",
    "add.out", "clamp", "gelu_backward", "addcmul",
)  # fmt: skip


# Backward overload -> its forward, which has no CPU kernel.
AFTER = {
    "_scaled_dot_product_flash_attention_backward": "_scaled_dot_product_flash_attention",
    "_flash_attention_backward": "_flash_attention_forward",
    "_scaled_dot_product_efficient_attention_backward": "_scaled_dot_product_efficient_attention",
    "_efficient_attention_backward": "_scaled_dot_product_efficient_attention",
    "_thnn_fused_lstm_cell_backward_impl": "_thnn_fused_lstm_cell",
    "_fused_rms_norm_backward": "",  # never called: the CPU decomposes the forward
}


@pytest.fixture(scope="module")
def sources():
    with warnings.catch_warnings():  # hides warnings of deprecated and of unstable functions
        warnings.simplefilter("ignore")
        return cases.Sources(table(), "cpu", speed_cases.DTYPES)


@pytest.fixture
def quick(monkeypatch, sources):
    monkeypatch.setattr(measure, "SIZES", (1 << 12, 1 << 13))
    monkeypatch.setattr(measure, "SLOW_US", float("inf"))  # skip no size, even if the machine is busy and slow
    monkeypatch.setattr(measure, "Sources", lambda *args: sources)
    yield
    opmux.disable()


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_the_requested_size(sources, name):
    cases_of_op = list(sources.cases(table()[name], 1 << 14, torch.float32))
    assert cases_of_op and all(case.numel == 1 << 14 for case in cases_of_op)
    with torch.no_grad():
        for case in cases_of_op:
            table()[name].shape.op(*case.args, **case.kwargs)


def test_measurements_are_stored_and_read_by_auto_mode(quick, tmp_path):
    names = ["native_layer_norm", "_log_softmax"]
    results = {n: task() for n, task in zip(names, measure.tasks_here(names, "cpu"), strict=True)}
    assert not any("skipped" in f for f in results.values()), results
    assert [n for n, _, _ in results["native_layer_norm"]["float32"]] == [1 << 12, 1 << 13]
    speeds = {n: decisions.Speed.of_data(f) for n, f in results.items()}
    file = tmp_path / "speeds.json"
    file.write_text(decisions.FILES.text(chip_of("cpu"), speeds, {"skipped": {}}))
    assert json.loads(file.read_text())["made_for"]["chip"] == "cpu" and decisions.FILES.read(file) == speeds
    assert command.mean([0.5, 2.0]) == pytest.approx(1.0)
    assert len(command.ratios(speeds["_log_softmax"])) == 2  # for bfloat16 and float32


def test_an_overload_without_our_kernel_is_not_measured(quick):
    (task,) = measure.tasks_here(["add.Tensor"], "cpu")
    assert "did not reach" in task()["skipped"]


# ---- arguments of every overload ------------------------------------------------------------------------------------


def test_every_overload_has_arguments_or_a_reason(sources):
    lacking = {n for n, why in sources.refused.items() if why.startswith("NotImplementedError: Could not run")}
    assert {forward for forward in AFTER.values() if forward} <= lacking
    without = speed_cases.without(sources, 1 << 14)
    assert without - lacking == speed_cases.NONE.keys() | AFTER.keys()


def test_arguments_that_must_fit_together_are_not_generated_from_the_schema():
    x = cases.sized(1 << 13, torch.float32, "cpu")
    generated = {n for n, o in table().items() if cases.by_schema(o, x) is not None}
    assert {"add.Tensor", "clamp", "tril", "polygamma_"} <= generated
    assert not any("backward" in n or n.startswith("_embedding_bag") for n in generated)
    tensors = {n: sum("Tensor" in str(a.type) for a in table()[n].shape.arguments) for n in generated}
    assert {table()[n].family for n, count in tensors.items() if count > 1} == {"pointwise"}
    assert min(tensors.values()) == 1  # excludes factories: the device comes from a tensor argument


@pytest.mark.parametrize("name", ["_cdist_backward", "_pdist_backward", "_segment_reduce_backward", "gelu_backward"])
def test_a_backward_gets_what_its_forward_saved(sources, name):
    cases_of_op = list(sources.cases(table()[name], 1 << 14, torch.float32))
    assert cases_of_op and len({t.shape for t in cases.tensors_in(cases_of_op[0].args)}) == (
        1 if name == "gelu_backward" else 2
    )


def test_the_first_tensor_has_the_dtype_of_the_case(sources):
    assert sources.dtypes(table()["where.self"]) == [torch.bool]
    assert sources.dtypes(table()["_int_mm"]) == [torch.int8]
    for name in ("where.self", "_int_mm", "nonzero", "index_select", "bincount", "embedding_dense_backward"):
        for dtype in sources.dtypes(table()[name]):
            assert all(case.first.dtype is dtype for case in sources.cases(table()[name], 1 << 13, dtype)), name


@pytest.mark.parametrize("name", ["full", "arange.start_step", "linspace", "eye", "randint.low", "normal.float_float"])
def test_factories_are_called_with_the_size_and_the_device(sources, name):
    cases_of_op = [c for d in sources.dtypes(table()[name]) for c in sources.cases(table()[name], 1 << 14, d)]
    assert cases_of_op and all(c.kwargs["device"].type == "cpu" and 8 * c.numel >= 1 << 14 for c in cases_of_op)


def test_cases_of_an_overload_are_few_and_distinct(sources):
    for name in ("_softmax", "cat", "_to_copy", "sum.dim_IntList"):
        cases_of_op = list(sources.cases(table()[name], 1 << 13, torch.float32))
        assert 0 < len(cases_of_op) <= cases.CASES and len({c.layout for c in cases_of_op}) == len(cases_of_op), name
        assert {c.numel for c in cases_of_op} == {1 << 13}, name


def test_a_program_ends_at_the_requested_call(monkeypatch):
    ended = []

    def program(x):
        torch.softmax(x, -1)
        ended.append(x.numel())

    monkeypatch.setattr(cases, "PROGRAMS", (program,))
    alone = cases.Sources(table(), "cpu", [torch.float32])
    assert ended == [cases.SMALL]
    assert len(list(alone.cases(table()["_softmax"], 1 << 14, torch.float32))) == 1
    assert ended == [cases.SMALL]


# ---- what is measured -----------------------------------------------------------------------------------------------


def test_out_of_memory_keeps_the_smaller_sizes(quick, monkeypatch):
    def worst(overload, sources, clock, numel, dtype, switches):
        if numel > 1 << 12:
            raise torch.OutOfMemoryError("128 GiB")
        return [numel, 2.0, 1.0], ""

    monkeypatch.setattr(measure, "_worst", worst)
    (task,) = measure.tasks_here(["_softmax"], "cpu")
    assert task()["float32"] == [[1 << 12, 2.0, 1.0]]


def test_a_call_that_torch_rejects_is_skipped_with_torchs_error(quick):
    (task,) = measure.tasks_here(["_masked_scale"], "cpu")
    assert task()["skipped"].startswith("torch refuses its arguments: NotImplementedError")


def test_overloads_without_a_measured_equivalent_are_measured():
    known = table()
    forms = command.stood_for(known)
    names = command.chosen(known, forms, ())
    assert {"add_.Tensor", "add.out", "exp.out"} <= forms.keys() and forms["add_.Tensor"] == "add.Tensor"
    assert not {"_softmax.out", "sum.IntList_out", "mm.out"} & forms.keys()  # our kernels copy for these
    assert set(names) == known.keys() - forms.keys()
    assert {n for n, o in known.items() if o.shape.kind == "functional"} <= set(names)
    # `fill_` is measured because torch's functional overload is a composition.
    assert {"polygamma_", "linspace.out", "fill_.Scalar"} <= set(names)
    without_plain = {n: o for n, o in known.items() if n != "exp"}
    assert "exp.out" in command.chosen(without_plain, command.stood_for(without_plain), ())


def test_skipped_overloads_are_those_that_auto_mode_decides_by_another(monkeypatch):
    forms = command.stood_for(table())
    speed = decisions.Speed((1.0, 1.0), {})
    monkeypatch.setattr(decisions, "measured", lambda chip: dict.fromkeys(set(forms.values()), speed))
    chip = chip_of("cpu")
    left_to_torch = {n for n, o in table().items() if o.shape.packet.startswith("_foreach_")}
    for name in forms.keys() - left_to_torch:
        expected = speed.through_python() if table()[name].shape.kind == "out" else speed
        assert decisions._speed(table()[name], chip) == expected, name
    for name, overload in table().items():
        if functional(overload) is not None and name not in forms:
            assert decisions._speed(overload, chip) is None, name


@pytest.mark.parametrize(
    ("requested", "names"),
    [
        ("_softmax", ["_softmax", "_softmax.out"]),
        ("exp", ["exp"]),
        ("_softmax.out", ["_softmax.out"]),
        ("add_", ["add_.Scalar", "add_.Tensor"]),
        ("relu_", ["relu_"]),
    ],
)
def test_an_overload_that_is_named_is_measured(requested, names):
    assert command.chosen(table(), command.stood_for(table()), [requested]) == names


def test_the_report_counts_the_overloads_that_a_measurement_covers(capsys):
    speed = decisions.Speed((1.0, 1.0), {torch.float32: (decisions.Times(1 << 16, 2.0, 1.0),)})
    forms = {"_softmax.out": "_softmax", "add_.Tensor": "add.Tensor", "add.out": "add.Tensor"}
    command._report(screen.out(), {"_softmax": speed, "_softmax.out": speed, "add.Tensor": speed}, {}, forms)
    assert "1 of them decide for 2 in-place and out= overloads" in capsys.readouterr().out

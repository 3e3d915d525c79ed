"""`opmux tune --aten`: arguments for torch's overloads at a size, and what is measured with them."""

import json

import pytest
import torch

import opmux
from opmux.faces.aten import decisions
from opmux.faces.aten.overloads import table
from opmux.tools.speed import cases, command, measure

pytestmark = pytest.mark.xdist_group("auto")

NAMES = (
    "native_layer_norm", "native_layer_norm_backward", "_softmax", "_softmax.out", "add.Tensor", "add_.Tensor",
    "add.out", "clamp", "gelu_backward", "addcmul",
)  # fmt: skip


@pytest.fixture(scope="module")
def sources():
    before, cases.PROGRAMS = cases.PROGRAMS, cases.PROGRAMS[:8]
    try:
        yield cases.Sources(table(), "cpu", [torch.float32])
    finally:
        cases.PROGRAMS = before


@pytest.fixture
def quick(monkeypatch, sources):
    monkeypatch.setattr(measure, "SIZES", (1 << 12, 1 << 13))
    monkeypatch.setattr(measure, "DTYPES", ("float32",))
    monkeypatch.setattr(measure, "SLOW_US", float("inf"))  # whatever else the machine does
    monkeypatch.setattr(measure, "Sources", lambda *given: sources)
    yield
    opmux.disable()


@pytest.mark.parametrize("name", NAMES)
def test_arguments_at_a_size(sources, name):
    made = list(sources.cases(table()[name], 1 << 14, torch.float32))
    assert made and all(case.numel == 1 << 14 for case in made)
    with torch.no_grad():
        for case in made:
            table()[name].shape.op(*case.args, **case.kwargs)


def test_what_is_measured_is_what_decides(quick, tmp_path):
    found = {n["name"]: n for n in measure.measure(["native_layer_norm", "_log_softmax"], "cpu") if "name" in n}
    assert not any("skipped" in f for f in found.values()), found
    assert [n for n, _, _ in found["native_layer_norm"]["float32"]] == [1 << 12, 1 << 13]
    speeds = {f.pop("name"): decisions.Speed.of_data(f) for f in found.values()}
    file = tmp_path / "speeds.json"
    file.write_text(decisions.as_json(decisions.chip_of("cpu"), speeds, {"skipped": {}}))
    assert json.loads(file.read_text())["made_for"]["chip"] == "cpu" and decisions._read(file) == speeds
    assert command.mean([0.5, 2.0]) == pytest.approx(1.0)
    assert len(command.ratios(speeds["_log_softmax"])) == 1


def test_an_overload_that_is_not_ours_is_not_measured(quick):
    *_, line = measure.measure(["add.Tensor"], "cpu")
    assert "did not reach" in line["skipped"]

"""`opmux tune --providers`: what it times and stores, and that dispatch then selects by these times."""

from __future__ import annotations

import json
import time

import pytest
import torch

pytest.importorskip("triton")

import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, specs
from opmux.tools.speed import providers
from opmux.tools.speed.provider_cases import TIMED, Cases
from opmux.tuning import provider_speed, speed_files
from opmux.tuning.provider_speed import FILES
from opmux.tuning.speed_classes import CLASSES

CPU = torch.device("cpu")
LABEL = "linear[dtype=float32 m<=4 n<=16 k<=32]"
SMALL = {
    "m n k": "4x256x128", "batch m n k": "2x4x8x16", "rows n k groups": "16x8x24x4", "batch heads keys": "2x2x70",
    "batch heads kv_heads tokens dim": "1x4x2x8x16", "batch heads kv_heads keys dim": "2x4x2x70x16",
}  # fmt: skip
CASES = [(op, n) for op, cases in TIMED.items() for n in range(len(cases))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    provider_speed.forget()
    yield tmp_path / "cache" / "tuning"
    monkeypatch.undo()
    provider_speed.forget()


@pytest.fixture
def add_library(register):
    """Register an implementation of `linear` as if it came from a library."""

    def add_library(impl_id, fn):
        register(OpImpl("opmux::linear", impl_id, BackendImplKind.VENDOR, "acme", fn, outside=False))

    return add_library


@pytest.fixture
def slow(add_library):
    """Register a library that takes 5 ms longer than the reference."""

    def slowly(x, weight, bias):
        time.sleep(0.005)
        return torch.nn.functional.linear(x, weight, bias)

    add_library("vendor.acme", slowly)


def chosen() -> str:
    return get_default_manager().get_selected_impl_id("linear", torch.zeros(4, 32), torch.zeros(16, 32))


def test_dispatch_selects_by_the_measured_times(cli, slow):
    command = ("tune", "--providers", "linear", "--shape", "4x16x32", "--dtype", "float32", "--device", "cpu")
    assert chosen() == "vendor.acme"
    result = cli(*command)
    assert result.exit_code == 0, result.output
    file = FILES.path(speed_files.chip_of("cpu"))
    assert file is not None and f"stored in {file}" in result.stdout
    assert "1 calls measured, 1 classes with a choice" in result.stdout
    stored = json.loads(file.read_text())
    assert stored["format"] == 2 and stored["made_for"]["chip"] == "cpu" and list(stored["entries"]) == [LABEL]
    times = stored["entries"][LABEL]
    assert set(times) == {"vendor.acme", "reference.torch"} and times["vendor.acme"] > times["reference.torch"] + 1000
    assert chosen() == "reference.torch"
    verdicts = opmux.explain("linear", torch.zeros(4, 32), torch.zeros(16, 32)).verdicts
    (why,) = [v.reason for v in verdicts if v.impl.impl_id == "vendor.acme"]
    assert why.startswith("measured on cpu: reference.torch ") and why.endswith(f" us ({LABEL[7:-1]})")


def test_an_implementation_that_fails_is_left_out_and_not_quarantined(cli, slow, add_library, tmp_path):
    def broken(x, weight, bias):
        raise RuntimeError("a bug")

    add_library("vendor.acme.broken", broken)
    file = tmp_path / "speeds.json"
    shape = ("--shape", "4x16x32", "--dtype", "float32", "--device", "cpu")
    result = cli("tune", "--providers", "linear", *shape, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "not timed: linear: vendor.acme.broken: RuntimeError: a bug" in result.stdout
    assert set(FILES.read(file)[LABEL]) == {"vendor.acme", "reference.torch"}
    assert not get_default_manager().failures()


def test_times_measured_before_the_device_was_lost_are_stored(cli, slow, add_library, tmp_path):
    def breaks(x, weight, bias):
        if x.shape[0] == 8:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return x @ weight.t()

    add_library("vendor.acme.breaks", breaks)
    file = tmp_path / "speeds.json"
    shapes = (
        "--shape",
        "4x16x32",
        "--shape",
        "8x16x32",
        "--shape",
        "16x16x32",
        "--dtype",
        "float32",
        "--device",
        "cpu",
    )
    result = cli("tune", "--providers", "linear", *shapes, "--json", str(file))
    assert (
        result.exit_code == 2
        and "the measurements before that are stored: linear 8x16x32 float32: RuntimeError: CUDA" in result.stderr
    )
    assert list(FILES.read(file)) == [LABEL]


def test_times_can_be_written_to_a_file_instead_of_the_cache(cli, slow, tmp_path, cache):
    file = tmp_path / "here" / "provider_speed.json"
    result = cli(
        "tune",
        "--providers",
        "linear",
        "--shape",
        "4x16x32",
        "--dtype",
        "float32",
        "--json",
        str(file),
        "--device",
        "cpu",
    )
    assert result.exit_code == 0, result.output
    assert list(FILES.read(file)) == [LABEL] and not cache.exists()


def test_running_out_of_time_is_reported(cli, slow, tmp_path):
    result = cli("tune", "--providers", "linear", "--device", "cpu", "--minutes", "0")
    assert result.exit_code == 0 and f"no time for {len(TIMED['linear'][0].sizes)} calls" in result.stdout


def test_ops_with_a_single_implementation_are_reported(cli, cache):
    result = cli("tune", "--providers", "linear", "--shape", "4x16x32", "--device", "cpu")
    assert "nothing to store: no op has two implementations here" in result.stdout and not cache.exists()


def test_list_names_the_file_and_clear_removes_it(cli, monkeypatch):
    chip = speed_files.chip_of("cpu")
    provider_speed.store(chip, {LABEL: {"a": 1.0}, LABEL.replace("4", "8"): {"a": 1.0}}, {})
    monkeypatch.setattr("opmux.kernels.lib.config.this_chip", lambda: chip)
    assert f"times of implementations: {FILES.path(chip)}, 2 classes" in cli("tune", "--list").stdout
    assert provider_speed.measured(chip)
    cli("tune", "--clear")
    assert not provider_speed.measured(chip)


def test_calls_of_one_class_are_averaged():
    measurements = ("x[m<=4]", {"a": 1.0, "b": 5.0}), ("x[m<=4]", {"a": 2.0, "c": 3.0}), ("y[m<=4]", {"a": 1.0})
    *rows, alone = (providers.CallTimes(label, times, {}) for label, times in measurements)
    assert providers.merged([*rows, alone]) == {"x[m<=4]": {"a": 1.5, "b": 5.0, "c": 3.0}}


@pytest.mark.parametrize("op, n", CASES, ids=lambda v: str(v))
def test_the_listed_calls_are_valid(op, n):
    cases: Cases = TIMED[op][n]
    spec = specs.find(f"opmux::{op}")
    assert all(len(sizes) == len(cases.names.split()) for sizes in cases.sizes)
    for options in cases.options:
        args = cases.make(torch.bfloat16, CPU, *cases.read(op, SMALL[cases.names]), **options)
        assert len(args) == len(spec.names) and len(CLASSES[spec.key].of(*args)) == len(CLASSES[spec.key].names)
        spec.check(args, {})


def test_every_op_with_classes_is_timed_or_listed_here():
    """The listed ops are not timed, because they compute the same matmuls as a timed op."""
    assert set(CLASSES) - {f"opmux::{op}" for op in TIMED} == {
        "opmux::gemm_gelu", "opmux::gemm_dgelu", "opmux::scaled_grouped_mm",
    }  # fmt: skip

"""`opmux tune`: what it tries, what it refuses to time, what it stores, and what it prints."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch

pytest.importorskip("triton")

from opmux.core import specs
from opmux.core.errors import OpmuxError
from opmux.core.registry import Origin
from opmux.kernels.lib import config, plans
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.launch import Launcher
from opmux.machine import vendors
from opmux.machine.devices import Chip
from opmux.tools import screen, tune
from opmux.tuning import tile_files
from opmux.tuning import tiles as tuning

CPU = torch.device("cpu")
CHIP = Chip("nvidia", "sm_90", "Made-up H200", "1.0")
KEY = "softmax.rows[dtype=float32 n<=64]"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    tuning.forget()
    yield tmp_path / "cache" / "tuning"
    tuning.forget()
    plans.forget()


def rows(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in f"{line} " for word in words)]


# ---- the command ----------------------------------------------------------------------------------------------------


def test_a_cpu_is_rejected_in_one_line(cli):
    result = cli("tune", "softmax", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = rows(result.stderr, "opmux: ")
    assert line.endswith(
        "softmax cannot be tuned on the CPU: its times are not those of a chip. Allowed: an accelerator, or --dry-run"
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (("softmaxx",), "unknown op 'softmaxx': did you mean 'softmax'?"),
        ((), "tune takes one of: an OP, --list, --clear, --aten, --providers, or --dry-run with --chip"),
        (
            ("--dry-run", "--chip", "acm"),
            "--chip 'acm' is not known. Allowed: sm_80, sm_90, sm_100, gfx942, or a vendor: ",
        ),
        (("softmax", "--list"), "tune takes one of: an OP, --list, --clear"),
        (("softmax", "--device", "cpu", "--chip", "sm_90"), "Add --dry-run"),
        (("softmax", "--dry-run", "--chip", "sm_1"), "--chip 'sm_1' is not known. Allowed: sm_80, sm_90"),
        (("softmax", "--dry-run", "--shape", "wide"), "--shape 'wide' cannot be read"),
        (("softmax", "--dry-run", "--dtype", "int4"), "--dtype 'int4' is not allowed here"),
        (("softmax", "--dry-run", "--dtype", "int32", "--shape", "5x64"), "softmax: x must be float16"),
    ],
)
def test_invalid_options_give_one_line(cli, words, message):
    result = cli("tune", *words)
    assert result.exit_code == 2
    (line,) = rows(result.stderr, "opmux: ")
    assert message in line


def test_a_dry_run_lists_configs_and_runs_nothing(cli, monkeypatch, cache):
    stock = Launcher.__call__
    shapes = ("--shape", "64x1000", "--shape", "64x4096")
    result = cli("tune", "softmax", "--dry-run", "--chip", "sm_90", "--device", "cpu", *shapes, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert Launcher.__call__ is stock
    assert rows(result.stdout, "softmax 64x1000 float32, as on sm_90: nothing is run")
    assert rows(result.stdout, "softmax.rows[dtype=float32 n<=1024]")
    assert rows(result.stdout, "softmax.rows[dtype=float32 n<=4096]")
    (present, *_) = rows(result.stdout, "BLOCK_N=1024")
    assert present.split()[0] == "*" and present.split()[-1] == "default"
    assert rows(result.stdout, "threads=512 stages=2 BLOCK_M=8 BLOCK_N=1024", "tune_configs")
    assert not cache.exists()


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A vendor with tile files; `acme(text)` replaces its tune_configs.yaml."""
    package = tmp_path / "acme_tiles"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from opmux.backends import VendorInfoBase\nvendor_info = VendorInfoBase('acme', 'acm', 'acme-smi')\n"
    )
    (package / "heuristics_config_utils.py").write_text("HEURISTICS_CONFIGS = {'softmax.rows': {'num_warps': 8}}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    vendors.register_plugin(importlib.import_module("acme_tiles"), Origin("acme"))

    def write(text: str) -> None:
        (package / "tune_configs.yaml").write_text(text)
        tile_files._trials.cache_clear()
        tile_files._rules.cache_clear()

    yield write
    vendors.forget("acme")
    for name in [n for n in sys.modules if n.partition(".")[0] == "acme_tiles"]:
        del sys.modules[name]
    tile_files._trials.cache_clear()
    tile_files._rules.cache_clear()


def test_a_dry_run_works_for_a_vendors_chip(cli, acme):
    """No device is needed. Without an op it lists all configs of the vendor's files, with an op the configs for that
    op.
    """
    acme("softmax.rows:\n  - {META: {BLOCK_M: 2}, num_warps: 16}\n  - {num_warps: 4}\n")
    result = cli("tune", "--dry-run", "--chip", "acme")
    assert result.exit_code == 0, result.output
    assert rows(result.stdout, "would try on acme: nothing is run")
    assert rows(result.stdout, "softmax.rows", "BLOCK_M=2 num_warps=16", "acme_tiles") and rows(
        result.stdout, " num_warps=4 "
    )
    assert rows(result.stdout, f"2 configs for 1 of {len(config.tunables)} tunables")
    result = cli("tune", "softmax", "--dry-run", "--chip", "acme", "--shape", "8x64", "--dtype", "float32")
    assert rows(result.stdout, "softmax 8x64 float32, as on a chip of acme: nothing is run")
    assert rows(result.stdout, "*", "threads=256", "heuristics") and rows(result.stdout, "threads=512", "tune_configs")
    result = cli("tune", "--list", "--chip", "acme")
    assert rows(result.stdout, " softmax.rows ", "acme_tiles: num_warps", "acme_tiles: 2")


def test_a_dry_run_rejects_configs_that_the_kernel_does_not_allow(cli, acme):
    acme("softmax.rows:\n  - {num_warps: 7}\n")
    result = cli("tune", "--dry-run", "--chip", "acme")
    assert result.exit_code == 2
    assert re.search(r"tune_configs\.yaml: softmax\.rows: num_warps = 7\. Allowed: a power of two", result.stderr)


def test_list_names_the_source_of_each_tunables_values(cli):
    result = cli("tune", "--list", "--chip", "sm_80")
    assert result.exit_code == 0, result.output
    assert "tiles on sm_80" in result.stdout
    for name in config.tunables:
        assert rows(result.stdout, f" {name} ")
    (line,) = rows(result.stdout, " softmax.cooperative ")
    assert "_nvidia/ampere: STAGES" in line
    (line,) = rows(result.stdout, " softmax.pieces ")
    assert "_nvidia: 12" in line
    assert not rows(result.stdout, "is no tunable")


def test_clear_removes_the_cache_file(cli, cache):
    assert "nothing to remove" in cli("tune", "--clear").stdout
    tuning.store(CHIP, {KEY: tuning.Entry({"threads": 128}, 1.0, 2.0, "softmax", "")})
    assert f"1 files removed from {cache}" in cli("tune", "--clear").stdout
    assert tuning.entries(CHIP) == {}


def test_doctor_shows_the_cache(cli, cache):
    assert rows(cli("doctor").stdout, "tuning", "0 entries for this chip in", str(cache))


# ---- measuring, with a fake clock -----------------------------------------------------------------------------------


@pytest.fixture
def case(interpreted):
    return tune.case_of("softmax", "8x64", "float32", CPU, anywhere=True)


def clock(best: dict[str, int], fast: float = 0.5, slow: float = 1.0):
    """A fake timer: returns `fast` if the tiles that are being tried have the values of `best`, else `slow`."""

    def bench(fn) -> float:
        plans.forget()
        with config.asked() as calls:
            fn()
        flat = calls[0].choice.tiles.flat()
        return fast if all(flat[k] == v for k, v in best.items()) else slow

    return bench


@pytest.fixture
def on_the_chip():
    with config.as_on(CHIP):
        yield


@pytest.mark.usefixtures("on_the_chip")
def test_the_fastest_tiles_are_stored_and_used(case, monkeypatch, capsys):
    monkeypatch.setattr(tune, "median_ms", clock({"BLOCK_M": 8, "threads": 256}))
    tune._tune_case(screen.out(), case, CHIP)
    output = capsys.readouterr().out
    assert rows(output, "threads=256 stages=2 BLOCK_M=8 BLOCK_N=64: 1.0000 ms -> 0.5000 ms, 2.000x as fast")
    assert rows(output, f"stored in {tuning.path(CHIP)}")
    assert list(tuning.entries(CHIP)) == [KEY]
    stored = tuning.entries(CHIP)[KEY]
    assert (stored.op, stored.sample, stored.ms, stored.before_ms) == ("softmax", "softmax 8x64 float32", 0.5, 1.0)
    assert stored.tiles == {"threads": 256, "BLOCK_M": 8}  # only the values that differ from the default
    (planned,) = case.plan()
    assert planned.choice.source == "cache" and planned.choice.tiles == Tiles(256, BLOCK_M=8, BLOCK_N=64)
    assert case.disagreement() == ""
    # tuning again changes nothing, because the stored tiles are the best
    tune._tune_case(screen.out(), case, CHIP)
    assert rows(capsys.readouterr().out, "the current tiles are kept: the best others take 2.000x")
    assert tuning.entries(CHIP)[KEY] == stored


@pytest.mark.usefixtures("on_the_chip")
def test_a_gain_below_2_percent_is_ignored(case, monkeypatch, capsys):
    monkeypatch.setattr(tune, "median_ms", clock({"BLOCK_M": 8}, fast=0.985))
    tune._tune_case(screen.out(), case, CHIP)
    assert tuning.entries(CHIP) == {}
    assert rows(
        capsys.readouterr().out, "the current tiles are kept: the best others take 0.985x their time, not under 0.98x"
    )


@pytest.mark.usefixtures("on_the_chip")
def test_a_wrong_result_is_never_timed(case, monkeypatch):
    """Tiles with wrong results might be the fastest."""
    stock = case.call

    def wrong_for_eight(*args):
        with config.asked() as calls:
            plans.forget()
            y = stock(*args)
        return y * 1.01 if calls[0].choice.tiles["BLOCK_M"] == 8 else y

    case.call = wrong_for_eight
    timed = []
    out = tune.Tuner(case, CHIP, lambda fn: timed.append(config._trying[KEY]["BLOCK_M"]) or 1.0).tune(case.plan()[0])
    eights = [t for t in out.trials if t.tiles["BLOCK_M"] == 8]
    assert len(eights) == 4 and all(t.ms is None and "y is not the reference's" in t.reason for t in eights)
    assert timed and 8 not in timed


@pytest.mark.usefixtures("on_the_chip")
def test_tiles_that_do_not_compile_are_skipped_with_the_reason(case, monkeypatch, capsys):
    stock = Launcher.__call__

    def launch(self, grid, args, kernel_args):
        if kernel_args.threads == 1024:
            raise RuntimeError("out of resource: shared memory,\n Required: 300000")
        return stock(self, grid, args, kernel_args)

    monkeypatch.setattr(Launcher, "__call__", launch)
    monkeypatch.setattr(tune, "median_ms", clock({"BLOCK_M": 2, "threads": 128}))
    tune._tune_case(screen.out(), case, CHIP)
    assert rows(
        capsys.readouterr().out, "skipped threads=1024", "RuntimeError: out of resource: shared memory, Required"
    )
    assert tuning.entries(CHIP)[KEY].tiles == {"BLOCK_M": 2}


@pytest.mark.usefixtures("on_the_chip")
def test_a_kernel_whose_current_tiles_are_wrong_is_not_tuned(case):
    stock = case.call
    case.call = lambda *args: stock(*args) + 1
    with pytest.raises(OpmuxError, match=r"softmax.rows.* with its current tiles cannot be timed: y is not"):
        tune.Tuner(case, CHIP, lambda fn: 1.0).tune(case.plan()[0])


@pytest.mark.usefixtures("on_the_chip")
def test_a_lost_device_ends_tuning(case, monkeypatch):
    """After an illegal memory access every call fails, so further times would be meaningless."""
    monkeypatch.setattr(
        tune.TuneCase, "disagreement", lambda self: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal"))
    )
    monkeypatch.setattr(
        torch, "zeros", lambda *args, **more: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal"))
    )
    with pytest.raises(tune.DeviceLost, match="the device is lost after threads="):
        tune.Tuner(case, CHIP, lambda fn: 1.0).tune(case.plan()[0])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted", "on_the_chip")
def test_each_tunable_of_a_plan_is_tuned_with_the_best_tiles_of_the_others():
    case = tune.case_of("rms_norm_bwd", "8x64", "float32", CPU, anywhere=True)
    first, *_, last = case.plan()
    tuner = tune.Tuner(case, CHIP, clock({"BLOCK_M": 2}))
    assert tuner.tune(first).best.tiles["BLOCK_M"] == 2
    used = []
    tuner.bench = lambda fn: used.append(dict(config._trying)) or 1.0
    tuner.tune(last)
    assert {first.key, last.key} == set(used[0]) and used[0][first.key]["BLOCK_M"] == 2


def test_without_vendor_files_only_the_default_is_tried(case):
    (planned,) = case.plan()
    assert [t.source for t in tune.trials_for(planned, None)] == ["default"]
    assert [t.source for t in tune.trials_for(planned, Chip("bolt", None, "Bolt"))] == ["default"]


def test_an_op_that_cannot_be_tuned_raises_with_the_reason(monkeypatch):
    no_kernel = next((s.name for s in specs if s.space == "tex"), None)
    if no_kernel is not None:
        with pytest.raises(OpmuxError):
            tune.case_of(no_kernel, "8x64", "float32", CPU, anywhere=False)
    with pytest.raises(OpmuxError, match=r"softmax has no kernel of ours .*: device: runs on accelerators"):
        tune.case_of("softmax", "8x64", "float32", CPU, anywhere=False)


@pytest.mark.gpu
def test_tuning_works_on_the_device(cli):
    result = cli("tune", "softmax", "--shape", "512x1024", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert rows(result.stdout, "softmax.rows[dtype=float32 n<=1024]")
    assert rows(result.stdout, "the current tiles are kept") or rows(result.stdout, "stored in")

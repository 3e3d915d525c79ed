"""`opmux demo`: the two training runs agree, and wrong results are detected."""

import io
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import opmux
from opmux.core import BackendImplKind, OpImpl
from opmux.tools import demo, demo_view, llama

SRC = Path(__file__).parents[2] / "src"
CPU = ("--device", "cpu")


def row(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{start} ")]
    return line.split()


def test_the_two_runs_agree(cli):
    result = cli("demo", "--steps", "3", *CPU)
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "rms_norm")[:3] == ["rms_norm", "reference.torch", "reference"]
    calls = {"rms_norm": 3, "add_rms_norm": 12, "silu_mul": 6, "rope_qk": 6}
    for name, number in calls.items():
        assert row(result.stdout, name)[-2:] == [str(number), str(number // 3)]
        assert row(result.stdout, f"{name}_bwd")[-2:] == [str(number), str(number // 3)]
    plain, ours = row(result.stdout, "plain torch"), row(result.stdout, "opmux  ")
    assert math.isclose(float(plain[2]), float(ours[1]), rel_tol=1e-4)
    assert len(plain) == len(ours) + 1 and "n/a" not in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("opmux demo: 3 steps on cpu in float32, opmux and plain torch agree: ")
    assert result.stdout.count("\n- ") == 3 and "the point here is equal losses.\n" in result.stdout
    assert all(f"  {command} " in result.stdout for command, _ in demo_view.COMMANDS)
    assert "step 1/3: loss: plain torch 5." in result.stderr and "step 3/3: " in result.stderr


def test_float64_agrees_to_the_last_digits(cli):
    result = cli("demo", "--steps", "2", "--dtype", "fp64", "--seed", "5", *CPU)
    assert result.exit_code == 0, result.output
    assert "1e-09 allowed" in result.stdout.splitlines()[-1]


WRONG = """
import sys
from opmux.core import BackendImplKind, OpImpl, get_default_manager
from opmux.specs import norm
from opmux.tools.cli import main

def a_little_off(dy, ds, s, weight, rstd, offset):
    dx, dresidual, dweight = norm.add_rms_norm_bwd.reference(dy, ds, s, weight, rstd, offset)
    return dx, dresidual, dweight * 1.01

impl = OpImpl("add_rms_norm_bwd", "vendor.wrong", BackendImplKind.VENDOR, "wrong", a_little_off)
get_default_manager().registry.register_impl(impl)
sys.argv = ["opmux", "demo", "--steps", "2", "--device", "cpu"]
main()
"""


def test_a_wrong_gradient_is_found(shell, monkeypatch):
    """The test scales one gradient. Adam compensates for the factor, so the losses alone would agree."""
    monkeypatch.setenv("OPMUX_DENY_VENDORS", "cpu")
    result = shell(script=WRONG, OPMUX_LOG_LEVEL="INFO")
    assert result.returncode == 1, result.stderr
    assert row(result.stdout, "add_rms_norm_bwd")[1] == "vendor.wrong"
    assert "INFO] Op 'add_rms_norm_bwd' using 'vendor.wrong'" in result.stderr, result.stderr
    assert "opmux and plain torch DISAGREE: 1.0e-02 apart" in result.stdout.splitlines()[-1]


def test_a_wrong_forward_is_found(cli, register):
    register(OpImpl("silu_mul", "vendor.wrong", BackendImplKind.VENDOR, "wrong", lambda a, b: a * b))
    result = cli("demo", "--steps", "2", *CPU)
    assert result.exit_code == 1
    assert "DISAGREE" in row(result.stdout, "losses, over 2 steps")


def test_nan_counts_as_disagreement(cli, register):
    nan = lambda a, b: torch.full_like(a, math.nan)
    register(OpImpl("silu_mul", "vendor.nan", BackendImplKind.VENDOR, "nan", nan))
    assert cli("demo", "--steps", "1", *CPU).exit_code == 1


def test_an_impl_that_fails_is_replaced_and_reported(cli, register):
    def fails(a, b):
        raise RuntimeError("out of order")

    register(OpImpl("silu_mul", "vendor.acme", BackendImplKind.VENDOR, "acme", fails))
    result = cli("demo", "--steps", "2", *CPU)
    assert result.exit_code == 0
    assert row(result.stdout, "silu_mul")[1] == "reference.torch"
    assert "skipped: silu_mul: 'vendor.acme'" in result.stdout
    assert "RuntimeError: out of order" in result.stdout


@pytest.mark.parametrize("words", [("--dtype", "int8"), ("--device", "tpu")])
def test_an_invalid_option_gives_one_line(cli, words):
    result = cli("demo", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "Allowed: " in result.stderr


# ---- helper functions -----------------------------------------------------------------------------------------------


def test_largest_treats_nan_as_infinity():
    assert demo.largest([0.0, 3.0, 1.0]) == 3.0
    assert demo.largest([0.0, math.nan, 1.0]) == math.inf
    assert demo.largest([math.inf]) == math.inf


def test_gaps_compare_losses_and_gradients():
    assert demo.Gaps(1e-6, 1e-6, 1e-4).agree
    assert not demo.Gaps(1e-3, 0.0, 1e-4).agree
    assert not demo.Gaps(0.0, 1e-3, 1e-4).agree


def session(steps: int, seconds: float = 100.0) -> demo.Session:
    counted = [demo.Counted(getattr(opmux.ops, n)) for n in ("rms_norm", "add_rms_norm", "silu_mul", "rope_qk")]
    end = time.monotonic() + seconds
    return demo.Session(llama.LlamaSize(), torch.device("cpu"), torch.float32, 0, steps, end, counted)


def trained(steps: int) -> demo.Run:
    of = session(steps)
    demo.train(of, lambda: None)
    return of.plain


def test_training_is_deterministic_and_learns():
    once, again = trained(12), trained(12)
    assert once.losses == again.losses
    assert once.losses[-1] < 0.75 * once.losses[0]
    assert abs(once.losses[0] - math.log(256)) < 0.5  # an untrained model gives all 256 classes the same probability


def test_attention_is_causal():
    size = llama.LlamaSize()
    model = llama.build(size, llama.PLAIN, 0, torch.device("cpu"), torch.float64)
    tokens = llama.batches(size, 1, 0)[0, :1, :-1]
    later = tokens.clone()
    later[:, 40:] = 7
    before, after = model(tokens), model(later)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_training_stops_after_its_time():
    of = session(10_000, seconds=0.0)
    demo.train(of, lambda: None)
    assert of.done == len(of.plain.losses) == 1


def test_the_steps_of_the_two_runs_alternate(monkeypatch):
    names, step = [], demo.Trainer.step
    monkeypatch.setattr(demo.Trainer, "step", lambda self, batch: (names.append(self.record.name), step(self, batch)))
    demo.train(session(3), lambda: None)
    assert names == ["plain torch", "opmux", "opmux", "plain torch", "plain torch", "opmux"]


def test_all_times_and_speeds_come_from_the_median_step():
    of = session(9)
    of.plain.seconds, of.ours.seconds = [9.0] * demo.WARM + [2.0, 4.0, 90.0], [1.0] * demo.WARM + [2.0, 1.0, 30.0]
    of.plain.losses = of.ours.losses = [1.0] * 8
    table = demo_view.runs(of)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert cells["median ms"] == ["4000.0", "2000.0"] and cells["steps/s"] == ["0.2", "0.5"]
    assert of.speed()[0] == 2.0 and of.speed()[1] > 0
    console = Console(width=120, file=io.StringIO())
    demo_view._line(console, of)
    assert "median ms of a step: 4000.0, 2000.0" in console.file.getvalue()


def test_the_speed_is_the_ratio_of_the_median_times():
    of = session(9)
    of.plain.seconds, of.ours.seconds = [9.0] * demo.WARM + [2.0, 4.0, 6.0], [1.0] * demo.WARM + [1.0, 2.0, 3.0]
    assert of.speed() == (2.0, 0.0)


def test_the_text_is_long_and_the_same_each_time():
    text = llama.written()
    assert len(text) == llama.LENGTH >= 30_000 and text.isascii() and text == llama.written()
    assert len(set(text.split(". "))) > 400


# ---- the view and the page ------------------------------------------------------------------------------------------


def test_a_chart_shows_both_curves_where_they_are():
    of = session(9)
    of.plain.losses, of.ours.losses = [4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 4.0]
    lines = demo_view.chart(of, 40, 4).plain.splitlines()
    assert [len(line) for line in lines[:4]] == [40] * 4
    assert lines[0].startswith(" 4.000") and lines[3].startswith(" 1.000")
    assert lines[3].rstrip() != lines[3][:8].rstrip()  # plain torch's last loss is at the bottom
    assert lines[0][-1] != " " and lines[3][-1] != " "  # and ours at the top


@pytest.mark.parametrize("losses", [[], [2.0], [2.0, 2.0], [math.nan, 2.0, math.inf]])
def test_a_chart_of_unusual_losses(losses):
    of = session(9)
    of.plain.losses = of.ours.losses = losses
    assert demo_view.chart(of, 40, 4).plain.count("\n") == 5


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_fits_the_terminal(width):
    of = session(2)
    demo.train(of, lambda: None)
    console = Console(width=width, height=30, file=io.StringIO(), force_terminal=True, color_system=None)
    view = demo_view.LiveView(of)
    for _ in of.counted:
        shown = view.render(console)
    console.print(shown)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and sum("step 2 " in line for line in lines) == 1
    assert "first loss" in console.file.getvalue() and "steps/s" in console.file.getvalue()
    assert "reference.torch" in console.file.getvalue() and len(lines) <= 36


def test_the_page_loads_nothing_and_shows_both_curves(cli, tmp_path):
    result = cli("demo", "--steps", "2", *CPU, "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert result.exit_code == 0 and page.count("<polyline") == 2 and "prefers-color-scheme:dark" in page
    assert not re.search(r"(src|href|url)\s*[=(]|https?://|@import", page)
    assert "add_rms_norm_bwd" in page and "opmux and plain torch agree" in page and "<code>opmux compare" in page


# ---- on a terminal --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_log_lines_and_the_progress_bar_do_not_mix(tmp_path):
    ours, theirs = os.openpty()
    env = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "160", "TERM": "xterm", "OPMUX_LOG_LEVEL": "INFO"}
    command = [sys.executable, "-m", "opmux", "demo", "--steps", "2", *CPU]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                output += (more := os.read(ours, 4096))
            except OSError:  # Linux reports the closed end of a terminal in this way
                break
            if not more:
                break
        printed = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r", "\n")
    assert "2/2 loss" in text
    (line,) = [line.strip() for line in text.splitlines() if "Op 'silu_mul_bwd' using" in line]
    assert re.fullmatch(r"\[opmux \w+\.py:\d+ INFO\] Op 'silu_mul_bwd' using '[\w.]+' \(kind=\w+, vendor=\w+\)", line)
    assert "INFO" not in printed  # stdout only has the report

"""`opmux`, `opmux list` and `opmux explain`: their output, and their errors."""

import collections
import io
import json
import re

import pytest
import torch
import typer

import opmux
from opmux.core import BackendImplKind, OpImpl, knobs, specs
from opmux.faces.aten import engine
from opmux.machine import vendors
from opmux.machine.devices import Chip
from opmux.tools import cli as cli_module
from opmux.tools import completion, doctor, explain, listing
from opmux.tools.explain import in_words, takes_shape

QUICK = """
import sys
from typer.testing import CliRunner
from opmux.tools.cli import app
for words in (["--help"], ["--version"], ["explain", "--help"]):
    done = CliRunner().invoke(app, words)
    print(done.exit_code, "torch" in sys.modules, done.stdout.split()[-1] if words == ["--version"] else "")
"""


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().split(" ")[0] == start]


# ---- the command itself ---------------------------------------------------------------------------------------------


def test_help_and_version_work_without_torch(shell):
    result = shell(script=QUICK, bare=True)
    assert result.stdout.splitlines() == ["0 False ", f"0 False {opmux.__version__}", "0 False "], result.stderr


def test_help_names_every_command(cli):
    result = cli("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("list", "explain", "doctor", "demo"))


COMMANDS = typer.main.get_command(cli_module.app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_defaults_and_an_example(cli, monkeypatch, name):
    """rich takes a word in square brackets as markup and drops it, as it did with `[default: ...]`."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(cli(name, "--help").stdout.split())
    for parameter in COMMANDS[name].params:
        assert "[" not in (getattr(parameter, "help", "") or "")
        if isinstance(parameter.show_default, str):
            assert f"[default: ({parameter.show_default})]" in shown
    assert name in ("doctor", "build") or f" opmux {name} " in shown.partition("Example")[2]


def test_the_device_of_a_command_has_a_default(cli):
    assert "[default: (this machine's)]" in " ".join(cli("explain", "--help").stdout.split())


def test_an_unreadable_variable_gives_one_line(cli, monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", "fastest")
    for words in (("list",), ("explain", "rms_norm")):
        result = cli(*words)
        assert result.exit_code == 2
        assert result.stdout == ""
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("opmux: ")]
        assert line.startswith("opmux: TE_FL_PREFER='fastest' cannot be read")


# ---- list -----------------------------------------------------------------------------------------------------------


def test_list_writes_json(shell):
    result = shell("list", "--json", OPMUX_LOG_LEVEL="INFO")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)  # stdout only contains JSON ...
    assert "INFO] Registered impl_ids: [" in result.stderr  # ... and log lines still go to stderr
    ops = {o["key"]: o for o in data["ops"]}
    assert set(ops) == {s.key for s in specs}
    norm = ops["opmux::rms_norm"]
    assert (norm["op"], norm["family"], norm["backward"]) == ("rms_norm", "norm", "rms_norm_bwd")
    assert norm["signature"].startswith("rms_norm(x: ")
    assert norm["results"] == ["y", "rstd"]
    reference = next(i for i in norm["impls"] if i["impl_id"] == "reference.torch")
    assert (reference["kind"], reference["vendor"]) == ("reference", None)
    assert reference["origin"]["plugin"] == "opmux"
    assert norm["chosen"] == next(i["impl_id"] for i in norm["impls"] if i["status"] == "chosen")
    assert data["policy"] == "prefer=opmux"


def test_commands_log_nothing_by_default(cli, shell):
    for words in (["list", "--op", "silu"], ["explain", "silu"], ["tune", "--list"], ["doctor"]):
        result = cli(*words)
        assert (result.exit_code, result.stderr) == (0, ""), words
    result = shell("list", "--op", "silu")
    assert (result.returncode, result.stderr) == (0, "")


def test_list_has_one_line_per_op_grouped_by_family(cli):
    result = cli("list", "*")
    assert result.exit_code == 0
    for family in specs.families:
        number = sum(s.family == family for s in specs)
        assert f"{family}: {number} op{'' if number == 1 else 's'}" in result.stdout
    starts = collections.Counter(line.strip().split(" ")[0] for line in result.stdout.splitlines())
    assert {spec.name: starts[spec.name] for spec in specs} == {spec.name: 1 for spec in specs}
    assert "x, weight [eps, offset, casting] -> y rstd" in result.stdout
    assert "…" not in result.stdout


def test_list_marks_the_implementation_that_runs(cli, monkeypatch, register):
    register(OpImpl("acme_magic", "vendor.acme", BackendImplKind.VENDOR, "acme", lambda x: x))
    register(OpImpl("acme_magic", "reference.torch", BackendImplKind.REFERENCE, None, lambda x: x))

    def shown() -> str:
        (line,) = lines(cli("list", "--op", "acme_magic").stdout, "acme_magic")
        return line

    assert re.search(r"\*vendor\.acme \(from code .*\)  reference\.torch", shown())
    monkeypatch.setenv("OPMUX_PREFER", "reference")
    assert re.search(r"\*reference\.torch .*  vendor\.acme", shown())
    monkeypatch.setenv("OPMUX_DENY_VENDORS", "acme")
    assert re.search(r"\*reference\.torch .*  vendor\.acme \(.*no: policy\)", shown())


def test_list_filters_by_family_and_op(cli):
    result = cli("list", "--family", "norm", "--op", "*_bwd", "--json")
    names = [o["op"] for o in json.loads(result.stdout)["ops"]]
    assert "rms_norm_bwd" in names
    assert all(n.endswith("_bwd") for n in names)
    assert not any("silu" in n for n in names)
    by_key = json.loads(cli("list", "--op", "tex::*", "--json").stdout)["ops"]
    assert {o["key"].partition("::")[0] for o in by_key} == {"tex"}


def test_list_takes_families_ops_and_globs(cli):
    names = lambda *words: {o["op"] for o in json.loads(cli("list", *words, "--json").stdout)["ops"]}
    norm = {s.name for s in specs if s.family == "norm"}
    assert names("norm") == names("family:norm") == names("--family", "norm") == norm
    assert names("rms_norm", "softmax_bwd") == {"rms_norm", "softmax_bwd"}
    assert names("rms_norm*") == {n for n in norm if n.startswith("rms_norm")}
    assert names("tex_n*") == {s.name for s in specs if s.family in ("tex_norm", "tex_nvfp4")}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch, capfd):
    """Return what `show` writes to a terminal of 80 x 24, and what it sends to the pager."""

    def of(show, pager="cat"):
        screen = Terminal()
        settings = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb", "PAGER": pager}
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            patch.setattr("sys.stdout", screen)
            show()
        return screen.getvalue(), capfd.readouterr().out

    return of


def test_list_fits_a_screen(terminal):
    screen, paged = terminal(lambda: listing.run([], None, None, False))
    assert paged == ""
    assert len(screen.splitlines()) < 24 and max(map(len, screen.splitlines())) <= 80
    assert all(re.search(rf"\b{family}\b", screen) for family in specs.families)


def test_tables_do_not_break_names_at_80_columns(terminal):
    for show in (
        lambda: listing.run(["norm", "tex_softmax", "random"], None, None, False),
        lambda: explain.run("rms_norm", "float32", None, None, False, "nvidia:sm_90"),
    ):
        screen, _ = terminal(show)
        assert max(map(len, screen.splitlines())) <= 80
        words = set(screen.replace("*", "").split())
        assert {"default.flagos", "reference.torch"} <= words
        if "tex_softmax" in screen:
            assert {s.name for s in specs if s.family in ("norm", "tex_softmax", "random")} <= words
    screen, _ = terminal(lambda: doctor.run(False))
    assert max(map(len, screen.splitlines())) <= 80
    assert {knob.name for knob in knobs.all_knobs()} <= set(screen.split())


def count(family):
    return sum(s.family == family for s in specs)


def test_output_longer_than_the_terminal_goes_to_a_pager(terminal):
    screen, paged = terminal(lambda: listing.run(["pointwise"], None, None, False), "sed s/^/paged:/")
    assert screen == "" and paged.startswith(f"paged:pointwise: {count('pointwise')} ops")
    screen, paged = terminal(lambda: listing.run(["scan"], None, None, False), "no-such-pager")
    assert paged == "" and f"scan: {count('scan')} ops" in screen


COMPLETE = """
import os, sys
os.environ |= {"_OPMUX_COMPLETE": "complete_bash", "COMP_WORDS": sys.argv[1], "COMP_CWORD": sys.argv[2]}
sys.argv[1:] = []
from opmux.tools import cli
try:
    cli.main()
finally:
    print("torch" in sys.modules)
"""


def test_the_shell_completes_commands_ops_and_families(shell):
    assert shell("opmux exp", "1", script=COMPLETE, bare=True).stdout.split() == ["explain", "False"]
    result = shell("opmux list rms_norm_f", "2", script=COMPLETE, bare=True)
    assert result.stdout.split() == ["rms_norm_fp8", "rms_norm_fp8_blocks_into", "False"]
    assert completion.families("") == sorted(specs.families)
    known = {s.name if s.space != "tex" else f"tex::{s.name}" for s in specs if s.space in ("opmux", "tex")}
    assert set(completion.ops("")) >= {n for n in known if n.startswith(("tex::rmsnorm", "rms_norm", "softmax"))}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("norms",), "opmux: unknown op, family or vendor 'norms': did you mean 'norm'?"),
        (("nvida",), "opmux: unknown op, family or vendor 'nvida': did you mean 'nvidia'?"),
        (("--family", "norms"), "opmux: unknown family 'norms': did you mean 'norm'?"),
        (("--op", "rms_nrom"), "opmux: unknown op 'rms_nrom': did you mean 'rms_norm'?"),
    ],
)
def test_list_rejects_unknown_names_and_suggests_the_nearest(cli, words, message):
    result = cli("list", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.splitlines()


def test_list_shows_the_implementations_of_a_vendor(cli):
    result = cli("list", "nvidia")
    assert result.exit_code == 0 and result.stdout.startswith("nvidia: device type cuda, ")
    (line,) = [
        words for words in map(str.split, result.stdout.splitlines()) if words[:2] == ["gemm", "vendor.nvidia.cublas"]
    ]
    assert line[-1].startswith("cublas.py:")
    data = json.loads(cli("list", "nvidia", "--json").stdout)
    impls = {(i["op"], i["impl_id"]) for i in data["implementations"]}
    assert {("gemm", "vendor.nvidia.cublas"), ("attention", "default.flagos.nvidia.hopper")} <= impls
    assert data["device"] == "cuda" and f"{len(impls)} implementations; " in result.stdout
    assert "enflame has no implementations of its own" in cli("list", "enflame").stdout


def test_list_shows_registered_implementations_of_a_vendor(cli, register):
    register(
        OpImpl("opmux::silu_mul", "vendor.ascend", BackendImplKind.VENDOR, "ascend", lambda a, b: a, min_arch="a2")
    )
    (line,) = [line for line in cli("list", "Ascend").stdout.splitlines() if "vendor.ascend" in line]
    assert line.split()[:5] == ["silu_mul", "vendor.ascend", "a2", "or", "newer"]


def test_piped_output_is_as_wide_as_columns_says(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert 50 < max(map(len, cli("list", "norm").stdout.splitlines())) <= 60
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, cli("list", "norm").stdout.splitlines())) > 100


def test_a_pipe_gets_a_row_as_one_line_without_spaces_at_its_end(cli):
    output = cli("list", "norm").stdout.splitlines()
    norm = {s.name for s in specs if s.family == "norm"}
    assert norm == {line.split()[0] for line in output if "reference.torch" in line}
    assert not any(line.endswith(" ") for line in output)
    (rule,) = (line for line in output if set(line) <= {" ", "─", "-"} and line)
    assert len(rule) == 79


def test_ops_without_a_spec_are_listed(cli, register):
    register(OpImpl("acme_magic", "magic", BackendImplKind.VENDOR, "acme", lambda x: x))
    assert any(line.split() == ["(no", "spec)", "1", "acme_magic"] for line in cli("list").stdout.splitlines())
    result = cli("list", "acme_*")
    assert "(no spec): 1 op" in [line.strip() for line in result.stdout.splitlines()]
    (line,) = lines(result.stdout, "acme_magic")
    assert "*magic (vendor acme, from code" in line
    assert __file__ in line  # output to a pipe is not cut off


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_reports_what_dispatch_decides(cli):
    result = cli("explain", "rms_norm", "--shape", "3x40", "--dtype", "bf16", "--device", "cpu", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["arguments"]["x"] == "bfloat16[3x40]"
    assert data["arguments"]["weight"] == "bfloat16[40]"
    report = explain_of("rms_norm", torch.zeros(3, 40, dtype=torch.bfloat16), torch.zeros(40, dtype=torch.bfloat16))
    assert data["chosen"] == report.chosen.impl_id
    assert [v["impl_id"] for v in data["verdicts"]] == [v.impl.impl_id for v in report.verdicts]
    assert [v["status"] for v in data["verdicts"]] == [v.status for v in report.verdicts]


def explain_of(name, *args):
    return opmux.explain(getattr(opmux.ops, name), *args)


def test_our_kernels_are_shown_as_kind_opmux(cli, register):
    """`flagos` stays in ids and in JSON, for programs that read them."""
    register(OpImpl("opmux::rms_norm", "mine", BackendImplKind.DEFAULT, None, opmux.ops.rms_norm.reference, 7))
    (row,) = lines(cli("explain", "rms_norm", "--device", "cpu").stdout, "*")
    assert row.split()[:4] == ["*", "mine", "opmux", "7"]
    assert "*mine (opmux, from code" in cli("list", "rms_norm").stdout
    assert "-> 'mine' (kind=opmux, vendor=None)" in str(opmux.explain("rms_norm"))
    data = json.loads(cli("explain", "rms_norm", "--device", "cpu", "--json").stdout)
    assert (data["chosen"], data["verdicts"][0]["kind"], data["policy"]) == ("mine", "flagos", "prefer=opmux")
    with opmux.policy("opmux"):
        assert opmux.core.get_policy() == opmux.core.SelectionPolicy(prefer="flagos")


def test_explain_gives_the_reason_of_a_refusal(cli, register):
    wide = lambda x, *rest: "needs 128 columns" if x.shape[-1] < 128 else True
    fn = lambda x, weight, eps, offset: opmux.ops.rms_norm.reference(x, weight, eps, offset)
    register(OpImpl("opmux::rms_norm", "vendor.acme", BackendImplKind.VENDOR, "acme", fn, 7, when=wide))
    result = cli("explain", "opmux::rms_norm", "--device", "cpu")
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if "vendor.acme" in line]
    assert row.split()[:5] == ["x", "vendor.acme", "vendor", "acme", "7"]
    assert "when: needs 128 columns" in row
    assert __file__ in row
    assert "policy     prefer=opmux" in result.stdout
    wider = cli("explain", "rms_norm", "--shape", "2x128", "--device", "cpu")
    assert "runs       vendor.acme" in wider.stdout


def test_explain_works_for_an_op_without_a_spec(cli, register):
    register(OpImpl("acme_magic", "magic", BackendImplKind.VENDOR, "acme", lambda x: x, devices={"npu"}))
    bare = cli("explain", "acme_magic")
    assert bare.exit_code == 1
    assert "nothing can run" in bare.stdout
    assert "device: runs on npu" in bare.stdout
    report = json.loads(cli("explain", "acme_magic", "--shape", "2,3", "--dtype", "int8", "--json").stdout)
    assert report["arguments"] == {"argument 0": "int8[2x3]"}
    assert report["chosen"] is None


def own_shape(spec) -> tuple[int, ...]:
    """A shape that the op accepts: the shape of its first sample, or any shape if its samples have fixed shapes."""
    return spec.samples.cases[0].shape if hasattr(spec.samples, "cases") else (4, 8)


@pytest.mark.parametrize("spec", [s for s in specs if s.samples is not None], ids=lambda s: s.key)
@pytest.mark.few(60)
def test_explain_works_for_every_op(cli, spec):
    result = cli("explain", spec.key, "--shape", "x".join(map(str, own_shape(spec))), "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["key"] == spec.key
    assert (data["note"] is None) == takes_shape(spec.samples, torch.float32)


def test_explain_uses_the_first_sample_if_an_op_has_fixed_shapes(cli):
    """The samples of one op do not take a shape; those of the other op need more than a shape."""
    for name in ("tex::multi_tensor_scale", "tex::fused_multi_row_padding"):
        first = next(iter(specs.find(name).samples(torch.float32, torch.device("cpu"))))
        data = json.loads(cli("explain", name, "--shape", "3x5", "--device", "cpu", "--json").stdout)
        assert list(data["arguments"].values()) == [in_words(value) for value in first.args]
        assert data["note"] == "its samples have fixed shapes: this is the first one, not 3x5"
        assert data["note"] in cli("explain", name, "--shape", "3x5", "--device", "cpu").stdout
        assert json.loads(cli("explain", name, "--device", "cpu", "--json").stdout)["note"] is None


@pytest.mark.parametrize(("name", "shape"), [("opmux::rope_fwd", "7"), ("opmux::mxfp8_uncast", "3x5")])
def test_explain_rejects_a_shape_that_the_op_does_not_support(cli, name, shape):
    result = cli("explain", name, "--shape", shape)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"opmux: {name}: no arguments with float32 and shape {shape}: ")


def test_an_unknown_op_gives_one_line(shell):
    result = shell("explain", "rms_nrom")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == "opmux: unknown op 'rms_nrom': did you mean 'rms_norm'?"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dtype", "bfloat"), "did you mean bfloat16? Allowed: float64, float32,"),
        (("--dtype", "int8"), "x must be float16, bfloat16, float32 or float64; got int8"),
        (("--shape", "4k"), "Allowed: sizes with x between them, such as 4096x4096"),
        (("--shape", "-3"), "Allowed: sizes with x between them"),
        (("--shape", "100000x100000"), "too large"),
        (("--device", "tpu"), "Allowed: "),
        (("--device", "cpu:7"), "Allowed: cpu:0"),
        (("--device", "meta"), "is not on this machine"),
    ],
)
def test_an_invalid_option_says_what_is_allowed(cli, words, message):
    result = cli("explain", "rms_norm_bwd", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("opmux: ")
    assert message in line


# ---- explain of torch's own ops -------------------------------------------------------------------------------------

ATEN = """
import torch, opmux
x = torch.randn(4, 8)
before = opmux.explain("add.Tensor", x, x)
assert before.chosen.impl_id == "native", before
assert "torch's own kernel" in str(before)
for name in ("_softmax", "_softmax.default", "aten::_softmax"):
    assert opmux.explain(name, x, -1, False).key == "aten::_softmax.default"
try:
    opmux.explain("add.Tensr", x, x)
except opmux.core.UnknownName as error:
    print(error)
softmax = opmux.explain("_softmax", x, -1, False)
assert softmax.chosen.impl_id == "native" or "torch's own kernel runs" in softmax.remark, softmax
on = opmux.enable(mode="all")
assert torch.equal(x + x, 2 * x)
assert opmux.explain("add.Tensor", x, x).chosen.impl_id == "native"
for name in on:
    found = opmux.explain(name)
    assert found.chosen is not None and found.chosen.impl_id != "native" and found.remark == "", found
opmux.disable()
print(len(on))
"""


def test_explain_finds_torchs_ops_before_enable(shell):
    result = shell(script=ATEN)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("unknown op 'add.Tensr'")


def test_explain_works_for_torchs_ops_on_the_command_line(cli):
    result = cli("explain", "add.Tensor", "--device", "cpu")
    assert result.exit_code == 0
    assert "runs       native" in result.stdout and "native is torch's own kernel" in result.stdout


def test_explain_gives_one_verdict_for_an_op_that_is_not_enabled(cli, register):
    """Our kernel would be chosen, but the op is not enabled: only torch's own kernel is marked as running."""
    engine.choosable()  # implementations that are registered after this call must count too
    x = torch.randn(4, 8)
    fn = opmux.ops.softmax.reference
    register(
        OpImpl("opmux::softmax", "default.flagos.acme", BackendImplKind.DEFAULT, "acme", lambda x, dim: fn(x, dim))
    )
    report = opmux.explain("_softmax", x, -1, False)
    _, arrow, *verdicts = str(report).splitlines()
    assert arrow.startswith(
        "-> torch's own kernel runs, because it is not measured on cpu: opmux tune --aten does that"
    )
    assert [line for line in verdicts if line.startswith("  *")] == [line for line in verdicts if "native" in line]
    assert report.torch_runs and not any("chosen" in line for line in verdicts if "native" not in line)
    with opmux.use("_softmax", mode="all"):
        assert not opmux.explain("_softmax", x, -1, False).torch_runs
    shown = cli("explain", "_softmax", "--shape", "4x8", "--device", "cpu").stdout
    assert "runs       native" in shown and shown.count("chosen") == 1
    data = json.loads(cli("explain", "_softmax", "--shape", "4x8", "--device", "cpu", "--json").stdout)
    assert data["runs"] == "native" and [v["impl_id"] for v in data["verdicts"] if v["status"] == "chosen"] == [
        "native"
    ]


NO_TRITON = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name="triton")
sys.meta_path.insert(0, Missing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else real(name, package)
from opmux.tools.cli import app
app(sys.argv[1:], prog_name="opmux")
"""


def test_explain_for_a_chip_says_that_triton_is_missing(shell):
    hint = "triton is not installed, so our Triton kernels are not among the candidates: pip install triton"
    result = shell("explain", "softmax", "--assume", "nvidia:sm_90", script=NO_TRITON, warm=False)
    assert hint in result.stdout, result.stderr
    assert "runs       reference.torch" in result.stdout
    assert hint not in shell("explain", "softmax", "--assume", "nvidia:sm_90").stdout


def test_explain_shows_the_tiles_of_every_vendors_chip(cli):
    pytest.importorskip("triton")
    for vendor in sorted(set(vendors.known()) - {"cpu"}):
        words = ("explain", "rms_norm", "--assume", vendor, "--shape", "64x4096", "--dtype", "bf16", "--json")
        data = json.loads(cli(*words).stdout)
        assert [t["tunable"].partition("[")[0] for t in data["tiles"]] == ["norm.rows"], vendor
        assert "BLOCK_N=" in data["tiles"][0]["tiles"]
        assert any(f"{vendor}'s heuristics_config_utils.py sets them" in note for note in data["notes"])
    data = json.loads(cli(*words[:3], "ascend", *words[4:]).stdout)
    assert data["tiles"][0]["from"] == "heuristics"  # of the vendor's folder
    data = json.loads(cli("explain", "rms_norm", "--assume", "nvidia:sm_90", "--json").stdout)
    assert data["tiles"] and data["notes"] == []  # opmux knows this chip's number of cores


def test_explain_says_why_the_tiles_of_a_vendors_function_are_not_known(cli, register):
    pytest.importorskip("triton")

    def fails(x, weight, eps, offset, casting):
        raise KeyError("no chip")

    register(OpImpl("rms_norm", "default.flagos.ascend", BackendImplKind.DEFAULT, "ascend", fails, priority=9))
    assert "tiles are not known: default.flagos.ascend failed without its chip: KeyError: 'no chip'" in " ".join(
        cli("explain", "rms_norm", "--assume", "ascend").stdout.split()
    )
    register(
        OpImpl("silu", "default.flagos.ascend", BackendImplKind.DEFAULT, "ascend", lambda *a, **k: a[0] + 1, priority=9)
    )
    assert "default.flagos.ascend looks up no tiles for these arguments" in " ".join(
        cli("explain", "silu", "--assume", "ascend").stdout.split()
    )


def test_explain_refuses_a_chip_that_does_not_exist_and_names_the_known_ones(cli):
    result = cli("explain", "softmax", "--assume", "nvidia:sm_999")
    assert result.exit_code == 2
    assert "nvidia has no chip 'sm_999' that opmux knows" in result.stderr
    assert "Allowed: sm_70, " in result.stderr and "sm_90, " in result.stderr
    assert "did you mean gfx942?" in cli("explain", "softmax", "--assume", "amd:gfx943").stderr


def test_explain_accepts_every_chip_that_a_vendor_declares():
    for package in vendors.known().values():
        for arch in filter(None, package.info.targets):
            assert explain.chip_of(f"{package.name}:{arch}") == Chip(package.name, arch)
    # A letter after NVIDIA's number names a variant of the same chip, and the underscore may be missing.
    assert [explain.chip_of(arch).vendor for arch in ("sm_90a", "SM90", "sm_120f")] == ["nvidia"] * 3

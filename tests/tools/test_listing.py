"""`opmux`, `opmux list` and `opmux explain`: what they say, and how they fail."""

import json
import re

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, OpImpl, specs
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


def test_help_and_version_do_without_torch(shell):
    done = shell(script=QUICK, bare=True)
    assert done.stdout.splitlines() == ["0 False ", f"0 False {opmux.__version__}", "0 False "], done.stderr


def test_help_names_every_command(cli):
    done = cli("--help")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("list", "explain", "doctor", "demo"))


def test_an_unreadable_variable_is_one_line(cli, monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", "fastest")
    for words in (("list",), ("explain", "rms_norm")):
        done = cli(*words)
        assert done.exit_code == 2
        assert done.stdout == ""
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("opmux: ")]
        assert line.startswith("opmux: TE_FL_PREFER='fastest' cannot be read")


# ---- list -----------------------------------------------------------------------------------------------------------


def test_list_as_json(shell):
    done = shell("list", "--json", OPMUX_LOG_LEVEL="INFO")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)  # stdout holds JSON alone ...
    assert "INFO] Registered impl_ids: [" in done.stderr  # ... and log lines appear all the same
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
    assert data["policy"] == "prefer=flagos"


def test_no_line_of_the_log_unless_asked(cli, shell):
    for words in (["list", "--op", "silu"], ["explain", "silu"], ["tune", "--list"], ["doctor"]):
        done = cli(*words)
        assert (done.exit_code, done.stderr) == (0, ""), words
    done = shell("list", "--op", "silu")
    assert (done.returncode, done.stderr) == (0, "")


def test_list_has_a_table_a_family_and_a_line_an_op(cli):
    done = cli("list")
    assert done.exit_code == 0
    for family in specs.families:
        number = sum(s.family == family for s in specs)
        assert f"{family}: {number} op{'' if number == 1 else 's'}" in done.stdout
    for spec in specs:
        assert len(lines(done.stdout, spec.name)) == 1, spec.name
    assert "x, weight [eps, offset] -> y rstd" in done.stdout
    assert "…" not in done.stdout


def test_list_marks_what_runs(cli, monkeypatch, register):
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


def test_list_picks_families_and_names(cli):
    done = cli("list", "--family", "norm", "--op", "*_bwd", "--json")
    names = [o["op"] for o in json.loads(done.stdout)["ops"]]
    assert "rms_norm_bwd" in names
    assert all(n.endswith("_bwd") for n in names)
    assert not any("silu" in n for n in names)
    by_key = json.loads(cli("list", "--op", "tex::*", "--json").stdout)["ops"]
    assert {o["key"].partition("::")[0] for o in by_key} == {"tex"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--family", "norms"), "opmux: unknown family 'norms': did you mean 'norm'?"),
        (("--op", "rms_nrom"), "opmux: unknown op 'rms_nrom': did you mean 'rms_norm'?"),
    ],
)
def test_list_of_what_is_not_there(cli, words, says):
    done = cli("list", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr.splitlines()


def test_ops_without_a_spec_are_listed(cli, register):
    register(OpImpl("acme_magic", "magic", BackendImplKind.VENDOR, "acme", lambda x: x))
    done = cli("list")
    assert "(no spec): 1 op" in [line.strip() for line in done.stdout.splitlines()]
    (line,) = lines(done.stdout, "acme_magic")
    assert "*magic (vendor acme, from code" in line
    assert __file__ in line  # a pipe has no right edge: nothing is cut off


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_says_what_dispatch_says(cli):
    done = cli("explain", "rms_norm", "--shape", "3x40", "--dtype", "bf16", "--device", "cpu", "--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["arguments"]["x"] == "bfloat16[3x40]"
    assert data["arguments"]["weight"] == "bfloat16[40]"
    found = explain_of("rms_norm", torch.zeros(3, 40, dtype=torch.bfloat16), torch.zeros(40, dtype=torch.bfloat16))
    assert data["chosen"] == found.chosen.impl_id
    assert [v["impl_id"] for v in data["verdicts"]] == [v.impl.impl_id for v in found.verdicts]
    assert [v["status"] for v in data["verdicts"]] == [v.status for v in found.verdicts]


def explain_of(name, *args):
    return opmux.explain(getattr(opmux.ops, name), *args)


def test_explain_gives_the_reason_of_a_refusal(cli, register):
    wide = lambda x, *rest: "needs 128 columns" if x.shape[-1] < 128 else True
    fn = lambda x, weight, eps, offset: opmux.ops.rms_norm.reference(x, weight, eps, offset)
    register(OpImpl("opmux::rms_norm", "vendor.acme", BackendImplKind.VENDOR, "acme", fn, 7, when=wide))
    done = cli("explain", "opmux::rms_norm", "--device", "cpu")
    assert done.exit_code == 0
    (row,) = [line for line in done.stdout.splitlines() if "vendor.acme" in line]
    assert row.split()[:5] == ["x", "vendor.acme", "vendor", "acme", "7"]
    assert "when: needs 128 columns" in row
    assert __file__ in row
    assert "policy     prefer=flagos" in done.stdout
    wider = cli("explain", "rms_norm", "--shape", "2x128", "--device", "cpu")
    assert "runs       vendor.acme" in wider.stdout


def test_explain_of_an_op_without_a_spec(cli, register):
    register(OpImpl("acme_magic", "magic", BackendImplKind.VENDOR, "acme", lambda x: x, devices={"npu"}))
    bare = cli("explain", "acme_magic")
    assert bare.exit_code == 1
    assert "nothing can run" in bare.stdout
    assert "device: runs on npu" in bare.stdout
    given = json.loads(cli("explain", "acme_magic", "--shape", "2,3", "--dtype", "int8", "--json").stdout)
    assert given["arguments"] == {"argument 0": "int8[2x3]"}
    assert given["chosen"] is None


def own_shape(spec) -> tuple[int, ...]:
    """One that the op surely takes: that of its first sample; any, where samples have no shape to be asked for."""
    return spec.samples.cases[0].shape if hasattr(spec.samples, "cases") else (4, 8)


@pytest.mark.parametrize("spec", [s for s in specs if s.samples is not None], ids=lambda s: s.key)
@pytest.mark.few(60)
def test_explain_takes_every_op(cli, spec):
    done = cli("explain", spec.key, "--shape", "x".join(map(str, own_shape(spec))), "--json")
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["key"] == spec.key
    assert (data["note"] is None) == takes_shape(spec.samples, torch.float32)


def test_explain_gives_the_first_sample_where_shapes_cannot_be_asked_for(cli):
    """No `at` at all, and one that needs more than a shape."""
    for name in ("tex::multi_tensor_scale", "tex::fused_multi_row_padding"):
        first = next(iter(specs.find(name).samples(torch.float32, torch.device("cpu"))))
        data = json.loads(cli("explain", name, "--shape", "3x5", "--device", "cpu", "--json").stdout)
        assert list(data["arguments"].values()) == [in_words(value) for value in first.args]
        assert data["note"] == "its samples have fixed shapes: this is the first one, not 3x5"
        assert data["note"] in cli("explain", name, "--shape", "3x5", "--device", "cpu").stdout
        assert json.loads(cli("explain", name, "--device", "cpu", "--json").stdout)["note"] is None


@pytest.mark.parametrize(("name", "shape"), [("opmux::rope_fwd", "7"), ("opmux::mxfp8_uncast", "3x5")])
def test_explain_refuses_a_shape_that_is_not_the_ops(cli, name, shape):
    done = cli("explain", name, "--shape", shape)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"opmux: {name}: no arguments with float32 and shape {shape}: ")


def test_an_unknown_op_is_one_line(shell):
    done = shell("explain", "rms_nrom")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "opmux: unknown op 'rms_nrom': did you mean 'rms_norm'?"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
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
def test_a_bad_option_says_what_is_allowed(cli, words, says):
    done = cli("explain", "rms_norm_bwd", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("opmux: ")
    assert says in line

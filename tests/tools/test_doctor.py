"""`opmux doctor`: all settings with their sources; it also works in a broken environment."""

import importlib.metadata
import json
import re
import sys
import types

import pytest
import torch

import opmux
from opmux.core import knobs, specs
from opmux.machine import vendors
from opmux.tools import doctor


def settings(result) -> dict:
    return {s["name"]: s for s in json.loads(result.stdout)["settings"]}


def row(output: str, first: str) -> list[str]:
    """The cells of the line of a table that begins with `first`."""
    (line,) = [line for line in output.splitlines() if line.strip().startswith(f"{first} ")]
    return re.split(r" {2,}", line.strip())


def test_a_healthy_machine_has_exit_code_0(cli):
    result = cli("doctor")
    assert result.exit_code == 0
    for knob in knobs.all_knobs():
        (line,) = [line for line in result.stdout.splitlines() if line.strip().startswith(f"{knob.name} ")]
        assert knob.doc in line
    for words in (opmux.__version__, torch.__version__, "platform", "policy      prefer=opmux", "quarantine  empty"):
        assert words in result.stdout
    assert result.stdout.splitlines()[-1] == "nothing is broken"


def test_the_file_that_python_runs_at_each_start_is_shown(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "opmux_startup", types.SimpleNamespace(__file__="/site/opmux_startup.py"))
    assert "/site/opmux_startup.py, imported at each start of Python by opmux_startup.pth" in cli("doctor").stdout
    monkeypatch.delitem(sys.modules, "opmux_startup")
    assert (
        "opmux_startup is not imported at the start of Python" in json.loads(cli("doctor", "--json").stdout)["startup"]
    )


def test_json_output_is_valid(shell):
    result = shell("doctor", "--json", CUDA_HOME="/opt/cuda")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert set(data["versions"]) == {"opmux", "python", "torch", "triton", "platform"}
    assert {d["device"] for d in data["devices"]} >= {"cpu"}
    (reference,) = [v for v in data["vendors"] if v["kind"] == "reference" and v["vendor"] is None]
    assert reference["impls"] >= len(list(specs))
    assert (data["plugins"], data["broken"], data["quarantine"]) == ([], [], [])
    assert settings(result)["CUDA_HOME"]["value"] == "/opt/cuda"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TE_FL_PREFER", "Vendor", "OPMUX_PREFER", "vendor"),
        ("OPMUX_STRICT", "on", "OPMUX_STRICT", True),
        ("TE_FL_DENY_VENDORS", "amd, intel", "OPMUX_DENY_VENDORS", ["amd", "intel"]),
        ("TE_FL_PER_OP", "rms_norm=reference|*", "OPMUX_PER_OP", {"rms_norm": ["reference", "*"]}),
    ],
)
def test_a_variable_is_shown_with_its_source(cli, monkeypatch, variable, text, name, value):
    monkeypatch.setenv(variable, text)
    result = cli("doctor", "--json")
    assert result.exit_code == 0
    setting = settings(result)[name]
    assert (setting["value"], setting["source"], setting["error"]) == (value, f"env {variable}", None)
    assert settings(result)["OPMUX_CONFIG"]["source"] == "default"
    output = cli("doctor").stdout
    assert row(output, "setting")[:4] == ["setting", "value", "source", "meaning"]
    assert row(output, name)[2] == f"env {variable}"
    assert row(output, "OPMUX_CONFIG")[:3] == ["OPMUX_CONFIG", "-", "default"]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_text_of_the_settings_is_cut_off(cli, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TE_FL_PREFER", "reference")
    output = cli("doctor").stdout
    table = output[output.index("\nsettings") : output.index("  policy ")]
    start = next(line for line in table.splitlines() if " meaning" in line).index("meaning")
    meanings = "".join("".join(line[start:].split()) for line in table.splitlines())
    assert all("".join(knob.doc.split()) in meanings for knob in knobs.all_knobs())


def test_a_setting_from_the_file_is_shown_with_its_source(cli, tmp_path):
    (tmp_path / "opmux.toml").write_text('prefer = "reference"\nstrickt = true\n')
    result = cli("doctor", "--json")
    assert result.exit_code == 0
    assert settings(result)["OPMUX_PREFER"]["source"] == "file opmux.toml"
    assert row(cli("doctor").stdout, "OPMUX_PREFER")[1:3] == ["reference", "file opmux.toml"]
    data = json.loads(result.stdout)
    assert data["policy"] == "prefer=reference"
    assert data["strangers"] == ["opmux.toml: strickt is not a setting of opmux: did you mean strict?"]


def test_a_malformed_log_level_is_reported(cli, monkeypatch):
    monkeypatch.setenv("TEFL_LOG_LEVEL", "LOUD")
    result = cli("doctor")
    assert result.exit_code == 1
    assert "broken: TEFL_LOG_LEVEL='LOUD' cannot be read as a log level" in result.stdout


def test_a_malformed_variable_is_reported_and_the_rest_is_shown(cli, monkeypatch):
    monkeypatch.setenv("OPMUX_STRICT", "perhaps")
    monkeypatch.setenv("TE_FL_PREFER", "reference")
    result = cli("doctor", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    bad = settings(result)["OPMUX_STRICT"]
    assert (bad["value"], bad["source"]) == ("perhaps", "env OPMUX_STRICT")
    assert bad["error"].startswith("OPMUX_STRICT='perhaps' cannot be read as a switch")
    assert data["broken"] == [bad["error"]]
    assert data["policy"] == "prefer=reference"
    assert sum(v["impls"] for v in data["vendors"]) > 0
    output = cli("doctor").stdout
    assert f"broken: {bad['error']}" in output.splitlines()
    assert "policy      prefer=reference (without env OPMUX_STRICT)" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "is not a file"), ("prefer = ", "is not valid TOML"), ('prefer = "best"\n', "cannot be read")],
)
def test_an_invalid_file_is_reported_once(cli, monkeypatch, tmp_path, text, message):
    monkeypatch.setenv("OPMUX_CONFIG", "mine.toml")
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    result = cli("doctor", "--json")
    assert result.exit_code == 1
    (broken,) = json.loads(result.stdout)["broken"]
    assert message in broken
    assert cli("doctor").exit_code == 1


def test_a_new_process_reports_an_invalid_file_too(shell):
    result = shell("doctor", "--json", OPMUX_CONFIG="mine.toml", warm=False)
    assert result.returncode == 1, result.stderr
    assert json.loads(result.stdout)["broken"] == [
        "OPMUX_CONFIG='mine.toml' is not a file. Name a TOML file, or unset the variable"
    ]


def test_an_unknown_variable_is_a_note_and_no_error(cli, monkeypatch):
    monkeypatch.setenv("TE_FL_PREFFER", "vendor")
    result = cli("doctor")
    assert result.exit_code == 0
    assert "! environment variable TE_FL_PREFFER is not a setting of opmux: did you mean TE_FL_PREFER?" in result.stdout


def test_triton_may_be_missing(cli, monkeypatch):
    def version(name, known=importlib.metadata.version):
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = cli("doctor", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["versions"]["triton"] == "not installed"


def test_json_output_says_why_a_vendor_was_not_found(cli, monkeypatch):
    chips = {c["vendor"]: c for c in json.loads(cli("doctor", "--json").stdout)["chips"]}
    assert all(bool(c["why"]) != c["active"] for c in chips.values())
    assert chips["ascend"]["why"] == "torch_npu, which adds npu to torch, is not installed"
    amd = vendors.known()["amd"]
    assert doctor.why_absent(amd, "nvidia") == "this machine's cuda is of nvidia"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert doctor.why_absent(amd, None) == "this torch is built without CUDA and ROCm"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert doctor.why_absent(amd, None) == "torch.cuda.is_available() is False"


GOOD = """
from opmux.core import BackendImplKind, OpImpl

def register(registry):
    registry.register_impl(OpImpl("gelu_tanh", "vendor.acme", BackendImplKind.VENDOR, "acme", lambda x: x))
"""


def test_working_and_broken_plugins_are_listed(shell, tmp_path):
    (tmp_path / "good_ops.py").write_text(GOOD)
    (tmp_path / "broken_ops.py").write_text("import what_is_not_there\n")
    result = shell("doctor", "--json", TE_FL_PLUGIN_MODULES="good_ops,broken_ops")
    assert result.returncode == 1
    data = json.loads(result.stdout)
    plugins = {p["name"]: p for p in data["plugins"]}
    assert (plugins["good_ops"]["status"], plugins["good_ops"]["impls"]) == ("loaded", ["gelu_tanh=vendor.acme"])
    assert plugins["broken_ops"]["status"] == "broken"
    assert "what_is_not_there" in plugins["broken_ops"]["reason"]
    assert data["broken"] == [f"plugin 'broken_ops': {plugins['broken_ops']['reason']}"]
    assert {"vendor": "acme", "kind": "vendor", "impls": 1} in data["vendors"]


def test_cpp_state_and_the_cost_of_missing_cpp_are_shown(cli, monkeypatch, tmp_path):
    assert re.search(r"^ +native +compiled *$", cli("doctor").stdout, re.MULTILINE)
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path))
    assert "not compiled yet" in cli("doctor").stdout
    monkeypatch.setenv("CXX", "no-such-compiler")
    output = " ".join(cli("doctor").stdout.split())
    assert (
        "CXX='no-such-compiler': there is no such command" in output
        and "ops with gradients take 5 to 20 us more" in output
    )
    monkeypatch.setenv("OPMUX_CPP", "0")
    assert "off: OPMUX_CPP=0" in cli("doctor").stdout

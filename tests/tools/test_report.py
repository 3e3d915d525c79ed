"""`opmux report`: the page is well formed, and says what doctor, list and the files of measured times say."""

import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import fresh
import pytest
import torch

from opmux.core import get_default_manager
from opmux.core.dispatch import Failure
from opmux.faces.aten import decisions, engine
from opmux.machine import devices
from opmux.machine.devices import Chip
from opmux.tools import doctor, explain
from opmux.tools.report import advice as advices
from opmux.tools.report import facts, model, page, speed
from opmux.tools.speed.command import mean, ratios

SRC = Path(__file__).parents[2] / "src"
VOID = {"meta", "br", "input", "link", "img", "hr"}
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


class Page(HTMLParser):
    """A page's text, ids, links and tables (as rows of cell texts). Fails if tags do not balance."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.ids, self.links, self.words = [], [], [], []
        self.tables: list[list[list[str]]] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if "href" in attrs else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> list[list[str]]:
        """The rows of the tables with these headings, in one list."""
        return [row for rows in self.tables if rows[0] == list(heads) for row in rows[1:]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report about this machine and one about an assumed chip, and what doctor and list say."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "config.json").write_text(json.dumps(SMALL))
    # Turn the interpreter off, because it cannot list kernels.
    env = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8", "TRITON_INTERPRET": "0"}

    def run(*words: str) -> str:
        done = fresh.run([sys.executable, "-m", "opmux", *words], env=env, cwd=folder, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("report", "here.html") == f"{folder}/here.html\n"
    assert run("report", "chip.html", "--model", ".", "--assume", "nvidia:sm_90") == f"{folder}/chip.html\n"
    pages = {name: (folder / f"{name}.html").read_text() for name in ("here", "chip")}
    return pages, json.loads(run("doctor", "--json")), json.loads(run("list", "--json"))


@pytest.fixture(scope="module")
def here(written):
    return Page(written[0]["here"])


@pytest.fixture(scope="module")
def chip(written):
    return Page(written[0]["chip"])


@pytest.mark.parametrize("name", ["here", "chip"])
def test_the_page_is_well_formed_and_loads_nothing(written, name):
    html = written[0][name]
    read = Page(html)
    assert len(read.ids) == len(set(read.ids))
    assert read.links and all(link[0] == "#" and link[1:] in read.ids for link in read.links)
    assert not re.search(r"https?:|@import|url\(|\bsrc=", html)
    assert len(html.encode()) < 300_000
    for rows in read.tables:
        assert len({len(row) for row in rows}) == 1, rows[0]


def test_the_machine_is_what_doctor_says(here, chip, written):
    said = written[1]
    for shown in (here, chip):  # the machine is the real one, even if a chip is assumed
        for value in [*said["versions"].values(), *said["cpp"].values(), said["policy"]]:
            assert value in shown.text
        assert shown.table("device", "name", "arch") == [[d["device"], d["name"], d["arch"]] for d in said["devices"]]
        rows = {
            row[0]: row[2:]
            for row in shown.table("vendor", "device", "chip", "why not", "what was run on its hardware")
        }
        assert rows == {
            c["vendor"]: ["found" if c["active"] else "not found", c["why"], c["verified"]] for c in said["chips"]
        }
        settings = {row[0]: row[2:] for row in shown.table("setting", "value", "source", "meaning")}
        assert settings == {s["name"]: [s["source"], s["doc"]] for s in said["settings"]}


def test_every_op_is_in_the_tables_once_with_the_chosen_implementation(here, written):
    rows = here.table("ops", "runs", "the others, in order")
    shown = sorted((op, runs) for ops, runs, _ in rows for op in ops.split(", "))
    assert shown == sorted((op["op"], op["chosen"]) for op in written[2]["ops"])


def test_families_count_the_kinds_of_implementation_that_can_run():
    (norm,) = [f for f in facts.families() if f.name == "norm"]
    by_hand = [get_default_manager().explain(op).verdicts for c in norm.choices for op in c.ops]
    able = [{v.impl.kind.value for v in verdicts if v.status != "refused"} for verdicts in by_hand]
    assert norm.ops == norm.best.total() == len(able)
    assert norm.best[facts.OURS] == sum(bool(kinds & {"flagos", "cpp"}) for kinds in able)
    assert norm.best[facts.REFERENCE] == sum(kinds == {"reference"} for kinds in able)


def test_an_unmeasured_machine_says_so_and_names_the_command(here):
    assert "Nothing was measured on cpu. Here, opmux tune --aten measures torch's ops" in here.text
    assert "No op of ATen was measured on cpu, so auto mode enables none. opmux tune --aten" in here.text
    assert "None in this process." in here.text


# ---- an assumed chip ------------------------------------------------------------------------------------------------


def test_measured_times_are_those_of_the_shipped_file(chip):
    known = decisions.FILES.shipped(Chip("nvidia", "sm_90"))
    heads = ("overload", "the line is 1", "torch / ours", "torch, µs", "ours, µs", "ours / a copy", "first tensor")
    rows = {row[0]: row for row in chip.table(*heads)}
    assert set(rows) == set(known)
    for name in ("softmax.out", "_softmax", "cumsum", "add.Tensor"):
        if name in known:
            assert rows[name][2] == f"{mean(ratios(known[name])):.2f}"
    assert rows["clone"][5] in ("0.99", "1.00", "1.01")  # a copy, relative to torch's copy
    assert rows["addmm"][5] == ""  # limited by arithmetic
    assert len(chip.table("calls", "the line is 1", "library / ours", "library, µs", "ours, µs", "library")) > 100


def test_a_chip_without_measurements_gets_a_report_too():
    assert speed.speeds(Chip("amd", "gfx942")) == speed.SpeedFacts((), (), (), ())


def test_auto_mode_on_an_assumed_chip_is_decided_by_its_measured_times(chip, written):
    assert "An assumed chip: nvidia sm_90" in chip.text
    groups = re.findall(r"<b>(\d+) overloads: (enabled|torch runs)</b> <small>([^<]+)<", written[0]["chip"])
    by_why = {why: (int(number), what) for number, what, why in groups}
    assert by_why["it is at least as fast on sm_90"][1] == "enabled"
    assert by_why["it is not measured on sm_90"][1] == "torch runs"
    (total,) = re.findall(r"opmux has kernels for (\d+) overloads of ATen on cuda", chip.text)
    assert sum(number for number, _ in by_why.values()) >= int(total) - 5  # the pattern misses groups of "1 overload"
    assert "torch has no kernel for it on this device" not in by_why  # this build of torch does not know that


def test_the_assumed_chip_is_forgotten():
    with explain.assuming(Chip("nvidia", "sm_90")):
        assert facts.aten_use("cuda", True).computed > 1000
        assert {f.name for f in facts.families() if f.best[facts.BOTH]} >= {"attention", "gemm"}
    explanation = get_default_manager().explain("rms_norm")
    assert devices.assumed() is None and explanation.device == "cpu"
    assert not [v for v in explanation.verdicts if v.impl.vendor == "nvidia"]
    assert set(engine.choosable()) == {"cpu"}


def test_a_model_shows_what_is_replaced_and_the_kernels_of_a_step(chip):
    rows = {row[0]: row for row in chip.table("modules", "number", "part", "ops and what runs them")}
    assert rows["LlamaRMSNorm"] == ["LlamaRMSNorm", "5", "rms_norm", "rms_norm: default.flagos"]
    kernels = chip.table("kernel", "variants", "not compiled yet")
    assert {"norm._fwd", "rope._rope_qk"} <= {row[0] for row in kernels}
    missing = sum(int(row[2] or 0) for row in kernels)
    if missing:
        assert f"{missing} of {sum(int(row[1]) for row in kernels)} kernels of the first step" in chip.text


def test_without_a_chip_the_kernels_of_a_model_are_not_known(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    why = model.chip_for_kernels(None)
    assert isinstance(why, str) and why.startswith("this machine has no GPU: name a chip with --assume. Allowed: sm_80")
    found = facts.ReportFacts(doctor.DoctorReport(), "cpu", Chip(None, None), True)
    found.model = model.ModelFacts("llama", "small", None, "nothing of it can be replaced", why)
    text = Page(page.page(found, "today")).text
    assert "nothing of it can be replaced" in text and "They are not known: this machine has no GPU" in text


def test_a_model_of_which_nothing_is_replaced_says_why():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64)
    found = model.examine("gpt2", config, "no chip")
    assert found.report is not None or "nothing of GPT2LMHeadModel can be replaced" in found.why_not


# ---- advice ---------------------------------------------------------------------------------------------------------


def advice(html: str) -> str:
    return Page(html).text.partition(" Advice ")[2].partition(" Machine This")[0].partition(" Versions ")[0]


def test_each_advice_follows_from_a_fact(cli, monkeypatch, written):
    before = written[0]["here"]
    assert "OPMUX_CPP" not in advice(before) and "Triton is not installed" not in advice(before)
    monkeypatch.setenv("OPMUX_CPP", "0")
    monkeypatch.setenv("OPMUX_DENY_VENDORS", "amd")
    monkeypatch.setenv("TE_FL_PREFFER", "vendor")
    monkeypatch.setattr("opmux.tools.doctor._installed", lambda name: "not installed")
    assert cli("report").exit_code == 0
    text = advice(Path("opmux-report.html").read_text())
    assert "OPMUX_CPP is set (env OPMUX_CPP): all C++ of opmux is off. unset OPMUX_CPP" in text
    assert "unset OPMUX_DENY_VENDORS" in text and "did you mean TE_FL_PREFER?" in text
    assert "Triton is not installed, so no kernel of ours runs on a GPU. pip install triton" in text


def test_times_of_another_chip_or_torch_are_advised_to_be_measured_again():
    machine = doctor.DoctorReport(versions={"triton": "3.6.0"})
    said = lambda chip: {
        a.command: a.why for a in advices.advice(machine, "cuda", chip, False, speed.speeds(chip), None)
    }
    h20 = said(Chip("nvidia", "sm_90", "NVIDIA H20"))
    for command, file in (("opmux tune --aten", "aten"), ("opmux tune --providers", "provider")):
        assert h20[command].startswith(f"{file}_speed.json was measured with NVIDIA H200")
    assert f"instead of {torch.__version__}" in h20["opmux tune --aten"] or torch.__version__ == "2.11.0+cu130"
    a100 = said(Chip("nvidia", "sm_80", "NVIDIA A100"))
    assert a100["opmux tune --aten"] == "No op of ATen was measured on NVIDIA A100 (sm_80), so auto mode enables none."
    assert a100["opmux tune --providers"] == "Products and attention were not measured on NVIDIA A100 (sm_80)."


def test_a_broken_setting_is_reported_and_the_rest_is_shown(cli, monkeypatch):
    monkeypatch.setenv("OPMUX_STRICT", "perhaps")
    assert cli("report", "x.html").exit_code == 1
    read = Page(Path("x.html").read_text())
    assert "This is broken: OPMUX_STRICT='perhaps' cannot be read as a switch" in read.text
    assert read.table("ops", "runs", "the others, in order")


def test_a_broken_settings_file_is_reported(shell, tmp_path):
    result = shell("report", OPMUX_CONFIG="mine.toml", warm=False)
    assert result.returncode == 1, result.stderr
    read = Page((tmp_path / "opmux-report.html").read_text())
    assert "This is broken: OPMUX_CONFIG='mine.toml' is not a file." in read.text
    assert "This could not be found out: see what is broken" in read.text


def test_quarantined_implementations_are_listed(cli):
    manager = get_default_manager()
    key = manager.explain("rms_norm").key
    impl = manager.get_selected_impl_id("rms_norm")
    try:
        manager.quarantine(key, Failure(key, impl, None, "RuntimeError: no such <kernel>"))
        assert cli("report").exit_code == 0
    finally:
        manager.clear_quarantine()
    read = Page(Path("opmux-report.html").read_text())
    ((_, failed, reason),) = read.table("op", "implementation", "why it failed")
    assert failed == impl and "no such <kernel>" in reason


# ---- the file -------------------------------------------------------------------------------------------------------


def test_only_a_report_is_overwritten_unless_forced(cli, monkeypatch):
    monkeypatch.setattr(
        facts, "collect", lambda machine, *_: facts.ReportFacts(machine, "cpu", Chip(None, None), False)
    )
    Path("mine.html").write_text("<title>mine</title>")
    refused = cli("report", "mine.html")
    assert refused.exit_code == 2 and "'mine.html' exists and is no report" in refused.stderr
    assert Path("mine.html").read_text() == "<title>mine</title>"
    assert cli("report", "mine.html", "--force").exit_code == 0
    assert cli("report", "mine.html").exit_code == 0
    result = cli("report")
    assert result.stdout.strip() == str(Path("opmux-report.html").absolute())
    assert cli("report", "new/folder/a.html").exit_code == 0 and Path("new/folder/a.html").is_file()

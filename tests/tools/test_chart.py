"""The chart of README and of the site is what `benchmarks/chart.py` draws from the stored results."""

import importlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def chart(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chart")


def changed(chart, tmp_path, monkeypatch, name: str, change) -> None:
    """Let the chart read a copy of the results in which `change` has edited one file."""
    for run in (chart.LATEST, chart.WITH_LIGER):
        data = chart.load(run)
        if run == name:
            change(data)
        (tmp_path / run).write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(chart, "RESULTS", tmp_path)


def test_the_committed_chart_is_what_the_script_draws(chart):
    assert chart.CHART.read_text(encoding="utf-8") == chart.svg(), "run python benchmarks/chart.py"
    assert chart.main(["--check"]) == 0
    assert chart.CHART.stat().st_size < 12 * 1024


def test_new_results_make_the_chart_stale(chart, tmp_path, monkeypatch, capsys):
    def faster(data):
        data["results"]["patched"]["tokens_per_s"] *= 1.1

    changed(chart, tmp_path, monkeypatch, chart.LATEST, faster)
    assert chart.main(["--check"]) == 1
    assert "docs/images/llama.svg is out of date" in capsys.readouterr().out


def test_the_chart_is_xml_with_a_title_and_a_description(chart):
    root = ElementTree.parse(chart.CHART).getroot()
    assert root.tag == f"{NS}svg" and root.get("role") == "img"
    ids = root.get("aria-labelledby").split()
    found = {e.get("id"): e.text for e in root if e.tag in (f"{NS}title", f"{NS}desc")}
    assert list(found) == ids
    for label, *_ in chart.BARS:
        assert f"{label}: " in found["desc"]


def test_the_chart_names_chip_and_dates_and_loads_nothing(chart):
    svg = chart.svg()
    for run in (chart.LATEST, chart.WITH_LIGER):
        about = chart.load(run)["about"]
        assert about["chip"] in svg and about["date"] in svg
    benchmark = (ROOT / "benchmarks" / "llama.py").read_text(encoding="utf-8")
    batch, length = re.search(r"^BATCH, LENGTH = (\d+), (\d+)$", benchmark, re.MULTILINE).groups()
    assert f"{batch} x {length} tokens" in svg
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]  # the namespace, which is no request


def test_bars_are_ratios_to_native_of_their_own_run(chart, tmp_path, monkeypatch):
    """A slower machine in one of the runs changes no bar."""
    before = chart.bars()

    def slower(data):
        for result in data["results"].values():
            result["tokens_per_s"] /= 2

    changed(chart, tmp_path, monkeypatch, chart.WITH_LIGER, slower)
    assert [b.label for b in before] == [label for label, *_ in chart.BARS]
    for old, new in zip(before, chart.bars(), strict=True):
        assert (new.speed, new.memory) == pytest.approx((old.speed, old.memory))


def test_runs_on_different_chips_are_refused(chart, tmp_path, monkeypatch):
    changed(chart, tmp_path, monkeypatch, chart.WITH_LIGER, lambda data: data["about"].update(chip="another"))
    with pytest.raises(ValueError, match="differ in one of chip, torch, triton, transformers"):
        chart.svg()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/measurements.md"])
def test_pages_show_the_chart_with_its_figures_in_words(chart, page):
    image = chart.CHART.relative_to((ROOT / page).parent).as_posix()
    assert f"![{chart.alternative()}]({image})" in (ROOT / page).read_text(encoding="utf-8")


def test_the_first_paragraph_has_the_figures_of_the_chart(chart):
    (ours,) = (b for b in chart.bars() if b.label == "opmux")
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{ours.speed:.2f} times the speed of torch, in {ours.memory:.2f} of the memory" in text

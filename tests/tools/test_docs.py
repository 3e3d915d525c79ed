"""The generated pages are up to date, a stale page is detected, and the site and `make bench` work."""

import json
import re
import sys
from pathlib import Path

import docs
import fresh
import pytest
import stubs

from opmux.core import knobs
from opmux.faces.tex import versions
from opmux.machine import vendors

ROOT = Path(__file__).parents[2]


def test_the_generated_pages_are_up_to_date(capsys):
    assert docs.main(["--check", str(ROOT / "docs")]) == 0, capsys.readouterr().out


def test_a_stale_page_is_detected(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(docs, "PAGES", {"settings.md": docs.settings_page})  # generating the other pages takes seconds
    assert docs.main([str(tmp_path)]) == 0
    assert docs.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "settings.md").write_text("old")
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "settings.md is out of date" in capsys.readouterr().out
    assert (tmp_path / "settings.md").read_text() == "old"


def test_the_stubs_list_every_op(tmp_path):
    """The stubs of opmux.ops and opmux.tex have the same names as the modules."""
    import ast

    import opmux

    for name, text in stubs.stubs():
        known = {n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        module = getattr(opmux, name.removesuffix(".pyi"))
        there = {n for n in dir(module) if not n.startswith("_")}
        assert known <= there, known - there
        modules = {"tex", "grouped_mlp_experimental"}  # not ops: the module itself, and a module inside of tex
        assert there - known <= modules, there - known - modules


def test_examples_of_settings_are_valid(monkeypatch):
    for knob in knobs.all_knobs():
        monkeypatch.setenv(knob.name, knob.example)
        assert knob.look().source == f"env {knob.name}"
    examples = {knob.name: knob.example for knob in knobs.all_knobs()}
    assert examples["OPMUX_VENDOR"] in vendors.known()
    assert versions.served() == examples["OPMUX_TEX_VERSION"]
    assert "cuda" not in examples["OPMUX_CACHE_DIR"]


BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
build(load_config(sys.argv[1], strict=True, site_dir=sys.argv[2]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    result = fresh.run([sys.executable, "-c", BUILD, str(ROOT / "mkdocs.yml"), str(folder)])
    assert result.returncode == 0, result.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return [p for p in site.rglob("index.html") if "results" not in p.parts]


def test_the_site_builds_in_strict_mode(site):
    """The site has rewritten links to files outside of docs/, highlighted code, and a home page."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert '<span class="kn">import</span>' in home
    assert len(list((site / "results").glob("*.html"))) == 1
    assert len(pages(site)) == len(list((ROOT / "docs").glob("*.md")))
    assert not any('href="../../src' in p.read_text(encoding="utf-8") for p in pages(site))


def test_pages_of_the_site_load_nothing_from_other_hosts(site):
    loads = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*(?:href|src)=\"?((?:https?:)?//[^\"\s>]*)")
    for page in pages(site):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_site_has_search_modes_and_a_logo(site):
    """Search needs the index and the worker; both are files of the site."""
    home = (site / "index.html").read_text(encoding="utf-8")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert {"", "performance/", "ops/"} <= {entry["location"] for entry in index["docs"]}
    (worker,) = re.findall(r'"search":\s*"([^"]+)"', home)
    assert (site / worker).is_file()
    modes = re.findall(r'<input[^>]*data-md-color-media="([^"]*)"[^>]*data-md-color-scheme="([^"]*)"', home)
    assert modes == [
        ("(prefers-color-scheme)", "default"),
        ("(prefers-color-scheme: light)", "default"),
        ("(prefers-color-scheme: dark)", "slate"),
    ]
    assert re.search(r'<link rel="icon" href="images/logo.svg">', home)
    assert re.search(r'<img src="images/logo.svg" alt="logo">', home)
    assert (site / "images" / "logo.svg").is_file()


def test_the_dispatch_benchmark_runs(tmp_path):
    result = fresh.run([sys.executable, str(ROOT / "benchmarks" / "dispatch.py"), "--quick"], cwd=tmp_path, timeout=200)
    assert "opmux.ops.x" in result.stdout and "Traceback" not in result.stderr, result.stderr

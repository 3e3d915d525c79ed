"""The generated pages are up to date, a stale page is detected, and the site and `make bench` work."""

import json
import re
import sys
from pathlib import Path

import docs
import fresh
import measured
import op_pages
import pytest
import stubs

from opmux.core import knobs, specs
from opmux.faces.tex import versions
from opmux.machine import vendors

ROOT = Path(__file__).parents[2]


def test_the_generated_pages_are_up_to_date():
    """In a new process: tests register and remove vendors."""
    result = fresh.warm([sys.executable, str(ROOT / "tools" / "docs.py"), "--check", str(ROOT / "docs")])
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_stale_page_is_detected(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(docs, "PAGES", {"settings.md": docs.settings_page})  # generating the other pages takes seconds
    monkeypatch.setattr(op_pages, "pages", dict)
    assert docs.main([str(tmp_path)]) == 0
    assert docs.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "settings.md").write_text("old")
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "settings.md is out of date" in capsys.readouterr().out
    assert (tmp_path / "settings.md").read_text() == "old"


def test_the_page_of_a_removed_family_is_stale_and_removed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(docs, "PAGES", {})
    monkeypatch.setattr(op_pages, "pages", lambda: {"ops/norm.md": "norm"})
    assert docs.main([str(tmp_path)]) == 0
    (tmp_path / "ops" / "gone.md").write_text("old")
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "gone.md is out of date" in capsys.readouterr().out
    assert docs.main([str(tmp_path)]) == 0
    assert [p.name for p in (tmp_path / "ops").iterdir()] == ["norm.md"]


def test_the_pages_of_ops_list_each_op_with_all_chips_implementations():
    pages = {p.stem: p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs" / "ops").glob("*.md"))}
    listed = [row[1] for text in pages.values() for row in re.finditer(r"^\| `(\w+)\(.*\)` \|", text, re.MULTILINE)]
    assert sorted(listed) == sorted(s.name for s in specs if s.primitive)
    index = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in index for name in listed)
    (attention,) = (line for line in pages["attention"].splitlines() if line.startswith("| `attention("))
    for impl_id in ("default.flagos", "default.flagos.nvidia.hopper", "vendor.nvidia.cudnn"):
        assert f"`{impl_id}`" in attention
    assert "| `default.flagos.nvidia.hopper` | our kernel for nvidia | nvidia, hopper |" in pages["attention"]


def bench_run(date, *rows):
    """A file of `opmux bench`: rows of (provider, milliseconds, share of the limit, status)."""
    row = {"key": "opmux::rms_norm", "variant": "", "shape": [8, 64], "dtype": "bfloat16", "metric": "device"}
    cells = [dict(zip(("provider", "ms", "share", "status"), r, strict=True)) for r in rows]
    return {
        "schema": 1,
        "facts": {"chip": "NVIDIA H200", "date": date},
        "rows": [row | {"limit": "copy"} | c for c in cells],
    }


def test_speeds_come_from_the_latest_stored_run(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    shipped = measured.speeds()["opmux::rms_norm"]
    assert re.fullmatch(r"\d\.\d\dx torch \(H200, torch [\d.]+\)", shipped)
    for date, ms in (("2026-11-15", 2.0), ("2026-11-14", 4.0)):
        run = bench_run(date, ("ours", ms, 0.5, "ok"), ("native", 5.0, 0.2, "ok"), ("compile", 1.0, 1.0, "wrong"))
        (tmp_path / f"a_{date}_h200.json").write_text(json.dumps(run))
    assert measured.speeds()["opmux::rms_norm"] == "2.50x torch, 50 % of the copy limit (H200, 2026-11-15)"
    run = bench_run("2026-11-16", ("ours", 1.0, 0.9, "wrong"), ("native", 5.0, 0.2, "ok"))
    (tmp_path / "b_2026-11-16_h200.json").write_text(json.dumps(run))
    assert measured.speeds()["opmux::rms_norm"].startswith("2.50x torch"), "a wrong result has no speed"


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
    assert len(pages(site)) == len(list((ROOT / "docs").rglob("*.md")))
    assert not any('href="../../src' in p.read_text(encoding="utf-8") for p in pages(site))


def test_pages_of_the_site_load_nothing_from_other_hosts(site):
    loads = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*(?:href|src)=\"?((?:https?:)?//[^\"\s>]*)")
    for page in pages(site):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_wide_tables_scroll_in_a_box_on_a_phone(site):
    """The theme's script wraps each table in an element that scrolls; site.css gives the element the text's width."""
    theme = "".join(p.read_text(encoding="utf-8") for p in (site / "assets").rglob("*.css"))
    assert re.search(r"\.md-typeset__scrollwrap\{[^}]*overflow-x:auto", theme)
    script = "".join(p.read_text(encoding="utf-8") for p in (site / "assets").rglob("bundle*.js"))
    assert "md-typeset__scrollwrap" in script and "md-typeset__table" in script
    phone = (site / "site.css").read_text(encoding="utf-8").partition("@media (max-width")[2]
    assert re.search(r"\.md-typeset__scrollwrap \{ margin: 1em 0; border:", phone)
    assert all("site.css" in p.read_text(encoding="utf-8") for p in pages(site))


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

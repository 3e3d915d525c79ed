"""The pages that follow from the code are up to date, and the check can tell."""

from pathlib import Path

from opmux.tools import docs

ROOT = Path(__file__).parents[2]


def test_the_pages_are_up_to_date(capsys):
    assert docs.main(["--check", str(ROOT / "docs")]) == 0, capsys.readouterr().out


def test_the_check_sees_a_stale_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(docs, "PAGES", {"settings.md": docs.settings_page})  # the others take seconds
    assert docs.main([str(tmp_path)]) == 0
    assert docs.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "settings.md").write_text("old")
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "settings.md is out of date" in capsys.readouterr().out
    assert (tmp_path / "settings.md").read_text() == "old"


def test_the_stubs_know_every_op(tmp_path):
    """What a type checker sees in opmux.ops and opmux.tex is what is there."""
    import ast

    import opmux
    from opmux.tools import stubs

    for name, text in stubs.stubs():
        known = {n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        module = getattr(opmux, name.removesuffix(".pyi"))
        there = {n for n in dir(module) if not n.startswith("_")}
        assert known <= there, known - there
        modules = {"tex", "grouped_mlp_experimental"}  # of tex: itself, and a module inside
        assert there - known <= modules, there - known - modules

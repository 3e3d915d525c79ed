"""The pages that follow from the code are up to date, and the check can tell."""

from pathlib import Path

from opmux.tools import docs

ROOT = Path(__file__).parents[2]


def test_the_pages_are_up_to_date(capsys):
    assert docs.main(["--check", str(ROOT / "docs")]) == 0, capsys.readouterr().out


def test_the_check_sees_a_stale_page(tmp_path, capsys):
    assert docs.main([str(tmp_path)]) == 0
    assert docs.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "ops.md").write_text("old")
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "ops.md is out of date" in capsys.readouterr().out
    assert (tmp_path / "ops.md").read_text() == "old"

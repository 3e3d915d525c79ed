"""`tools/tested.py` records the versions with which tests passed, and only those of a commit."""

import json
import platform
from pathlib import Path

import pytest
import tested
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with a page and no rows; `git(*words)` runs git in it."""

    def git(*words):
        result = tested._git("-c", "user.name=a", "-c", "user.email=a@b", *words)
        assert result is not None, words
        return result

    monkeypatch.delenv("COMMIT", raising=False)
    for name, path in (("ROOT", "."), ("DATA", "tools/tested.json"), ("PAGE", "docs/installing.md")):
        monkeypatch.setattr(tested, name, tmp_path / path)
    for path, text in ((tested.DATA, "[]\n"), (tested.PAGE, f"# Installing\n\n{tested.START}old\n{tested.END}\nend\n")):
        path.parent.mkdir()
        path.write_text(text)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    return git


def test_a_run_records_its_versions_and_the_commit(checkout):
    assert tested.main(["make test"]) == 0
    (row,) = json.loads(tested.DATA.read_text())
    assert row["python"] == platform.python_version() and row["torch"] == torch.__version__
    assert row["commit"] == checkout("log", "-1", "--format=%h")
    text = tested.PAGE.read_text()
    assert f"| {row['python']} | {row['torch']} | {row['triton']} |" in text and "old" not in text
    assert text.startswith("# Installing\n") and text.endswith("\nend\n")


def test_a_later_run_refreshes_its_row_and_keeps_the_others(checkout):
    tested.main(["make test"])
    tested.main(["tests/core"])
    first = json.loads(tested.DATA.read_text())
    checkout("commit", "-qam", "second")
    tested.main(["make test"])
    rows = {row["what"]: row for row in json.loads(tested.DATA.read_text())}
    assert len(first) == len(rows) == 2
    assert rows["tests/core"] in first
    assert rows["make test"]["commit"] == checkout("log", "-1", "--format=%h") != rows["tests/core"]["commit"]


def test_changes_that_are_in_no_commit_are_not_recorded(checkout):
    (tested.ROOT / "new.py").write_text("")
    with pytest.raises(SystemExit, match=r"(?s)commit them.*new\.py"):
        tested.main(["make test"])
    assert tested.DATA.read_text() == "[]\n"


def test_without_git_the_environment_names_the_commit(checkout, monkeypatch, tmp_path):
    (tmp_path / ".git").rename(tmp_path / "gone")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SystemExit, match="set COMMIT"):
        tested.main(["make test"])
    monkeypatch.setenv("COMMIT", "abc1234")
    tested.main(["make test"])
    assert json.loads(tested.DATA.read_text())[0]["commit"] == "abc1234"


def test_a_page_without_a_place_for_the_table_is_an_error(checkout):
    tested.PAGE.write_text("# Installing\n")
    with pytest.raises(SystemExit, match="needs the lines"):
        tested.page()


def test_newer_versions_come_first():
    row = dict.fromkeys((*tested.KEY, "date", "commit"), "")
    rows = [row | {"torch": version} for version in ("2.9.1", "2.13.0+cpu", "2.11.0+cu130")]
    assert [r["torch"] for r in tested.added(rows[:2], rows[2])] == ["2.13.0+cpu", "2.11.0+cu130", "2.9.1"]


def test_rows_of_stored_results_agree_with_their_files():
    """The facts of a row are those of the file; what the file does not say is empty in the row."""
    rows = [row for row in tested.read(ROOT / "tools" / "tested.json") if "file" in row]
    assert rows
    for row in rows:
        data = json.loads((ROOT / row["file"]).read_text(encoding="utf-8"))
        facts = data.get("about") or data["facts"]
        for name in ("python", *tested.PACKAGES, "date", "commit"):
            assert row[name] == facts.get(name, "").partition(" ")[0]
        assert row["device"] == facts["chip"]

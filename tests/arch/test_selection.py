"""The selection of tests depends only on the files: not on the commit, the date or the processor."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fresh
import pytest
import touched

from opmux.core import specs

ROOT = Path(__file__).parents[2]
FILES = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, encoding="utf-8").stdout.split()
TESTS = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "tests").rglob("test_*.py"))]


def item(path, **params):
    return SimpleNamespace(path=ROOT / path, callspec=SimpleNamespace(params=params))


def concerned(*files):
    change = touched.changed("BASE", files)
    return {t for t in TESTS if change.concerns(item(t))}


FEW = """
import pytest
@pytest.mark.few(3)
@pytest.mark.parametrize("i", range(10))
def test_cases(i): pass
@pytest.mark.slow
def test_long(): pass
def test_always(): pass
def test_deeper(few): pass
"""
QUICK = ["test_cases[0]", "test_cases[3]", "test_cases[6]", "test_always", "test_deeper"]


def selected(where, commits, *options):
    """Create the example tree with `commits` commits, and return the names of the tests that it selects."""
    where.mkdir()
    for name, text in {
        "conftest.py": (ROOT / "tests/conftest.py").read_text(encoding="utf-8"),
        "touched.py": (ROOT / "tests/shared/touched.py").read_text(encoding="utf-8"),
        "fresh.py": "torn_down = False\n",
        "pytest.ini": "[pytest]\nmarkers =\n  few(n)\n  slow\n  gpu\n",
        "test_it.py": FEW,
    }.items():
        (where / name).write_text(text, encoding="utf-8")
    git = ["git", "-C", str(where), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], *[["commit", "-q", "--allow-empty", "-m", "x"]] * commits):
        subprocess.run([*git, *command], check=True, capture_output=True)
    words = ["-q", "--collect-only", "-p", "no:xdist", "-p", "no:cacheprovider", *options]
    result = fresh.run([sys.executable, "-m", "pytest", *words], cwd=where, timeout=120)
    return [line.partition("::")[2] for line in result.stdout.splitlines() if "::" in line]


def test_two_clones_at_different_commits_select_the_same_tests(tmp_path):
    """The two clones have the same files but one commit and three commits."""
    assert selected(tmp_path / "a", 1) == selected(tmp_path / "b", 3) == QUICK


def test_the_default_run_and_slow_rest_together_run_every_test(tmp_path):
    """A test that does more with --slow is in both runs."""
    every, rest = selected(tmp_path / "a", 1, "--slow"), selected(tmp_path / "b", 1, "--slow", "--rest")
    assert len(every) == 13 and set(every) == {*QUICK, *rest}
    assert {*QUICK} & {*rest} == {"test_deeper"}


@pytest.mark.parametrize(
    "words, names",
    [
        ("long", ["test_long"]),
        ("long or deeper", ["test_deeper"]),
        ("cases and 7", ["test_cases[7]"]),
        ("cases", ["test_cases[0]", "test_cases[3]", "test_cases[6]"]),
        ("nothing", []),
    ],
)
def test_slow_tests_run_if_a_name_selects_no_other(tmp_path, words, names):
    assert selected(tmp_path / "a", 1, "-k", words) == names


def test_no_test_reads_the_commit_or_the_date():
    """A test could read the commit through git, or the date from a clock. Only `--touched` may read a commit."""
    suspects = re.compile(r"rev-parse|rev-list|TEST_TURN|datetime\.now|date\.today")
    suspicious = [t for t in (*TESTS, "tests/conftest.py") if suspects.search((ROOT / t).read_text(encoding="utf-8"))]
    assert suspicious == ["tests/arch/test_selection.py"]


@pytest.mark.parametrize(
    "file, tests",
    [
        ("src/opmux/specs/norm.py", "ops/test_norm_casting.py kernels/test_norm_interpreted.py"),
        ("src/opmux/kernels/softmax/rows.py", "kernels/test_masked_softmax_interpreted.py ops/test_softmax.py"),
        ("src/opmux/kernels/pooling.py", "kernels/test_spatial_compiled.py kernels/test_spatial_interpreted.py"),
        (
            "src/opmux/faces/aten/scan.py",
            "faces/test_adapters_scan.py faces/test_opinfo.py kernels/test_scan_compiled.py",
        ),
        ("src/opmux/backends/_nvidia/ops/grouped.py", "kernels/test_grouped_compiled.py"),
        ("src/opmux/faces/models/patch.py", "faces/test_models.py distributed/test_models.py"),
        ("src/opmux/tools/doctor.py", "tools/test_doctor.py"),
        ("docs/models.md", "tools/test_doc_blocks.py tools/test_docs.py"),
        ("examples/README.md", "examples/test_examples.py"),
        ("tests/tools/test_doctor.py", "tools/test_doctor.py"),
        ("tests/faces/te_torch_versions_checks.py", "faces/test_te.py"),
    ],
)
def test_a_changed_file_selects_its_tests_and_not_all(file, tests):
    selected = concerned(file)
    assert selected >= {f"tests/{t}" for t in tests.split()}
    assert len(selected) < len(TESTS)


@pytest.mark.parametrize("file", ["src/opmux/core/spec.py", "src/opmux/kernels/lib/launch.py", "tests/conftest.py",
                                  "src/opmux/cpp/build.py", "pyproject.toml", "src/opmux/specs/samples.py",
                                  "a/new/file.xyz"])  # fmt: skip
def test_a_change_of_a_file_that_everything_depends_on_selects_every_test(file):
    assert concerned(file) == set(TESTS)


def test_a_changed_family_selects_its_cases_in_tests_over_all_ops():
    change = touched.changed("BASE", ("src/opmux/kernels/norm.py",))
    path = "tests/kernels/test_candidates.py"
    norm, rope = specs.find("rms_norm"), specs.find("rope_qk")
    assert change.concerns(item(path, spec=norm)) and change.concerns(item(path, name="rms_norm"))
    assert not change.concerns(item(path, spec=rope)) and not change.concerns(item(path, name="rope_qk"))


def test_every_family_has_a_test_file_with_its_name():
    names = set().union(*map(touched.tests_of, TESTS))
    families = {s.family for s in specs if s.space == "opmux"}
    missing = sorted(f for f in families if not {f, touched.NAMED.get(f, f)} & names)
    assert not missing, (
        f"op families without a test file: {', '.join(missing)}. Add tests/ops/test_{missing[0]}.py, which compares "
        "the ops with an independent result. If another file tests them, name it in NAMED of tests/shared/touched.py"
    )


def test_an_unknown_base_selects_every_test():
    for base in ("", "no-such-commit"):
        assert touched.since(base).everything

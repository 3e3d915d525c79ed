"""What is released: the sdist, the wheel built from it, their metadata, and the files that name the version."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import opmux

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
BUILD = """
import sys
sys.path.insert(0, "build_backend")
import opmux_build
getattr(opmux_build, sys.argv[1])(sys.argv[2])
assert "torch" not in sys.modules
"""
MADE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "build", "dist")


def build(what: str, tree: Path, to: Path) -> Path:
    """Build an sdist or a wheel of a tree, as pip does with --no-build-isolation."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(to)]
    result = subprocess.run(command, cwd=tree, env=env, capture_output=True, encoding="utf-8", timeout=250)
    assert result.returncode == 0, result.stderr
    (file,) = to.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, built from a copy of the tree, because a build writes into its tree."""
    tree = tmp_path_factory.mktemp("tree")
    for file in ROOT.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copy(file, tree)
    for folder in ("src", "build_backend", "tests/tools", "docs/images"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=MADE)
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from the sdist, so that the sdist has everything that a build needs."""
    tree = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(tree, filter="data")
    (top,) = tree.iterdir()
    file = build("wheel", top, tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(file) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def sources() -> set[str]:
    """Every file of src that is not made by Python, by pip or by a compiler."""
    made = ("__pycache__", ".egg-info/", ".so")
    names = {p.relative_to(SRC).as_posix() for p in SRC.rglob("*") if p.is_file()}
    return {n for n in names if not any(word in n for word in made)}


def test_the_sdist_has_the_build_backend_and_no_tests(sdist):
    with tarfile.open(sdist) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    wanted = {"build_backend/opmux_build.py", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "CITATION.cff"}
    assert wanted <= names, wanted - names
    assert {n for n in names if n.startswith(("tests", "benchmarks", ".git", ".venv"))} == set()
    assert {f"src/{n}" for n in sources()} <= names


def test_the_wheel_has_every_source_file_and_nothing_else(wheel):
    """The wheel has no files of a build, and no tests except those of the template for vendors' packages."""
    names = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert names - sources() == {"opmux_startup.pth"}
    assert sources() - names == set()
    assert "opmux/py.typed" in names
    tests = {n for n in names if "tests" in Path(n).parts or Path(n).name.startswith(("test_", "conftest"))}
    assert {n for n in tests if not n.startswith("opmux/tools/template/")} == set()


def test_the_metadata_names_version_licences_and_extras(metadata):
    assert metadata["Version"] == opmux.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text(encoding="utf-8")
    minimum = metadata["Requires-Python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {minimum}" in metadata.get_all("Classifier")


def test_every_extra_is_documented(metadata):
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert documented == set(metadata.get_all("Provides-Extra"))


def test_the_version_is_the_newest_release_of_the_changelog_and_of_the_citation():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert releases[0] == (opmux.__version__, str(citation["date-released"]))
    assert citation["version"] == opmux.__version__ and citation["cff-version"] == "1.2.0"
    assert releases == sorted(releases, reverse=True) and re.findall(r"^## ", text, re.MULTILINE)


def test_licences_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["license"] == citation["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert all((ROOT / name).is_file() for name in project["license-files"])


LINK = re.compile(r"\]\(([^)\s]+)\)")
TOP_PAGES = sorted(p.name for p in ROOT.glob("*.md"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("name", TOP_PAGES)
def test_links_of_the_top_pages_lead_somewhere(name):
    """mkdocs checks the links of docs/, but not those of the pages beside README."""
    for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = ROOT / path if path else ROOT / name
        assert target.exists(), f"{name}: {link}"
        assert not anchor or anchor in anchors(target), f"{name}: {link}"


def test_the_first_page_is_short_and_shows_the_chart():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    assert "(docs/images/llama.svg)" in text

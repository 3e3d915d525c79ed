"""Every code block of README and docs works as printed.

The Python blocks of a page run in order, in one namespace. The Python blocks of the vendors' page are files of a
package, or programs. A block whose first line is `# needs a GPU` or `# needs the network` is only compiled, and NOT_RUN
counts it. The command that a shell line calls parses the line, but does not run. TOML, YAML and JSON blocks are loaded.
In a table `| you write | with opmux |` both columns of each row run, and must give the same results and gradients.
"""

import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import both_columns
import fresh
import pytest
import torch
import typer.main
import yaml

from opmux.core import knobs
from opmux.tools import scaffold
from opmux.tools.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
NEEDS = ("# needs a GPU", "# needs the network")
NOT_RUN: dict[str, int] = {}  # page -> number of blocks that are only compiled
MIGRATION = re.compile(r"^\| you write \| with opmux \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)
CELLS = re.compile(r"\| `(.+?)` \| `(.+?)` \|")
SHARED = ROOT / "tests" / "shared"
FILES = {"new-backend"}  # pages whose blocks are files of a vendor's package, or complete programs


class Block(NamedTuple):
    page: Path
    line: int  # line number of its first line of code
    language: str
    code: str

    @property
    def needs(self) -> bool:
        return self.code.startswith(NEEDS)

    @property
    def file(self) -> str:
        """The file name in the block's first line, such as `# ops/tanh.py`; "" if there is none."""
        match = re.match(r"# ([\w/]+\.py)\n", self.code)
        return match[1] if match else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        indent, language, code = match.groups()
        code = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        blocks.append(Block(page, text.count("\n", 0, match.start()) + 2, language, code))
    return blocks


def of(*languages: str) -> list[Block]:
    return [b for page in PAGES for b in blocks(page) if b.language in languages]


def test_every_block_names_its_language():
    known = {"python", "bash", "toml", "yaml", "json", "text", "diff"}
    assert [b.where for page in PAGES for b in blocks(page) if b.language not in known] == []


def test_only_the_listed_python_blocks_are_not_run():
    counts: dict[str, int] = {}
    for block in of("python"):
        if block.needs:
            counts[block.page.name] = counts.get(block.page.name, 0) + 1
    assert counts == NOT_RUN


WITH_PYTHON = [p for p in PAGES if any(b.language == "python" for b in blocks(p))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda p: p.stem)
def test_python_blocks_run(page, tmp_path):
    """Blocks run in a new process, as a reader would run them; an error names the page and its line."""
    python_blocks = [b for b in blocks(page) if b.language == "python"]
    for block in python_blocks:
        compile(block.code, block.where, "exec")
    runnable = [b for b in python_blocks if not b.needs]
    if page.stem in FILES:
        files = scaffold_with([b for b in runnable if b.file], tmp_path)
        programs = [[b] for b in runnable if not b.file]
    else:
        files, programs = [], [runnable]
    for program in programs:
        run([("\n" * (b.line - 1) + b.code, str(page)) for b in program], tmp_path)
    if files:
        run([("import sys; sys.path.insert(0, 'opmux-acme/src')", ""), *((f"import {f}", f) for f in files)], tmp_path)


def run(codes: list[tuple[str, str]], folder: Path) -> None:
    text = f"for code, page in {codes!r}:\n    exec(compile(code, page, 'exec'))\n"
    (folder / "program.py").write_text(text, encoding="utf-8")
    result = fresh.run([sys.executable, "program.py"], cwd=folder, timeout=200, warm=True)
    assert result.returncode == 0, result.stderr


def scaffold_with(files: list[Block], folder: Path) -> list[str]:
    """A vendor's package created by `opmux new-backend`, plus these files; returns the names of their modules."""
    scaffold.run("acme", "npu", folder, False)
    (package,) = folder.glob("opmux-acme/**/opmux_acme")
    for block in files:
        (package / block.file).write_text(block.code, encoding="utf-8")
    return [f"opmux_acme.{b.file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}" for b in files]


def test_the_ops_of_the_vendors_page_conform(tmp_path):
    """The package that the page builds passes the checks that the page names, through dispatch and by direct calls."""
    page = ROOT / "docs" / "new-backend.md"
    scaffold_with([b for b in blocks(page) if b.language == "python" and b.file], tmp_path)
    info = tmp_path / "opmux_acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opmux-acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opmux.backends]\nacme = opmux_acme\n")
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path), str(tmp_path / "opmux-acme" / "src")])
    words = [w for op in ("rms_norm", "opmux::silu_mul", "tanh", "mm") for w in ("--op", op)]
    words += [w for check in ("load", "values", "mutation", "errors", "fake", "gradient") for w in ("--check", check)]
    command = [sys.executable, "-m", "opmux", "conform", "--vendor", "acme", *words, "--json", "run.json"]
    result = fresh.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, timeout=300, warm=True)
    assert result.returncode == 0, result.stdout + result.stderr
    own = [r for r in json.loads((tmp_path / "run.json").read_text())["results"] if r["own"] and r["op"] == "rms_norm"]
    tried = {r["check"]: r["tried"] for r in own}
    assert tried.keys() >= {"values", "mutation", "errors", "fake", "gradient"} and tried["values"] > 10


# ---- tables of old and new code --------------------------------------------------------------------------------------


def migration_rows(page: Path) -> list[tuple[int, str, str]]:
    """(line number, old code, new code) of each row of the page's table `| you write | with opmux |`."""
    text = page.read_text(encoding="utf-8")
    rows = []
    for table in MIGRATION.finditer(text):
        line = text.count("\n", 0, table.start(1)) + 1
        for i, row in enumerate(table[1].splitlines()):
            cells = CELLS.fullmatch(row)
            assert cells, f"{page.name}:{line + i}: a row must be two cells of code: {row}"
            rows.append((line + i, *(c.replace("\\|", "|") for c in cells.groups())))
    return rows


MIGRATIONS = [ROOT / "docs" / f"{name}.md" for name in ("flag_gems", "functional", "liger", "te", "tex")]


def test_pages_for_users_of_other_libraries_have_a_short_table_of_calls():
    assert [p for p in PAGES if migration_rows(p)] == MIGRATIONS
    assert all(6 <= len(migration_rows(p)) <= 12 for p in MIGRATIONS)


@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda p: p.stem)
def test_old_and_new_code_of_a_migration_table_agree(page, tmp_path):
    rows = [(f"{page.name}:{line}", old, new) for line, old, new in migration_rows(page)]
    first = migration_rows(page)[0][0]
    before = [b for b in blocks(page) if b.language == "python" and b.line < first and not b.needs]
    codes = [("\n" * (b.line - 1) + b.code, str(page)) for b in before]
    compare = (
        f"import sys; sys.path.append({str(SHARED)!r}); import both_columns\nboth_columns.check({rows!r}, globals())"
    )
    run([*codes, (compare, "the comparison")], tmp_path)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("x + 1", "result: Tensor-likes are not close"),
        ("x.detach() * 2", "results .*the gradient of x"),
        ("x * 2, x", "results"),
        ("y = x * 2", "results"),
        ("no_such_name", "NameError"),
        ("x.detach() * 2 + (x - x.detach()) * 3", "the gradient of x: Tensor-likes are not close"),
    ],
)
def test_a_difference_between_old_and_new_code_is_detected(new, message):
    names = {"x": torch.randn(3, requires_grad=True)}
    both_columns.check([("page.md:1", "x * 2", "x + x")], names)
    with pytest.raises(AssertionError, match=f"page.md:2.*{message}"):
        both_columns.check([("page.md:2", "x * 2", new)], names)


@pytest.mark.parametrize(
    ("code", "message"),
    [("None", "no result"), ("torch.zeros(3)", "is 0"), ("torch.tensor(float('nan'))", "not finite")],
)
def test_a_row_that_compares_nothing_is_an_error(code, message):
    with pytest.raises(AssertionError, match=message):
        both_columns.check([("page.md:1", code, code)], {"torch": torch})


# ---- shell ----------------------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, list[str]]]:
    """Every line of a shell block, split into words, without comments."""
    commands = []
    for block in of("bash"):
        for i, line in enumerate(block.code.replace("\\\n", "  ").splitlines()):
            words = shlex.split(line, comments=True)
            if words:
                commands.append((f"{block.page.name}:{block.line + i}: {line.strip()}", words))
    return commands


@pytest.mark.parametrize("words", [pytest.param(words, id=where) for where, words in commands()])
def test_shell_lines_are_valid_commands(words, monkeypatch):
    while words and (words[0] == "export" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        name, equals, value = words[0].partition("=")
        if equals:
            check_setting(name, value, monkeypatch)
        words = words[1:]
    if not words:
        return
    program = Path(words[0]).name
    if program == "opmux":
        parse(words[1:])
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {w for w in words[1:] if "=" not in w} <= set(targets)
    elif program in ("python", "python3", "pytest"):
        for word in words[1:]:
            if re.fullmatch(r"[\w/]+\.py|tests/[\w/]+", word) and "/" in word:
                assert (ROOT / word).exists(), word
    else:
        assert program in ("pip", "git", "cd", "torchrun", "source"), words


def parse(words: list[str]) -> None:
    """Raise if the command or an option does not exist, or if an argument is missing."""
    group = typer.main.get_command(app)
    if words[0].startswith("--"):
        assert words[0] in {name for option in group.params for name in option.opts}
        return
    command = group.commands[words[0]]
    command.make_context(f"opmux {words[0]}", [w for w in words[1:] if w not in ("...",)])


def check_setting(name: str, value: str, monkeypatch) -> None:
    known = {n: k for k in knobs.all_knobs() for n in (k.name, *k.aliases)}
    if name not in known:
        assert not name.startswith(("OPMUX_", "TE_FL_", "TEFL_")), f"{name} is no setting"
        return
    monkeypatch.setenv(name, value)
    known[name].look()


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("toml", "yaml", "json"), ids=lambda b: b.where)
def test_toml_yaml_and_json_blocks_can_be_loaded(block, tmp_path, monkeypatch):
    read = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    data = read[block.language](block.code)
    if block.code.startswith("# opmux.toml"):
        (tmp_path / "opmux.toml").write_text(block.code, encoding="utf-8")
        monkeypatch.setenv("OPMUX_CONFIG", str(tmp_path / "opmux.toml"))
        assert set(data) <= {k.key for k in knobs.all_knobs()}
        assert {k.key for k in knobs.all_knobs() if k.look().from_file} == set(data)

"""No vendor file is a copy of one of our files, because fixes do not reach copies.

A vendor file states only what differs on the vendor's chip. It counts as a copy if it shares more than half of its
lines with another file. Instead of copying a file, add an option to it.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "opmux"
SHORT = 40  # minimum number of code lines: a shorter file may resemble another by chance


def code_lines(text: str) -> Counter[str]:
    """How often each code line occurs, without indent; comments, docstrings, imports and lone brackets are skipped."""
    tree = ast.parse(text)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            skipped.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    comments = {
        t.start[0]: t.start[1]
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.type == tokenize.COMMENT
    }
    lines = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        code = line[: comments[number]] if number in comments else line
        if number not in skipped and len(code.strip().strip("()[]{},:")) > 1:
            lines[" ".join(code.split())] += 1
    return lines


def heads(text: str) -> set[str]:
    """Every line, and its parts before each #. All code lines are among them; finding them needs no tokenizing."""
    heads = set()
    for line in text.splitlines():
        end = len(line)
        while end >= 0:
            heads.add(" ".join(line[:end].split()))
            end = line.rfind("#", 0, end)
    return heads


def may_share(mine: Counter[str], lines: set[str]) -> bool:
    return sum(n for line, n in mine.items() if line in lines) > mine.total() / 2


def shared(mine: Counter[str], theirs: Counter[str]) -> float:
    """The share of `mine` that also occurs in `theirs`."""
    return (mine & theirs).total() / max(1, mine.total())


def vendor_files() -> list[Path]:
    files = [p for p in sorted((SRC / "backends").rglob("*.py")) if any(part.startswith("_") for part in p.parts)]
    return [p for p in files if p.relative_to(SRC / "backends").parts[0].startswith("_")]


def forks(files: dict[str, Counter[str]], ours: dict[str, Counter[str]]) -> list[str]:
    copies = []
    for name, lines in files.items():
        if lines.total() < SHORT:
            continue
        for other, their_lines in ours.items():
            if other != name and shared(lines, their_lines) > 0.5:
                copies.append(f"{name} shares {shared(lines, their_lines):.0%} of its lines with {other}")
    return copies


def test_no_vendor_file_is_a_copy_of_another_file():
    texts = {str(p.relative_to(SRC)): p.read_text(encoding="utf-8") for p in sorted(SRC.rglob("*.py"))}
    vendors = {name: code_lines(texts[name]) for name in (str(p.relative_to(SRC)) for p in vendor_files())}
    assert vendors, "there are vendors"
    # Tokenize only likely candidates: tokenizing all files takes 10 s.
    lines = {name: heads(text) for name, text in texts.items()}
    likely = [name for name in texts if any(may_share(v, lines[name]) for v in vendors.values())]
    # `texts` includes the vendor files, so each of them matches at least itself
    assert {name for name, v in vendors.items() if v.total() >= SHORT} <= set(likely)
    assert forks(vendors, {name: code_lines(texts[name]) for name in likely}) == []


ORIGINAL = "\n".join(f"def f{i}(x):\n    return x + {i}" for i in range(40))


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        (ORIGINAL, True),
        (ORIGINAL.replace("+ 1", "- 1"), True),
        ('"""Another word."""\nimport os\n# and a remark\n' + ORIGINAL.replace("    return", "        return"), True),
        ("\n".join(f"def g{i}(x):\n    return x * {i}" for i in range(40)), False),
        ("\n".join(f"def f{i}(x):\n    return x + {i}" for i in range(10)), False),  # fewer than SHORT lines
    ],
)
def test_a_copy_is_found(text, copy):
    copies = forks({"_a/ops/f.py": code_lines(text)}, {"kernels/f.py": code_lines(ORIGINAL)})
    assert bool(copies) is copy
    assert may_share(code_lines(text), heads(f"{ORIGINAL}  # the last line")) or not copy

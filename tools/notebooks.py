"""Writes examples as Jupyter notebooks: examples/finetune_trainer.py becomes examples/notebooks/finetune_trainer.ipynb.

    python tools/notebooks.py            # writes the notebooks
    python tools/notebooks.py --check    # only compares; the exit status is 1 if one differs

The docstring becomes the first cell, as text. Each group of statements between blank lines becomes a cell of code. A
comment that begins a group becomes text above it. Imports are one cell.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("finetune_trainer", "fp8_transformer_engine", "bring_up_chip")
PYTHON = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(name: str) -> dict[str, Any]:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    run = f"The same program is `examples/{name}.py`."
    kept = [line for line in rest.strip().splitlines() if not line.startswith("Run it from anywhere")]
    cells = [text_cell(f"# {title.rstrip('.')}\n\n" + "\n".join([*kept, "", run]).strip())]
    for group in groups(source):
        comment, code = split_comment(group)
        cells += [text_cell(comment)] if comment else []
        cells += [code_cell(code)] if code else []
    for cell in cells:
        cell["id"] = hashlib.sha256(f"{cells.index(cell)} {cell['source']}".encode()).hexdigest()[:8]
    return {"cells": cells, "metadata": {"kernelspec": PYTHON}, "nbformat": 4, "nbformat_minor": 5}


def groups(source: str) -> list[str]:
    """The top-level statements of a program as texts; statements without a blank line between them are one group."""
    tree, lines = ast.parse(source), source.splitlines()
    statements = tree.body[1:] if ast.get_docstring(tree) else tree.body
    found: list[tuple[str, bool]] = []
    end = tree.body[0].end_lineno or 0 if statements is not tree.body else 0
    for statement in statements:
        between, last = lines[end : statement.lineno - 1], statement.end_lineno or statement.lineno
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        comments = [line for line in lines[end : first - 1] if line.startswith("#")]
        text = "\n".join([*comments, *lines[first - 1 : last]])
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        blank = any(not line.strip() for line in between)
        if found and (not blank or (is_import and found[-1][1])):
            text = "\n".join([found.pop()[0], *([""] if blank else []), text])
        found.append((text, is_import))
        end = last
    return [text for text, _ in found]


def split_comment(group: str) -> tuple[str, str]:
    """The comment at the start of a group without its marks, and the code after it."""
    lines = group.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    code = re.sub(r" *# (fmt|isort): skip\b", "", "\n".join(lines[count:]))
    return "\n".join(line.removeprefix("#").strip() for line in lines[:count]), code


def text_cell(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def code_cell(text: str) -> dict[str, Any]:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return {**cell, "source": text.splitlines(keepends=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say which notebook differs")
    options = parser.parse_args()
    different = []
    for name in NAMES:
        file = EXAMPLES / "notebooks" / f"{name}.ipynb"
        text = json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"
        if options.check:
            different += [file.name] if not file.is_file() or file.read_text(encoding="utf-8") != text else []
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    if different:
        print(f"these notebooks differ from their examples, run python tools/notebooks.py: {', '.join(different)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""No file imports, directly or indirectly, a file that imports it.

This covers imports at any depth of the code, and `import_module` calls with a constant name. It ignores imports for
type checkers. Importing `a.b` runs `a/__init__.py` first, but this test does not count that as an import.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import parsed
import pytest

SRC = Path(__file__).parents[2] / "src"


class Edge(NamedTuple):
    line: int
    target: str


def modules(src: Path) -> dict[str, Path]:
    """Dotted name -> file."""
    modules = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node outside of `if TYPE_CHECKING:`."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        todo += node.orelse if checked else ast.iter_child_nodes(node)


def text_of(node: ast.expr, constants: dict[str, str]) -> str | None:
    """The value of an expression that is a string literal, a string constant of the file, or an f-string of these; else
    None.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, constants)
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(value, constants) for value in node.values]
        return None if None in parts else "".join(p for p in parts if p is not None)
    return None


def edges(name: str, path: Path, known: dict[str, Path]) -> list[Edge]:
    """The files that a file imports, with the line of each import."""
    tree = parsed.tree(path)
    home = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    constants = {"__name__": name, "__package__": ".".join(home)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            value = statement.value.value
            constants |= {t.id: value for t in statement.targets if isinstance(t, ast.Name) and isinstance(value, str)}
    edges: list[Edge] = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            edges += [Edge(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = home[: len(home) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            full = [f"{base}.{alias.name}" for alias in node.names]
            edges += [Edge(node.lineno, f if f in known else base) for f in full]
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            target = text_of(node.args[0], constants) if called in ("import_module", "__import__") else None
            if target is not None and target.startswith("."):  # relative to __package__
                below = target.lstrip(".")
                target = ".".join([*home[: len(home) - (len(target) - len(below)) + 1], below])
            edges += [Edge(node.lineno, target)] if target is not None else []
    return [e for e in sorted(set(edges)) if e.target in known and e.target != name]


@functools.cache
def graph(src: Path) -> dict[str, list[Edge]]:
    known = modules(src)
    return {name: edges(name, path, known) for name, path in known.items()}


def reached(start: str, graph: dict[str, list[Edge]]) -> set[str]:
    """All files that a file imports directly or indirectly."""
    visited: set[str] = set()
    todo = [start]
    while todo:
        for edge in graph[todo.pop()]:
            if edge.target not in visited:
                visited.add(edge.target)
                todo.append(edge.target)
    return visited


def cycles(src: Path) -> list[str]:
    """Every import that leads back to its own file, with both files and the line."""
    edges = graph(src)
    ends = {name: reached(name, edges) for name in edges}
    return [
        f"{name}:{edge.line} imports {edge.target}, which leads back to {name}"
        for name, mine in edges.items()
        for edge in mine
        if name in ends[edge.target]
    ]


def test_no_file_imports_itself_indirectly():
    assert len(graph(SRC)) > 100
    found_cycles = cycles(SRC)
    assert not found_cycles, "\n" + "\n".join(found_cycles)


def test_core_imports_only_wiring_outside_of_core():
    edges = graph(SRC)
    core = {name for name in edges if name.startswith("opmux.core")}
    beyond = {target for name in core for target in reached(name, edges)} - core
    assert beyond == {"opmux.wiring"}
    assert edges["opmux.wiring"] == []


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("line", "back"),
    [
        (1, "import p.a"),
        (1, "from p.a import x"),
        (1, "from . import a"),
        (1, "from .a import x"),
        (2, "def f():\n    from .a import x"),
        (4, "class C:\n    def f(self):\n        if 1:\n            import p.a"),
        (2, "import importlib\nimportlib.import_module('p.a')"),
        (2, "from importlib import import_module\nf = lambda: import_module('.a', __package__)"),
        (3, "import importlib\nROOT = 'p'\nimportlib.import_module(f'{ROOT}.a')"),
        (2, "import importlib\nimportlib.import_module(f'{__package__}.a')"),
        (5, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = 1\nelse:\n    from .a import x"),
    ],
)
def test_a_cycle_is_found(tmp_path, line, back):
    src = write(tmp_path, p__a="from .b import y", p__b="from .c import z", p__c=back)
    assert cycles(src) == [
        "p.a:1 imports p.b, which leads back to p.a",
        "p.b:1 imports p.c, which leads back to p.b",
        f"p.c:{line} imports p.a, which leads back to p.c",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x",
        "import os, p",  # the package itself, which imports nothing
        "import importlib\nimportlib.import_module(chosen_by_the_user)",
    ],
)
def test_allowed_imports_are_not_reported(tmp_path, source):
    assert cycles(write(tmp_path, p__a="from .b import y", p__b=source)) == []

"""Any module may be imported first, and two threads may import at once: no import deadlocks or sees a half-imported
module.

A thread that imports `a.b` holds the import lock of `a.b` and requests the lock of `a`. If `a` itself imports `a.b`,
another thread may hold the lock of `a` and request that of `a.b`. Python then hands out a half-imported module.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import parsed

SRC = Path(__file__).parents[2] / "src"


def modules(src: Path) -> dict[str, Path]:
    modules = {}
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when the module is imported."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            for inner in (
                () if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ("body", "orelse", "finalbody")
            ):
                yield from imports(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from imports(handler.body)


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    home = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    imported = set()
    for node in imports(parsed.tree(path).body):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
            continue
        base = ".".join([*(home[: len(home) - node.level + 1] if node.level else []), *filter(None, [node.module])])
        imported |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return (imported & set(known)) - {name}


def cycles(src: Path) -> list[str]:
    """Find import cycles, and submodules that both their own package and a file outside of it import."""
    known = modules(src)
    graph = {name: imported(name, path, known) for name, path in known.items()}
    cycles = []
    for package in (n for n, path in known.items() if path.name == "__init__.py"):
        inside = {n for n in graph[package] if n.startswith(f"{package}.")}
        for name, targets in graph.items():
            if not f"{name}.".startswith(f"{package}.") and package not in targets:
                cycles += [f"{name} imports {t}, which {package} imports itself" for t in sorted(inside & targets)]
    waiting: dict[str, set[str]] = {n: set(t) for n, t in graph.items()}
    while free := [n for n, t in waiting.items() if not t & set(waiting)]:
        for name in free:
            del waiting[name]
    return cycles + [f"{n} is in a cycle: {sorted(t & set(waiting))}" for n, t in waiting.items() if t & set(waiting)]


def test_no_package_import_can_wait_for_itself():
    assert cycles(SRC) == []


def test_importing_a_submodule_of_a_package_that_imports_it_is_found(tmp_path):
    for name, text in {
        "p/__init__": "from .a import x",
        "p/a": "",
        "q": "from p.a import x",
        "r": "from p import a",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    assert cycles(tmp_path) == ["q imports p.a, which p imports itself"]


def test_a_cycle_is_found(tmp_path):
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("try:\n    from a import x\nexcept ImportError:\n    pass\n")
    (tmp_path / "c.py").write_text("def f():\n    import d\n")
    (tmp_path / "d.py").write_text("import c\n")
    assert cycles(tmp_path) == ["a is in a cycle: ['b']", "b is in a cycle: ['a']"]

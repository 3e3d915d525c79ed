"""What type checkers see of the package."""

import ast
from pathlib import Path

import parsed

SRC = Path(__file__).parents[2] / "src"


def test_module_level_getattr_returns_any():
    """mypy 2.4 fails with an internal error if a module's `__getattr__` returns `Callable[..., Any]`."""
    wrong = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in sorted(SRC.rglob("*.py"))
        for node in parsed.walk(parsed.tree(path))
        if isinstance(node, ast.FunctionDef)
        and node.name == "__getattr__"
        and [a.arg for a in node.args.args] == ["name"]
        and ast.unparse(node.returns or ast.Constant(None)) != "Any"
    ]
    assert not wrong

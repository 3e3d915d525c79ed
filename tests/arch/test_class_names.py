"""No two classes have the same name, so a search or an error message leads to the right class."""

import ast
from pathlib import Path

import parsed
import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "opmux"

# Names chosen by other libraries, with the reason why each needs several definitions.
SHARED = {
    "Config": "torchtitan finds a layer's configuration by this nested name; kernels.lib has the config of a launch",
    "CrossEntropyOutput": "Liger's is a dataclass, the one of opmux.functional a tuple",
    "LigerFusedLinearJSDFunction": "Liger has two, in different modules, which compute different losses",
}


def classes(tree: ast.AST) -> list[tuple[str, int]]:
    """The names and lines of all classes, including classes nested in functions or classes."""
    return [(node.name, node.lineno) for node in parsed.walk(tree) if isinstance(node, ast.ClassDef)]


def repeated(definitions: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that are defined in more than one place. `definitions` is a list of (name, path) pairs."""
    places_by_name: dict[str, list[str]] = {}
    for name, path in definitions:
        places_by_name.setdefault(name, []).append(path)
    return {name: where for name, where in places_by_name.items() if len(where) > 1}


def in_package() -> dict[str, list[str]]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"nothing to check under {PACKAGE}"
    return repeated([
        (name, f"{path.relative_to(PACKAGE)}:{line}") for path in files for name, line in classes(parsed.tree(path))
    ])  # fmt: skip


def test_no_two_classes_share_a_name():
    bad = {name: definitions for name, definitions in in_package().items() if name not in SHARED}
    assert not bad, "say in the name what an instance is, in the words of its module"


def test_allowed_names_are_still_shared():
    assert not SHARED.keys() - in_package().keys(), "these names are defined once: take them out of SHARED"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("class A: ...\nclass B: ...", []),
        ("class A: ...\nclass A: ...", ["A"]),
        ("class A: ...\ndef f():\n    class A: ...", ["A"]),
        ("class A:\n    class A: ...", ["A"]),
        ("class A: ...\ndef B(): ...\nB = A", []),
    ],
)
def test_a_repeated_name_is_found(code, names):
    assert list(repeated([(name, str(line)) for name, line in classes(ast.parse(code))])) == names

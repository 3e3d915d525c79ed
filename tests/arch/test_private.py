"""A leading underscore means private to its package: no package of opmux uses a private name of another."""

import ast
from pathlib import Path
from typing import NamedTuple

import parsed
import pytest

SRC = Path(__file__).parents[2] / "src" / "opmux"
# Names with an underscore that other libraries define: methods of named tuples (which are public) and of torch
# objects (a Library, forward AD, a tensor).
NOT_OURS = ("_asdict", "_fields", "_make", "_replace", "_destroy", "_current_level", "_version")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def is_no_family(src: Path, package: str, name: str) -> bool:
    """In opmux.specs, an underscore in a module's name means that the module declares no ops; opmux.faces may import
    it.
    """
    return package == "specs" and (src / "specs" / f"{name}.py").is_file()


def packages(src: Path) -> dict[str, list[tuple[Path, ast.Module]]]:
    """Package -> its files. The modules directly under opmux/ form one package, "opmux"."""
    packages: dict[str, list[tuple[Path, ast.Module]]] = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).parts
        packages.setdefault(parts[0] if len(parts) > 1 else src.name, []).append((path, parsed.tree(path)))
    return packages


def members(tree: ast.Module) -> set[str]:
    """The private attributes of a file's classes: methods, fields, and attributes assigned to `self`."""
    members = set()
    for cls in (n for n in parsed.walk(tree) if isinstance(n, ast.ClassDef)):
        for node in cls.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                members.add(node.name)
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            members |= {t.id for t in targets if isinstance(t, ast.Name)}
        for node in ast.walk(cls):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                members.add(node.attr)
    return {name for name in members if is_private(name)}


class Use(NamedTuple):
    line: int
    name: str
    # the package of the name; "" for an attribute, because the source does not show the class of its object
    owner: str


def uses(path: Path, tree: ast.Module, src: Path) -> list[Use]:
    """The private names that a file imports, or reads as an attribute of an object other than `self`."""
    home = [src.name, *path.relative_to(src).parts[:-1]]
    uses, modules, foreign = [], {}, set()
    for node in parsed.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = home[: len(home) - node.level + 1] if node.level else []
            for alias in node.names:
                parts = [*up, *filter(None, (node.module or "").split(".")), alias.name]
                if parts[0] != src.name:
                    foreign.add(alias.asname or alias.name)
                    continue
                modules[alias.asname or alias.name] = parts[1]
                uses += [Use(node.lineno, p, parts[1]) for p in parts[2:] if is_private(p)][:1]
    for node in parsed.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_private(node.attr):
            root = ast.unparse(node.value).partition(".")[0].partition("(")[0]
            if root not in ("self", "cls", "super", *foreign) and node.attr not in NOT_OURS:
                uses.append(Use(node.lineno, node.attr, modules.get(ast.unparse(node.value), "")))
    return uses


def violations(src: Path) -> list[str]:
    files = packages(src)
    members_of = {name: {n for _, tree in mine for n in members(tree)} for name, mine in files.items()}
    out = []
    for package, mine in files.items():
        theirs = {
            n: other for other, names in members_of.items() if other != package for n in names - members_of[package]
        }
        for path, tree in mine:
            for use in uses(path, tree, src):
                whose = use.owner or theirs.get(use.name, package)
                if whose != package and not is_no_family(src, whose, use.name):
                    out.append(f"{path.relative_to(src.parent)}:{use.line} uses {use.name}, private to {whose}")
    return out


def test_no_package_uses_a_private_name_of_another():
    violations_in_src = violations(SRC)
    assert not violations_in_src, "\n" + "\n".join(violations_in_src)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from ..core.a import _f", "_f"),
        ("from ..core import _b", "_b"),
        ("from ..core._b import g", "_b"),
        ("from p.core import a\na._f()", "_f"),
        ("from ..core import a as b\nb._f", "_f"),
        ("from ..core.a import C\nC()._m()", "_m"),
        ("def f(thing):\n    return thing._kept", "_kept"),
    ],
)
def test_a_private_name_is_found(tmp_path, source, expected):
    lines = violations(tree(tmp_path, source))
    assert [line.partition(": ")[0].split(" uses ")[1] for line in lines] == [f"{expected}, private to core"], lines


@pytest.mark.parametrize(
    "source",
    [
        "from .other import _f",
        "from ..core import a\na.f()",
        "import torch\ntorch._C._m",
        "class D:\n    def _m(self):\n        return self._m() or D()._m()",
        "def f(row):\n    return row._replace(x=1)",
        "def f(tensor):\n    return tensor._base",
    ],
)
def test_allowed_uses_of_private_names_pass(tmp_path, source):
    assert violations(tree(tmp_path, source)) == []


def tree(tmp_path: Path, source: str) -> Path:
    src = tmp_path / "p"
    core = "def _f(): ...\nclass C:\n    def __init__(self):\n        self._kept = 1\n    def _m(self): ...\n"
    for name, text in {"core/a": core, "core/_b": "", "faces/other": "def _f(): ...", "faces/mine": source}.items():
        path = src / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return src

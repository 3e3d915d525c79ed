"""Which package may import which, as a table, and a check of every import statement against it."""

import ast
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import parsed
import pytest

SRC = Path(__file__).parents[2] / "src"
PKG = "opmux"
ANY = ("*",)


class Row(NamedTuple):
    ours: tuple[str, ...]
    """Patterns under opmux, each with what lies beneath; `=x` is x alone, `{own}` the family or vendor."""
    others: tuple[str, ...]
    """Top-level names of other packages; the standard library is always allowed."""


MACHINE = ("machine", "tuning", "cpp", "=cache", "=settings")  # packages about the machine; all kernels may import them

# The entry with the longest matching name applies. "" is the entry of the modules directly under opmux/. These may
# import everything, but only on first use; test_import checks that.
TABLE = {
    "": Row(ANY, ANY),
    "wiring": Row(("core",), ()),  # imports only types of core, for annotations; test_cycles checks this
    "core": Row(("core", "=wiring"), ("torch",)),
    "specs": Row(("core", "specs"), ("torch",)),
    "settings": Row(("core",), ()),
    "cache": Row(("core", "=settings"), ()),
    "imports": Row(("core",), ()),
    "machine": Row(("core", "machine", "tuning", "=imports", "=settings", "=wiring"), ("torch",)),
    "tuning": Row(("core", "tuning", "machine", "=cache", "=settings"), ("torch", "yaml")),
    "cpp": Row(("core", "cpp", "=cache", "=settings", "=wiring"), ("torch", "triton")),
    "kernels": Row(("core", "specs", "kernels.lib", "{own}", *MACHINE), ANY),
    "kernels.lib": Row(("core", "specs", "kernels.lib", *MACHINE), ANY),
    "backends": Row(
        ("core", "specs", "kernels.lib", "=backends", "backends.[!_]*", "{own}", *MACHINE),
        ANY,
    ),
    "functional": Row(("core", "specs", "functional"), ("torch",)),
    "nn": Row(("core", "functional", "nn"), ("torch",)),
    "faces": Row(("core", "specs", "functional", "nn", "=imports", "faces", *MACHINE), ANY),
    "integrations": Row(("core", "functional", "faces", "integrations", "=settings"), ANY),
    "tools": Row(ANY, ANY),
}


class Import(NamedTuple):
    line: int
    target: str


def modules(src: Path) -> dict[str, Path]:
    """Dotted name -> path, for every Python file of the package."""
    modules = {}
    for path in sorted((src / PKG).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def packages(names) -> set[str]:
    """The modules and all their parents: a folder without __init__.py can be imported too."""
    return {name.rsplit(".", n)[0] for name in names for n in range(name.count(".") + 1)}


def imports(name: str, path: Path, known: set[str]) -> list[Import]:
    """Every module that the file imports, at any depth of its code, as absolute names."""
    home = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    imports = []
    for node in parsed.walk(parsed.tree(path)):
        if isinstance(node, ast.Import):
            imports += [Import(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = home[: len(home) - node.level + 1] if node.level else []
            base = ".".join([*up, *(node.module or "").split(".")]).rstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                imports.append(Import(node.lineno, full if full in known else base))
    return imports


def row_for(inner: str) -> tuple[str, Row] | None:
    """`inner` is the module's name under opmux, "" for opmux itself."""
    parts = inner.split(".")
    for n in range(len(parts), 0, -1):
        area = ".".join(parts[:n])
        if area in TABLE:
            return area, TABLE[area]
    return None


def covers(pattern: str, inner: str, own: str) -> bool:
    pattern = pattern.replace("{own}", own)
    if pattern.startswith("="):
        return inner == pattern[1:]
    return fnmatchcase(inner, pattern) or fnmatchcase(inner, f"{pattern}.*")


def allowed(target: str, row: Row, own: str) -> bool:
    top, _, inner = target.partition(".")
    if top == PKG:
        return any(covers(pattern, inner, own) for pattern in row.ours)
    return top in sys.stdlib_module_names or row.others == ANY or top in row.others


def spoken(row: Row, own: str) -> str:
    ours = [f"{PKG}.{p.replace('{own}', own)}".replace(".=", ".") for p in row.ours]
    return ", ".join(["the standard library", *(["any other package"] if row.others == ANY else row.others), *ours])


def violations(src: Path) -> list[str]:
    files = modules(src)
    known = packages(files)
    out = []
    for name, path in files.items():
        inner = name.partition(".")[2]
        where = path.relative_to(src.parent)
        beside = path.parent == src / PKG
        ruled = row_for(inner) or (("", TABLE[""]) if beside else None)
        if ruled is None:
            out.append(f"{where}: no row of the table rules {name}; add one to {Path(__file__).name}")
            continue
        area, row = ruled
        parts = inner.split(".")
        # For kernels/__init__.py, which belongs to no op family, {own} means only that file, not all op families.
        own = ".".join(parts[:2]) if len(parts) > 1 else f"={inner}"
        out += [
            f"{where}:{line} imports {target}; {area} may import: {spoken(row, own)}"
            for line, target in imports(name, path, known)
            if not allowed(target, row, own)
        ]
    return out


def test_every_import_is_allowed_by_the_table():
    assert f"{PKG}.core" in packages(modules(SRC)), f"nothing to check under {SRC}"
    broken = violations(SRC)
    assert not broken, "\n" + "\n".join(broken)


# An example tree with every module that an import below may name.
TREE = """
__init__ ops wiring core/__init__ core/spec specs/__init__ specs/norm machine/__init__ machine/device
kernels/__init__ kernels/norm kernels/softmax kernels/lib/__init__ kernels/lib/launch
kernels/attention/__init__ kernels/attention/fwd kernels/attention/bwd
backends/__init__ backends/registry backends/_a/__init__ backends/_a/ops/__init__ backends/_a/ops/add
backends/_b/__init__ faces/__init__ faces/aten faces/tex/__init__ faces/tex/backends/template
tools/__init__ tools/cli
""".split()

BREAKS = [
    ("core/spec", "import opmux.specs.norm", "opmux.specs.norm"),
    ("core/spec", "from opmux import specs", "opmux.specs"),
    ("core/spec", "from opmux import __version__", "opmux"),
    ("wiring", "from .machine import device", "opmux.machine.device"),
    ("wiring", "import torch", "torch"),
    ("core/spec", "from .. import machine", "opmux.machine"),
    ("core/spec", "from ..kernels.norm import rms_norm", "opmux.kernels.norm"),
    ("core/__init__", "from ..backends import registry", "opmux.backends.registry"),
    ("core/spec", "def f():\n    import opmux.tools.cli", "opmux.tools.cli"),
    ("core/spec", "try:\n    import yaml\nexcept ImportError:\n    yaml = None", "yaml"),
    *(("core/spec", f"import {name}", name) for name in ("triton.language", "numpy", "rich.table", "typer")),
    ("specs/norm", "import triton", "triton"),
    ("specs/norm", "from ..machine.device import vendor", "opmux.machine.device"),
    ("specs/norm", "import opmux.kernels.lib", "opmux.kernels.lib"),
    ("machine/device", "from opmux.specs import norm", "opmux.specs.norm"),
    ("machine/device", "import numpy as np", "numpy"),
    ("kernels/norm", "from . import softmax", "opmux.kernels.softmax"),
    ("kernels/norm", "from opmux.faces import aten", "opmux.faces.aten"),
    ("kernels/__init__", "from . import norm", "opmux.kernels.norm"),
    ("kernels/attention/fwd", "from ..norm import rms_norm", "opmux.kernels.norm"),
    ("kernels/lib/launch", "from ..norm import rms_norm", "opmux.kernels.norm"),
    ("kernels/lib/__init__", "from .. import attention", "opmux.kernels.attention"),
    ("backends/_a/ops/add", "from ..._b import thing", "opmux.backends._b"),
    ("backends/_a/ops/add", "from opmux.kernels.norm import rms_norm", "opmux.kernels.norm"),
    ("backends/registry", "from . import _a", "opmux.backends._a"),
    ("faces/aten", "import opmux.kernels.lib.launch", "opmux.kernels.lib.launch"),
    ("faces/tex/__init__", "from ...backends import registry", "opmux.backends.registry"),
    ("machine", "import triton", "triton"),
    ("stray/thing", "import os", "no row"),
]

FITS = [
    ("__init__", "def f():\n    from .faces import aten"),
    ("ops", "from .kernels import norm"),
    ("core/spec", "from __future__ import annotations\nimport os.path, torch.library\nfrom . import spec"),
    ("core/spec", "from .. import wiring"),
    ("core/__init__", "from .spec import Spec\nfrom opmux.core import spec"),
    ("specs/norm", "import torch\nfrom ..core.spec import op\nfrom . import norm"),
    ("tuning/device", "import yaml, torch\nfrom ..core import spec"),
    (
        "kernels/norm",
        "import triton\nfrom .lib import launch\nfrom ..specs import norm\nfrom ..machine import device",
    ),
    ("kernels/attention/fwd", "from .bwd import bwd\nfrom . import bwd\nfrom ..lib.launch import launch"),
    (
        "kernels/lib/launch",
        "import numpy, triton.language as tl\nfrom ...core import spec\nfrom . import launch",
    ),
    (
        "backends/_a/__init__",
        "from .. import VendorInfo\nfrom ..registry import VendorInfo\nfrom . import ops",
    ),
    ("backends/_a/ops/add", "import torch_npu\nfrom opmux.kernels.lib import launch\nfrom .. import ops"),
    ("faces/aten", "from ..specs import norm\nfrom ..machine.device import vendor\nimport opmux.faces.tex"),
    ("faces/tex/backends/template", "from opmux.faces.tex import thing\nfrom ... import aten"),
    ("tools/cli", "import typer, rich\nfrom opmux.kernels import norm\nfrom .. import backends"),
]


def grow(tmp_path: Path, module: str, source: str) -> Path:
    src = tmp_path / "src"
    for stem in [*TREE, module]:
        path = src / PKG / f"{stem}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    path.write_text(f'"""Made up."""\n{source}\n', encoding="utf-8")
    return src


@pytest.mark.parametrize(("module", "source", "culprit"), BREAKS)
def test_a_forbidden_import_is_found(tmp_path, module, source, culprit):
    forbidden = violations(grow(tmp_path, module, source))
    assert len(forbidden) == 1, forbidden
    if culprit != "no row":
        assert f"imports {culprit};" in forbidden[0]
        assert "may import: the standard library" in forbidden[0]
    assert forbidden[0].startswith(str(Path("src", PKG, f"{module}.py")) + ":")
    assert culprit in forbidden[0]


@pytest.mark.parametrize(("module", "source"), FITS)
def test_an_allowed_import_passes(tmp_path, module, source):
    assert violations(grow(tmp_path, module, source)) == []


def test_a_forbidden_import_is_reported_with_its_line(tmp_path):
    forbidden = violations(grow(tmp_path, "core/spec", "\n\ndef f():\n    import triton"))
    allowed = "the standard library, torch, opmux.core, opmux.wiring"
    assert forbidden == [f"src/opmux/core/spec.py:5 imports triton; core may import: {allowed}"]

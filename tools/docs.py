"""Writes the pages that are generated from the code.

`docs/ops.md`, `docs/ops/` and `docs/tex.md` come from the specs, `docs/settings.md` from the knobs,
`docs/new-backend.md` from the guide in the vendors' folder, `docs/aten_coverage.md` from ATen's schemas, the table
of tested versions in `docs/installing.md` from `tools/tested.json`, the tables in `docs/liger.md` and
`docs/flag_gems.md` from the censuses of the libraries' names, and the line numbers of diffs in `docs/extending.md` from
the files that they change.

    python tools/docs.py [--check] [DIR]

Pages go to DIR, by default `docs`; the type stubs `ops.pyi` and `tex.pyi` go to `src/opmux` beside this folder.
`--check` writes nothing, and fails if a file is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aten_coverage
import gems_census
import hunks
import liger_census
import measured
import op_pages
import stubs
import tested

from opmux.core import knobs
from opmux.core.spec import Spec, specs

SRC = Path(__file__).parents[1] / "src" / "opmux"


def settings_page() -> str:
    """The page of all settings: their names, types, defaults and meanings."""
    lines = [
        "# Settings",
        "",
        "Made by `make docs` from `core/knobs.py` and `settings.py`, and that of `faces/tex`; do not edit.",
        "",
    ]
    lines += [
        "A setting is read on first use: from the environment under its own name, then under the other names, then",
        "from a TOML file under its name in lower case without `OPMUX_`. That file is the one that `OPMUX_CONFIG`",
        "names; else `./opmux.toml`, then `opmux/opmux.toml` in `$XDG_CONFIG_HOME` or `~/.config`.",
        "`opmux doctor` shows each setting with its value and source.",
        "",
        "The current directory may be anybody's: an `opmux.toml` found there cannot name modules to import.",
        "",
        "| name | also | type | example | default | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for k in knobs.all_knobs():
        also = ", ".join(f"`{a}`" for a in k.aliases)
        default = "" if k.default is None or k.default == () else str(k.default)
        example = k.example.replace("|", "\\|")
        doc = k.doc.replace("|", "\\|")
        lines.append(f"| `{k.name}` | {also} | {k.kind.name} | `{example}` | {default} | {doc} |")
    lines += [
        "",
        "Order of precedence: the lists of allowed and denied vendors, a scope (`opmux.policy`), `opmux.set_policy`,",
        "`OPMUX_PER_OP`, `OPMUX_BACKEND`, `OPMUX_PLUGIN`, `OPMUX_PREFER`, `OPMUX_PREFER_VENDOR`, the file.",
        "",
        "```toml",
        "# opmux.toml",
        'prefer = "vendor"',
        'deny_vendors = ["bolt"]',
        "[per_op]",
        'rms_norm = ["vendor:acme", "opmux", "*"]',
        "```",
        "",
    ]
    return "\n".join(lines)


def tex_page() -> str:
    """The page of tex's functions, with the impls that compute each function."""
    from opmux.core.default import get_default_manager
    from opmux.core.registry import BackendImplKind, OpImpl
    from opmux.faces.tex.ops.unavailable import UNAVAILABLE

    registry = get_default_manager().registry
    registry.list_operators()  # loads all ops and kernels

    def named(spec: Spec, accepts: Callable[[OpImpl], bool]) -> str:
        """Name the ops that have an accepted impl: "itself" for the function, else the parts that have one."""
        if any(map(accepts, registry.impls(spec.key))):
            return "itself"
        parts = [p for p in spec.parts.values() if any(map(accepts, registry.impls(p.key)))]
        is_cast = lambda p: p.family in ("quant", "fused_quant")
        casts = ["the casts"] if any(map(is_cast, parts)) and spec.family != "tex_quantize" else []
        return ", ".join([p.name for p in parts if not is_cast(p) or not casts] + casts)

    ours = lambda impl: impl.kind is BackendImplKind.DEFAULT and impl.vendor is None
    library = lambda impl: impl.of_vendor("nvidia") and not impl.impl_id.endswith("transformer_engine")
    declared = sorted((s for s in specs if s.space == "tex"), key=lambda s: (s.family, s.name))
    available = [s for s in declared if s.name not in UNAVAILABLE]
    rows: list[str] = []
    speeds = measured.tex_speeds()
    for family in dict.fromkeys(s.family for s in declared):
        names = ["function", "meaning", "reference", "Triton", "NVIDIA", "speed"]
        cells = []
        for spec in (s for s in declared if s.family == family):
            needs = UNAVAILABLE.get(spec.name)
            reference = f"needs {_needs(needs)}" if needs else "yes"
            call, meaning, *_ = op_pages.spec_row(spec)
            cells.append([call, meaning, reference, named(spec, ours), named(spec, library), speeds.get(spec.name, "")])
        columns = [i for i in range(len(names)) if i < 5 or any(row[i] for row in cells)]
        rows += ["", f"### {family.removeprefix('tex_')}", ""]
        rows += op_pages.table([[row[i] for i in columns] for row in (names, *cells)])
    kernels = sum(bool(named(s, ours)) for s in available)
    guide = SRC / "faces" / "tex" / "README.md"
    lines = [guide.read_text(encoding="utf-8").rstrip(), "", "## Every function", ""]
    triton = "Triton kernels of ours"
    lines += [
        "Made by `make docs` from the specs; do not edit below.",
        f"{len(declared)} functions: {len(available)} run here, {kernels} of them on {triton}, all or in part;",
        f"{len(declared) - len(available)} need several GPUs or a library that is not built in, and say so.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| reference | in plain PyTorch, on any device |",
        "| Triton | the kernels of ours it runs on: the op itself, or the primitives it is made of |",
        "| NVIDIA | what of it cuBLAS, cuDNN or flash attention compute on an NVIDIA GPU |",
        "| speed | the time of a copy of as many bytes, divided by the function's time (`benchmarks/tex.py`) |",
        "",
        "Where NVIDIA's own `transformer_engine_torch` is installed, the backend `nvidia` has every function of it.",
        "`the casts` are the primitives of `quant` and `fused_quant`: to FP8 by a tensor's, a block's or MXFP8's",
        "scales, of a tensor or of what is computed in the same pass, and back.",
        *rows,
        "",
    ]
    return "\n".join(lines)


def _needs(row: Any) -> str:
    return str(getattr(row, "needs", row)).replace("|", "\\|")


def vendor_page() -> str:
    """The page of the vendors' guide, with links that work from docs/."""
    backends = SRC / "backends"
    text = (backends / "README.md").read_text(encoding="utf-8")
    links = re.compile(r"\]\((?![a-z]+:)([^)#]+)")
    return links.sub(lambda m: f"]({_from_docs(m[1])}", text)


def _from_docs(link: str) -> str:
    if link.startswith("../../../"):  # from the root of the repository
        path = link.removeprefix("../../../")
        return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
    return f"../src/opmux/backends/{link}"


def liger_page() -> str:
    """docs/liger.md with a new table of names; the rest of the page is written by hand."""
    page = Path(__file__).parents[1] / "docs" / "liger.md"
    return liger_census.page(page.read_text(encoding="utf-8"))


def flag_gems_page() -> str:
    """docs/flag_gems.md with a new table of names; the rest of the page is written by hand."""
    page = Path(__file__).parents[1] / "docs" / "flag_gems.md"
    return gems_census.page(page.read_text(encoding="utf-8"))


PAGES = {
    "settings.md": settings_page,
    "new-backend.md": vendor_page,
    "tex.md": tex_page,
    "aten_coverage.md": aten_coverage.page,
    "installing.md": tested.page,
    "liger.md": liger_page,
    "flag_gems.md": flag_gems_page,
    "extending.md": hunks.page,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=f"write docs/: {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    parser.add_argument("dir", nargs="?", type=Path, default=Path("docs"))
    options = parser.parse_args(argv)
    stale = []
    pages = [(options.dir / name, page()) for name, page in PAGES.items()]
    pages += [(options.dir / name, text) for name, text in op_pages.pages().items()]
    package = options.dir.resolve().parent / "src" / "opmux"
    if package.is_dir():
        pages += [(package / name, text) for name, text in stubs.stubs()]
    written = {path for path, _ in pages}
    for path in sorted((options.dir / "ops").glob("*.md")):
        if path not in written:  # the page of a family that no longer exists
            stale.append(str(path))
            if not options.check:
                path.unlink()
    for path, text in pages:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path))
            if not options.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path} {'is out of date: run make docs' if options.check else 'changed'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

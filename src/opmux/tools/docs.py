"""Writes the pages that follow from the code: `docs/ops.md` from the specs, `docs/settings.md` from the knobs, and
`docs/new-backend.md` from the guide that lies beside the vendors.

    python -m opmux.tools.docs [--check] [DIR]

`--check` writes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from ..core import knobs
from ..core.spec import Spec, specs


def ops_page() -> str:
    """Every op: signature, meaning, backward; one table a family."""
    lines = ["# Ops", "", "Made by `make docs` from the specs; do not edit.", ""]
    lines += ["`opmux.ops.<name>`. Ops of the space `tex` have NVIDIA's names and signatures.", ""]
    for family in specs.families:
        specs.load(family)
        rows = [s for s in specs.by_key.values() if s.family == family]
        lines += [f"## {family}", "", "| op | meaning | returns | backward | writes |", "|---|---|---|---|---|"]
        lines += [_op_row(s) for s in rows] + [""]
    return "\n".join(lines)


def _op_row(spec: Spec) -> str:
    params = []
    for p in spec.signature.parameters.values():
        params.append(p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}")
    call = f"`{spec.name}({', '.join(params)})`" + (" (tex)" if spec.space == "tex" else "")
    doc = re.sub(r"\s+", " ", spec.doc).replace("|", "\\|")
    writes = ", ".join(spec.mutates)
    return f"| {call} | {doc} | {', '.join(spec.out)} | {f'`{spec.grad}`' if spec.grad else ''} | {writes} |"


def settings_page() -> str:
    """Every setting: its names, type, default and meaning."""
    lines = ["# Settings", "", "Made by `make docs` from `core/knobs.py`; do not edit.", ""]
    lines += [
        "A setting is read from the environment under its own name, then under the other names, then from the TOML",
        "file (`OPMUX_CONFIG`, else `./opmux.toml`) under its name in lower case without `OPMUX_`, on first use.",
        "`opmux doctor` shows each with its value and source.",
        "",
        "| name | also | type | example | default | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for k in knobs.KNOBS.values():
        also = ", ".join(f"`{a}`" for a in k.aliases)
        default = "" if k.default is None or k.default == () else str(k.default)
        example = k.kind.example.replace("|", "\\|")
        doc = k.doc.replace("|", "\\|")
        lines.append(f"| `{k.name}` | {also} | {k.kind.name} | `{example}` | {default} | {doc} |")
    lines += [
        "",
        "Precedence of choice: the vendor lists filter first; then a scope (`opmux.policy`), `opmux.set_policy`,",
        "`OPMUX_PER_OP`, `OPMUX_BACKEND`, `OPMUX_PLUGIN`, `OPMUX_PREFER`, `OPMUX_PREFER_VENDOR`, the file.",
        "",
        "```toml",
        "# opmux.toml",
        'prefer = "vendor"',
        'deny_vendors = ["bolt"]',
        "[per_op]",
        'rms_norm = ["vendor:acme", "flagos", "*"]',
        "```",
        "",
    ]
    return "\n".join(lines)


def vendor_page() -> str:
    """The vendors' guide, with its links as they are from docs/."""
    backends = Path(__file__).parents[1] / "backends"
    text = (backends / "README.md").read_text(encoding="utf-8")
    links = re.compile(r"\]\((?![a-z]+:)([^)#]+)")
    return links.sub(lambda m: f"]({_from_docs(m[1])}", text)


def _from_docs(link: str) -> str:
    page = link.removeprefix("../../../docs/")
    return page if page != link else f"../src/opmux/backends/{link}"


PAGES = {"ops.md": ops_page, "settings.md": settings_page, "new-backend.md": vendor_page}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=f"write docs/: {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    parser.add_argument("dir", nargs="?", type=Path, default=Path("docs"))
    options = parser.parse_args(argv)
    stale = []
    for name, page in PAGES.items():
        path, text = options.dir / name, page()
        if not path.is_file() or path.read_text() != text:
            stale.append(str(path))
            if not options.check:
                path.write_text(text)
    for path in stale:
        print(f"{path} {'is out of date: run make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

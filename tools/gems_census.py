"""Lists the public names of FlagGems, and says which of them opmux serves.

    python tools/gems_census.py [--update FOLDER] [--all]

FOLDER contains an unpacked or installed `flag_gems`; its sources are read, not imported. `--update` adds its names to
`src/opmux/faces/flag_gems/original.txt`; names that only other versions of FlagGems have stay. `--update` also writes
`logged.txt`: how the log of `record=True` names ops. Each row of `original.txt` is a module, a name and what the name
is:

    (a, b=1)         a function, with its arguments
    class, constant  another value
    kernel           a Triton kernel
    from ops.mm      a name that a package exports; in the file, one row `*` lists all names from ops.mm after a colon
    module 12        a module whose 12 names are not listed, because it is refused as a whole
    module           a module that defines no name

`.` is the package itself. Names that start with an underscore count if a package exports them. `--all` prints the state
of each name. `rows()` and `page()` are for tests and `tools/docs.py`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from liger_census import Row, State, arguments_of, cells, statements

from opmux.faces.flag_gems import left, names, original

LIBRARY = "flag_gems"
FACTS = Path(__file__).parents[1] / "src" / "opmux" / "faces" / LIBRARY / "original.txt"
LABELS = FACTS.with_name("logged.txt")
UNLISTED = ("runtime.backend._",)  # their names are only counted
STARS = ("ops", "fused", "modules", "patches")  # packages whose names the root package exports, all of them
BEGIN, END = "<!-- made by make docs: names -->", "<!-- end of names -->"


def rows() -> list[Row]:
    """The rows of the stored file."""
    return [Row(*row) for row in original.rows()]


# ---- reading the original ----------------------------------------------------------------------------------------


def original_rows(folder: Path) -> list[Row]:
    """The rows of all modules below FOLDER/flag_gems."""
    found: list[Row] = []
    unlisted: Counter[str] = Counter()
    package = folder / LIBRARY
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts) or "."
        here = list(dict.fromkeys(_names(module, is_package, ast.parse(path.read_text(encoding="utf-8")))))
        if module.startswith(UNLISTED):
            unlisted[".".join(parts[:3])] += sum(not row.what.startswith("from ") for row in here)
            continue
        found += here or [Row(module, ".", "module")]
    found += [Row(module, ".", f"module {names}") for module, names in unlisted.items()]
    found += [Row(".", row.name, f"from {row.module}") for row in found if row.module in STARS and row.name != "."]
    return found


def _names(module: str, is_package: bool, tree: ast.Module) -> Iterator[Row]:
    for node in statements(tree.body):
        for name, what in _defined(node):
            exported = is_package and what.startswith("from ")
            if exported or not (name.startswith("_") or what.startswith("from ")):
                yield Row(module, name, what)


def _defined(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The names that a statement defines, and what they are."""
    match node:
        case ast.FunctionDef():
            is_kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
            yield node.name, "kernel" if is_kernel else arguments_of(node.args, bound=())
        case ast.ClassDef():
            yield node.name, "class"
        case ast.Assign():
            for target in (n for each in node.targets for n in ast.walk(each)):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    yield target.id, "constant"
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, "constant"
        case ast.ImportFrom(module=str(source)) if source.partition(".")[0] == LIBRARY:
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, f"from {source.partition('.')[2] or '.'}"
        case _:
            pass


def logged(folder: Path) -> dict[str, str]:
    """Function of `flag_gems.ops` -> how its log names it, if that is not its name in capitals."""
    found: dict[str, str] = {}
    for path in sorted((folder / LIBRARY / "ops").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == "logger.debug"]
            match calls:
                case [ast.Call(args=[ast.Constant(value=str(text)), *_]), *_] if isinstance(node, ast.FunctionDef):
                    label = text.removeprefix("GEMS ").partition(",")[0]
                    if text.startswith("GEMS ") and label != node.name.upper():
                        found[node.name] = label
                case _:
                    pass
    return found


def update(folder: Path) -> None:
    """Add the rows of FOLDER/flag_gems to the stored ones."""
    labels = [f"{name} {label}" for name, label in sorted(logged(folder).items())]
    LABELS.write_text("\n".join(labels) + "\n", encoding="utf-8")
    merged = {row[:2]: row for row in (rows() if FACTS.exists() else [])}
    merged |= {row[:2]: row for row in original_rows(folder)}
    exports: dict[tuple[str, str], list[str]] = {}
    for row in merged.values():
        if row.what.startswith("from "):
            exports.setdefault((row.module, row.what), []).append(row.name)
    grouped = [Row(module, "*", f"{source}: {' '.join(names)}") for (module, source), names in exports.items()]
    listed = [row for row in merged.values() if not row.what.startswith("from ")]
    lines = [" ".join(row) for row in sorted([*listed, *grouped], key=lambda row: row.module)]
    FACTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- what opmux serves -------------------------------------------------------------------------------------------


def state(row: Row) -> State:
    """The state of one row's name."""
    why = left.refused(row.module, row.name)
    has = _serves(row.module, row.name)
    if why is not None:
        return State("missing", "it is refused and served") if has and row.name != "." else State("refused", why)
    if not has:
        why = left.part(row.module, row.what)
        is_export = row.name in original.exports(row.module.partition(".")[0])
        return State("missing") if why is None or is_export else State("refused", why)
    why = left.different(row.module, row.name)
    return State("served") if why is None else State("different", why)


def _serves(module: str, name: str) -> bool:
    ours = names.MODULES.get(LIBRARY if module == "." else f"{LIBRARY}.{module}")
    if ours is None or name == ".":
        return ours is not None
    return hasattr(importlib.import_module(ours) if isinstance(ours, str) else ours, name)


@functools.cache
def states() -> dict[Row, State]:
    """The state of each row."""
    return {row: state(row) for row in rows()}


def _group(module: str) -> str:
    parts = module.split(".")
    if module == ".":
        return LIBRARY
    if parts[:2] == ["runtime", "backend"]:
        return "runtime.backend"
    return f"{parts[0]}.*" if parts[0] in ("ops", "fused", "experimental_ops") and len(parts) > 1 else parts[0]


def section() -> str:
    """The generated part of docs/flag_gems.md."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, dict[str, list[Row]]] = {"different": {}, "refused": {}}
    for row, found in states().items():
        number = int(row.what.partition(" ")[2] or 1) if row.name == "." else 1
        counts.setdefault(_group(row.module), Counter())[found.kind] += number
        if found.kind in reasons:
            reasons[found.kind].setdefault(found.why, []).append(row)
    lines = [BEGIN, "", "| modules | names | served | served differently | refused |", "|---|---|---|---|---|"]
    lines += [f"| `{group}` | {cells(each)} |" for group, each in sorted(counts.items())]
    lines += [f"| all | {cells(sum(counts.values(), Counter()))} |", ""]
    for title, kind in (("Served differently", "different"), ("Refused", "refused")):
        lines += [f"| {title.lower()} | why |", "|---|---|"]
        lines += [f"| {_listed(found)} | {why} |" for why, found in reasons[kind].items()]
        lines += [""]
    return "\n".join([*lines, END])


def _listed(found: list[Row]) -> str:
    """The names in a table cell. If there are many, only their number in each group of modules."""
    short = [*dict.fromkeys(row.name if row.name != "." else row.module for row in found)]
    if len(short) <= 24:
        return ", ".join(f"`{name}`" for name in short)
    groups: Counter[str] = Counter()
    for row in found:
        groups[_group(row.module)] += int(row.what.partition(" ")[2] or 1) if row.name == "." else 1
    return ", ".join(f"{count} in `{group}`" for group, count in groups.items())


def page(text: str) -> str:
    """docs/flag_gems.md with a new generated part."""
    before, _, rest = text.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="list FlagGems' names, and which of them opmux serves")
    parser.add_argument("--update", type=Path, metavar="FOLDER", help="add the names of FOLDER/flag_gems")
    parser.add_argument("--all", action="store_true", help="print each name")
    options = parser.parse_args(argv)
    if options.update:
        update(options.update)
    found = states()
    for row, each in found.items():
        if options.all or each.kind == "missing":
            print(f"{each.kind:10} {row.module}.{row.name} {row.what} {each.why}")
    print(dict(Counter(each.kind for each in found.values())))
    return 1 if any(each.kind == "missing" for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

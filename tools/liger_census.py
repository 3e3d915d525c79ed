"""Lists the public names of Liger-Kernel, and says which of them opmux serves.

    python tools/liger_census.py [--update FOLDER] [--all]

FOLDER contains an unpacked or installed `liger_kernel`; its sources are read, not imported. `--update` writes the names
that it has to `tests/faces/liger_signatures.txt`. Without FOLDER the names come from that file. Each row is a module, a
name and what the name is:

    (a, b=1)         a function or method, with its arguments
    class            a class without methods of its own
    constant         another value
    kernel (a, b)    a Triton kernel
    from ops.utils   an import from another module; in the file, the name `*` stands for the names after a colon
    module 12        a module; 12 is the number of its names if they are not listed, because it is refused as a whole

`--all` prints the state of each name. `rows()` and `section()` are for tests and `tools/docs.py`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FACTS = Path(__file__).parents[1] / "tests" / "faces" / "liger_signatures.txt"
LIBRARY = "liger_kernel"
UNLISTED = ("ops.cute", "ops.cutile", "ops.backends._ascend")  # their names are only counted
BEGIN, END = "<!-- made by make docs: names -->", "<!-- end of names -->"


class Row(NamedTuple):
    """A public name of Liger: its module (without `liger_kernel.`), the name or `Class.member`, and what it is."""

    module: str
    name: str
    what: str


def rows() -> list[Row]:
    """The rows of the stored file."""
    stored = [Row(*line.split(" ", 2)) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    return [row for each in stored for row in _expanded(each)]


def _expanded(row: Row) -> list[Row]:
    source, _, names = row.what.partition(": ")
    return [Row(row.module, name, source) for name in names.split()] if row.name == "*" else [row]


# ---- reading the original ----------------------------------------------------------------------------------------


def original(folder: Path) -> list[Row]:
    """The rows of all modules below FOLDER/liger_kernel."""
    found: list[Row] = []
    package = folder / LIBRARY
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        here = list(_names(module, ast.parse(path.read_text(encoding="utf-8"))))
        if not module:
            continue
        if module.startswith(UNLISTED) or not here:
            names = len({row.name.partition(".")[0] for row in here})
            here = [Row(module, ".", f"module {names}" if names else "module")]
        found += here
    return found


def _names(module: str, tree: ast.Module) -> Iterator[Row]:
    seen: dict[str, list[Row]] = {}
    for node in statements(tree.body):
        for name, made in _defined(module, node):
            if not name.startswith("_") and not (name in seen and made[0].what.startswith("from ")):
                seen[name] = made
    for made in seen.values():
        yield from made


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those inside `if` (lazy imports, for type checkers too), `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def _defined(module: str, node: ast.stmt) -> Iterator[tuple[str, list[Row]]]:
    """The names that a statement defines, with their rows."""
    match node:
        case ast.FunctionDef():
            is_kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
            yield node.name, [Row(module, node.name, ("kernel " if is_kernel else "") + arguments_of(node.args))]
        case ast.ClassDef():
            yield node.name, list(_members(module, node)) or [Row(module, node.name, "class")]
        case ast.Assign():
            for target in (n for each in node.targets for n in ast.walk(each)):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    yield target.id, [Row(module, target.id, "constant")]
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, [Row(module, name, "constant")]
        case ast.ImportFrom(module=str(source)) if source.partition(".")[0] == LIBRARY:
            for alias in node.names:
                name = alias.asname or alias.name
                yield name, [Row(module, name, f"from {source.partition('.')[2]}")]
        case _:
            pass


def _members(module: str, node: ast.ClassDef) -> Iterator[Row]:
    """The methods that users call; `forward` of an autograd.Function is its `apply`."""
    is_function = any("Function" in ast.unparse(base) for base in node.bases) or node.name.endswith("Function")
    for item in node.body:
        if not isinstance(item, ast.FunctionDef) or (item.name.startswith("_") and item.name != "__init__"):
            continue
        if item.name in ("backward", "extra_repr") or any("setter" in ast.unparse(d) for d in item.decorator_list):
            continue
        name = "apply" if is_function and item.name == "forward" else item.name
        yield Row(module, f"{node.name}.{name}", arguments_of(item.args))


def arguments_of(args: ast.arguments, bound: tuple[str, ...] = ("self", "cls", "ctx")) -> str:
    """The arguments as `inspect.signature` prints them, without annotations, and without those named in `bound`."""
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    texts = [_argument(a.arg, d) for a, d in zip(plain, defaults, strict=True) if a.arg not in bound]
    if args.vararg:
        texts.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        texts.append("*")
    texts += [_argument(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    texts += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return f"({', '.join(texts)})"


def _argument(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def update(folder: Path) -> None:
    """Write the rows of the original; rows of modules that it does not have stay."""
    found, stored = original(folder), rows()
    modules = {row.module for row in found}
    # An alias of a function (`liger_x = XFunction.apply`) keeps the arguments that were stored for it.
    arguments = {row[:2]: row for row in stored if row.what.startswith("(")}
    found = [arguments.get(row[:2], row) if row.what == "constant" else row for row in found]
    imports: dict[tuple[str, str], list[str]] = {}
    for row in found:
        if row.what.startswith("from "):
            imports.setdefault((row.module, row.what), []).append(row.name)
    grouped = [Row(module, "*", f"{source}: {' '.join(names)}") for (module, source), names in imports.items()]
    listed = [row for row in found if not row.what.startswith("from ")]
    kept = [row for row in stored if row.module not in modules or row.name.startswith("_")]
    lines = dict.fromkeys(" ".join(row) for row in sorted([*listed, *grouped, *kept], key=lambda row: row.module))
    FACTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- what opmux serves -------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Whether a name is "served", "different" or "refused", and why; "missing" if it is none of these."""

    kind: str
    why: str = ""


def state(row: Row) -> State:
    """The state of one row's name."""
    from opmux.faces.liger import left

    module, name = row.module, row.name.partition(".")[0]
    why = left.refused(module, name)
    has = _serves(module, name)
    if why is not None:
        return State("missing", "it is refused and served") if has and name else State("refused", why)
    if not has:
        return State("missing")
    why = left.different(module, name)
    return State("served") if why is None else State("different", why)


def _serves(module: str, name: str) -> bool:
    from opmux.faces.liger import names

    if module in ("ops.backends", "ops.backends.registry"):  # a package of opmux under Liger's name
        ours = importlib.import_module(f"opmux.{module.removeprefix('ops.')}")
        return hasattr(ours, name) if name else True
    table = names.MODULES.get(f"{LIBRARY}.{module}")
    return table is not None and (name == "" or name in table.homes)


def states() -> dict[tuple[str, str], State]:
    """(module, name) -> its state, for all listed names; modules of which names are not listed have the name ""."""
    return {(row.module, row.name.partition(".")[0]): state(row) for row in rows()}


def _group(module: str) -> str:
    """The package of a module, for a table."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("ops", "transformers") and len(parts) > 2 else parts[0]


def section() -> str:
    """The generated part of docs/liger.md."""
    counts: dict[str, Counter[str]] = {}
    refused: dict[str, list[tuple[str, str]]] = {}
    different: dict[str, list[tuple[str, str]]] = {}
    unlisted = {row.module: int(row.what.partition(" ")[2] or 0) for row in rows() if row.name == "."}
    for (module, name), found in states().items():
        number = 1 if name else unlisted[module]
        counts.setdefault(_group(module), Counter())[found.kind] += number
        where = {"refused": refused, "different": different}.get(found.kind)
        if where is not None:
            where.setdefault(found.why, []).append((module, name))
    lines = [BEGIN, "", "| modules | names | served | served differently | refused |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for group, each in sorted(counts.items()):
        total += each
        lines.append(f"| `{group}` | {cells(each)} |")
    lines += [f"| all | {cells(total)} |", ""]
    for title, table in (("Served differently", different), ("Refused", refused)):
        lines += [f"| {title.lower()} | why |", "|---|---|"]
        lines += [f"| {_listed(names)} | {why} |" for why, names in table.items()]
        lines += [""]
    return "\n".join([*lines, END])


def cells(each: Counter[str]) -> str:
    return " | ".join(str(n) for n in (each.total(), each["served"], each["different"], each["refused"]))


def _listed(names: list[tuple[str, str]]) -> str:
    """Names for a cell of a table: all if they are few, else without modules, else their number in each package."""
    short = [*dict.fromkeys(name or module for module, name in names)]
    if len(names) <= 8 or len(short) <= 8:
        texts = short if len(names) > 8 else [f"{module}.{name}".rstrip(".") for module, name in names]
        return ", ".join(f"`{text}`" for text in texts)
    packages = Counter(_group(module) for module, _ in names)
    return ", ".join(f"{count} in `{package}`" for package, count in packages.items())


def page(text: str) -> str:
    """docs/liger.md with a new generated part."""
    before, _, rest = text.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="list Liger-Kernel's names, and which of them opmux serves")
    parser.add_argument("--update", type=Path, metavar="FOLDER", help="read the names from FOLDER/liger_kernel")
    parser.add_argument("--all", action="store_true", help="print each name")
    options = parser.parse_args(argv)
    if options.update:
        update(options.update)
    found = states()
    for (module, name), each in found.items():
        if options.all or each.kind == "missing":
            print(f"{each.kind:10} {module}.{name} {each.why}")
    print(dict(Counter(each.kind for each in found.values())))
    return 1 if any(each.kind == "missing" for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

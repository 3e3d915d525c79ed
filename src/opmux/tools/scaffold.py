"""`opmux new-backend`: generates a complete package for a vendor's chip that works unchanged."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import typer

from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.registry import BackendImplKind
from ..faces.tex.names import BACKENDS
from ..machine import devices, vendors

TEMPLATE = Path(__file__).with_name("template")


class CannotMake(OpmuxError, ValueError):
    """Raised if the backend cannot be generated. Nothing was written."""


class TemplateFile(NamedTuple):
    """A file of the template: its source and target paths, and its purpose."""

    source: str
    target: str
    about: str


FOLDER = (
    TemplateFile("__init__.py", "__init__.py", "the vendor's name and device type, and how to detect a chip"),
    TemplateFile("heuristics_config_utils.py", "heuristics_config_utils.py", "tiles that suit the chip"),
    TemplateFile("tune_configs.yaml", "tune_configs.yaml", "what `opmux tune` tries"),
    TemplateFile("ops/__init__.py", "ops/__init__.py", "the ops that it implements"),
    TemplateFile("ops/silu_mul.py", "ops/silu_mul.py", "one op, as an example"),
)


@dataclass(frozen=True)
class NewBackend:
    """The package to write: its vendor, its device type, and its folder."""

    name: str
    device: str
    root: Path  # the folder of all files: a new folder, or a checkout of opmux
    in_tree: bool

    @property
    def package(self) -> str:
        return f"opmux.backends._{self.name}" if self.in_tree else f"opmux_{self.name}"

    @property
    def parts(self) -> tuple[TemplateFile, ...]:
        home = f"src/{self.package.replace('.', '/')}"
        folder = tuple(TemplateFile(f"backend/{source}", f"{home}/{target}", about) for source, target, about in FOLDER)
        tests = "tests/backends" if self.in_tree else "tests"
        test = TemplateFile("tests/test_backend.py", f"{tests}/test_{self.name}.py", "its ops against the references")
        if self.in_tree:
            return (*folder, test)
        entry = TemplateFile("pyproject.toml", "pyproject.toml", "the entry point by which opmux finds it")
        return (entry, TemplateFile("README.md", "README.md", "what to do next, in order of payoff"), *folder, test)

    @property
    def new(self) -> list[Path]:
        """The paths that must not exist yet."""
        if not self.in_tree:
            return [self.root]
        return [self.root / "src/opmux/backends" / f"_{self.name}", self.root / self.parts[-1].target]

    def text(self, part: TemplateFile) -> str:
        """A file of the template with the names filled in."""
        names = {
            "VENDOR_NAME": self.name,
            "VENDOR_TITLE": self.name.capitalize(),
            "DEVICE_NAME": self.device,
            "PACKAGE_NAME": self.package,
            "TORCH_PACKAGE": "" if self.device in OF_TORCH else f"torch_{self.device}",
        }
        text = (TEMPLATE / part.source).read_text(encoding="utf-8")
        return re.sub("|".join(names), lambda match: names[match[0]], text)


OF_TORCH = ("cpu", "cuda", "xpu", "mps", "mtia", "hpu")  # device types that torch itself has


def run(name: str, device: str, out: Path | None, in_tree: bool) -> int:
    """Write the package, and print the next steps."""
    backend = plan(name, device, out, in_tree)
    write(backend)
    where = shown(backend.root)
    typer.echo(f"{name}: a backend for devices of type {device}, in {where}")
    width = max(len(part.target) for part in backend.parts)
    for part in backend.parts:
        typer.echo(f"  {part.target:<{width}}  {part.about}")
    others = sorted(p.name for p in vendors.known().values() if p.device == device)
    if others:
        typer.echo(
            f"\n{device} is a device type of {', '.join(others)} too. On a machine with both, their query commands"
        )
        typer.echo(f"decide, or OPMUX_VENDOR={name}.")
    typer.echo("\nNext:")
    for command in commands(backend):
        typer.echo(f"  {command}")
    typer.echo(f"then follow {'src/opmux/backends' if in_tree else where}/README.md.")
    return 0


def commands(backend: NewBackend) -> list[str]:
    """The commands that install the package and check it."""
    install = [f"pip install --no-deps --no-build-isolation -e {shlex.quote(shown(backend.root))}"]
    conform = f"opmux conform --vendor {backend.name}"
    if backend.device in devices.accelerators():
        conform = f"OPMUX_VENDOR={backend.name} {conform}"  # because another vendor's chip may have this device type
    elif backend.device in OF_TORCH:
        conform += " --device cpu"  # torch's own device types cannot be simulated
    return [*([] if backend.in_tree else install), f"opmux list {backend.name}", conform]


def shown(path: Path) -> str:
    """The path, relative to the current folder if it is inside."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)


# ---- checks of the options ------------------------------------------------------------------------------------------


def plan(name: str, device: str, out: Path | None, in_tree: bool) -> NewBackend:
    """The requested package; raises CannotMake if it must not be written."""
    _check_name(name)
    if not re.fullmatch(r"[a-z][a-z_]*", device):
        raise CannotMake(f"--device {device!r} is no name of a device type. Allowed: small letters and _, such as npu")
    if device in ("cpu", "meta"):
        raise CannotMake(f"--device {device}: the package needs Triton, which does not run there. Name another type")
    if in_tree:
        backend = NewBackend(name, device, _checkout(out), True)
    else:
        backend = NewBackend(name, device, (out or Path()).absolute() / f"opmux-{name}", False)
    for path in backend.new:
        if os.path.lexists(path):
            raise CannotMake(f"{path} exists and is not overwritten. Remove it, or name another folder with --out")
    return backend


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        near = re.sub(r"\W+", "_", name.casefold(), flags=re.ASCII).strip("_")
        hint = f": {near}" if re.fullmatch(r"[a-z][a-z0-9_]*", near) else ", such as acme"
        raise CannotMake(
            f"{name!r} cannot be a vendor's name. Allowed: small letters, digits and _, with a letter first{hint}"
        )
    if name in {*BACKENDS, *(str(kind) for kind in BackendImplKind), "cpu", "native", "opmux"}:
        raise CannotMake(f"'{name}' has another meaning where a vendor is named. Choose another name")
    get_default_manager().prepare()  # plugins may define vendors
    known = vendors.get(name)
    if known is not None:
        source = known.folder or known.origin
        raise CannotMake(f"a vendor '{name}' exists already: {source}. Choose another name, or change that package")
    if importlib.util.find_spec(f"opmux_{name}") is not None:
        raise CannotMake(f"a package opmux_{name} is installed already. Choose another name, or uninstall it")


def _checkout(out: Path | None) -> Path:
    """The root of a checkout of opmux: the folder `out`, or else the checkout that runs this code."""
    root = Path(__file__).absolute().parents[3] if out is None else out.absolute()
    if (root / "src/opmux/backends/registry.py").is_file() and (root / "tests/backends").is_dir():
        return root
    what = f"--out {out}" if out is not None else f"the opmux that runs ({Path(__file__).parents[1]})"
    raise CannotMake(f"--in-tree adds a folder to a checkout of opmux; {what} is not one. Name one with --out")


# ---- writing --------------------------------------------------------------------------------------------------------


def write(backend: NewBackend) -> None:
    """Write all files or none. They are written to a temporary folder, which is renamed at the end."""
    target, *more = backend.new
    texts = {part.target: backend.text(part) for part in backend.parts}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise CannotMake(f"{target} cannot be written: {error}") from None
    try:
        inside = target.relative_to(backend.root).as_posix() if backend.in_tree else ""
        for name, text in texts.items():
            path = staging / name.removeprefix(inside).lstrip("/") if name.startswith(inside) else backend.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp's folders are readable only by their owner
        staging.rename(target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        for path in more:
            path.unlink(missing_ok=True)
        raise CannotMake(f"{target} cannot be written: {error}") from None

"""Imports `transformer_engine`, NVIDIA's Python layer, over our tex. The finder in `imports.py` changes its modules:

| module | what happens when it is imported |
|---|---|
| `transformer_engine.common` | it does not search NVIDIA's libraries, and does not load its C++ extension |
| `transformer_engine.pytorch.*`, `.debug.*` | without CUDA: the source is rewritten for this device (`rewrite`) |
| any | names that this torch lacks, or that have a bug in it, come from `torch_names` |
| `transformer_engine.pytorch.triton.*`, `.cross_entropy` | without CUDA: our ops replace Triton kernels (`served`) |
| `transformer_engine.pytorch.jit` | without CUDA: nothing is compiled unless NVTE_TORCH_COMPILE is set |
| `transformer_engine.pytorch.onnx_extensions` | placeholders for onnx and onnxscript, if they are not installed |

No file is written, and no other module (torch, for example) is changed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...core import machine
from ...imports import LAYER, PLUGINS, TEX, Grant, finder
from ..tex import interface
from . import bytecode, rewrite, torch_names
from .chip import SubstituteDevice

VERSIONS = ("2.20", "2.9")  # the versions of the layer that our tex supports
NEEDED = ("einops", "numpy", "packaging", "pydantic", "triton")  # packages that the layer always imports
OPTIONAL = ("onnx", "onnxscript")  # packages that the layer needs only for export to ONNX
REWRITTEN = ("pytorch", "debug", "common.triton")  # packages to rewrite; the others do not use torch
WITH_KERNELS = ("pytorch.triton", "pytorch.cross_entropy")  # modules that contain the layer's own Triton kernels
INSTALL_HINT = "pip install '.[te]' in a clone of opmux"

_grant: Grant | None = None
_holders: set[str] = set()  # the callers of `install` that have not called `uninstall`


def install(holder: str = "opmux.te") -> None:
    """Make `import transformer_engine.pytorch` load NVIDIA's layer over our tex."""
    global _grant
    if _grant is None:
        tex = interface.module()
        check_layer(tex)
        if sys.modules.get(TEX) is not tex:
            sys.modules.pop(TEX, None)
        _grant = grant(chip_here())
        finder.add(_grant)
        if f"{LAYER}.common" in sys.modules:  # it was already imported, without transformer_engine.pytorch
            _skip_extension(sys.modules[f"{LAYER}.common"])
    importlib.import_module(TEX)
    _holders.add(holder)


def uninstall(holder: str = "opmux.te") -> None:
    """Undo `install`: a later import loads the installed package. Existing objects of the layer stay valid.

    If another caller (`opmux.compat`) has also called `install`, nothing changes until that caller uninstalls too.
    """
    global _grant
    _holders.discard(holder)
    if _grant is None or _holders:
        return
    finder.remove(_grant)
    _grant = None
    for name in [n for n in sys.modules if n == TEX or n.partition(".")[0] == LAYER]:
        del sys.modules[name]


def installed() -> bool:
    return _grant is not None


def chip_here() -> SubstituteDevice | None:
    """The device that replaces "cuda" in the sources; None if no rewrite is needed."""
    if torch.cuda.is_available() and torch.version.cuda is not None:
        return None
    return SubstituteDevice(next(iter(machine.accelerators()), "cpu"))


def check_layer(tex: types.ModuleType) -> None:
    """Raise if the layer cannot work on this machine; warn if it may not work."""
    if sys.modules.get(TEX, tex) is not tex and f"{LAYER}.pytorch" in sys.modules:
        raise ImportError(
            f"{LAYER}.pytorch is already imported, on NVIDIA's own extension. Put `import opmux.te` before the first "
            f"`import {LAYER}` of the program"
        )
    if importlib.util.find_spec(LAYER) is None:
        raise ImportError(f"{LAYER} is not installed: {INSTALL_HINT}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"{LAYER} imports {', '.join(missing)}, not installed here: {INSTALL_HINT}")
    version = layer_version()
    if not version.startswith(tuple(f"{v}." for v in VERSIONS)):
        warnings.warn(
            f"{LAYER} {version} is installed; opmux.te was tested with {' and '.join(f'{v}.x' for v in VERSIONS)}",
            stacklevel=4,
        )


def layer_version() -> str:
    """The version of the layer that would be imported, from its distribution or its source tree."""
    try:
        return importlib.metadata.version(LAYER)
    except importlib.metadata.PackageNotFoundError:
        return _source_version()


def _source_version() -> str:
    spec = importlib.util.find_spec(LAYER)
    file = Path(spec.origin).parents[1] / "build_tools" / "VERSION.txt" if spec and spec.origin else None
    return file.read_text(encoding="utf-8").strip() if file and file.is_file() else "0"


def grant(chip: SubstituteDevice | None) -> Grant:
    """Tell the finder to provide our tex and plugins, and to replace the loaders of the layer's modules."""

    def change(name: str, spec: importlib.machinery.ModuleSpec | None) -> importlib.machinery.ModuleSpec | None:
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        rewritten = name.startswith(tuple(f"{LAYER}.{part}" for part in REWRITTEN))
        spec.loader = Loader(spec.loader.name, spec.loader.path, chip if rewritten else None)
        return spec

    return Grant((TEX, *PLUGINS), shadows=(TEX,), change=change, distributions=_sources)


def _sources(context: Any) -> Iterator[importlib.metadata.Distribution]:
    """The package metadata of a source tree that is not installed, because the layer queries its own version."""
    name = getattr(context, "name", None)
    if name is None or name.replace("-", "_") != LAYER:
        return
    others = [getattr(other, "find_distributions", None) for other in sys.meta_path if other is not finder]
    if not any(any(True for _ in find(context)) for find in others if find is not None):
        yield _Sources()


class _Sources(importlib.metadata.Distribution):
    """The distribution of a source tree of the layer that is not installed."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {LAYER}\nVersion: {_source_version()}\n"

    def locate_file(self, path: Any) -> Any:
        spec = importlib.util.find_spec(LAYER)
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parents[1] / path


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the layer from its file, with changes."""

    def __init__(self, fullname: str, path: str, chip: SubstituteDevice | None):
        super().__init__(fullname, path)
        self.chip = chip

    def get_code(self, fullname: str) -> types.CodeType | None:
        path, kind, imports = self.get_filename(fullname), self.chip and self.chip.type, torch_names.replaced()
        if not rewrite.may_need_rewrite(source := self.get_data(path), kind, imports):
            return super().get_code(fullname)
        # Not Python's bytecode cache, which contains the code of the unmodified file.
        return bytecode.code_of(source, path, kind, imports)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__.removeprefix(f"{LAYER}.")
        if self.chip is not None:
            setattr(module, rewrite.CHIP, self.chip)
        with contextlib.ExitStack() as stack:
            if name == "common":
                stack.enter_context(_environment(NVTE_PROJECT_BUILDING="1", NVTE_RELEASE_BUILD="0"))
            elif name == "pytorch.jit" and self.chip is not None:
                # Without a GPU there may be no compiler, and compiling small functions saves no time.
                stack.enter_context(_environment(NVTE_TORCH_COMPILE=os.environ.get("NVTE_TORCH_COMPILE", "0")))
            elif name == "pytorch.onnx_extensions":
                stack.enter_context(_placeholders())
            super().exec_module(module)
        if name == "common":
            _skip_extension(module)
        if self.chip is not None and name.startswith(WITH_KERNELS):
            from . import served  # imported late, because it imports our ops

            served.replace(name, module)


def _skip_extension(common: types.ModuleType) -> None:
    load = common.load_framework_extension
    common.load_framework_extension = lambda framework: None if framework == "torch" else load(framework)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _placeholders() -> Iterator[None]:
    """In this block, `sys.modules` has placeholders for missing packages; a later call of one raises ImportError."""
    missing = [name for name in OPTIONAL if name not in sys.modules and importlib.util.find_spec(name) is None]
    for name in missing:
        sys.modules[name] = Placeholder(name)
    Placeholder.importing = True
    try:
        yield
    finally:
        Placeholder.importing = False
        for name in missing:
            del sys.modules[name]


class Placeholder(types.ModuleType):
    """A placeholder for a missing package, or for any attribute of it."""

    importing = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not Placeholder.importing:
            package = self.__name__.partition(".")[0]
            raise ImportError(f"{self.__name__}: export to ONNX needs {package}: pip install onnxscript")
        return self

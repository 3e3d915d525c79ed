"""`opmux build` compiles all of opmux's C++; `opmux doctor` shows the state of each library."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..cpp import build
from ..cpp import library as native_library
from ..machine import vendors
from ..settings import CPP

COMMAND = "opmux build"


class Compiled(NamedTuple):
    """A library that is compiled on this machine."""

    name: str
    without: str  # what is slower without it
    is_built: Callable[[], bool]
    is_being_compiled: Callable[[], bool]
    compile: Callable[..., Path]


def libraries() -> list[Compiled]:
    """The native library, and the library of the CPU's kernels."""
    ours = native_library
    compiled = [Compiled(ours.NAME, ours.LOST, ours.is_built, ours.is_being_compiled, ours.compile)]
    if package := vendors.known().get("cpu"):
        cpu = importlib.import_module(f"{package.module}.ops.native")
        lost = "ops on a CPU run as plain PyTorch"
        compiled.append(Compiled(cpu.NAME, lost, cpu.is_built, cpu.is_being_compiled, cpu.compile))
    return compiled


def state_of(library: Compiled) -> str:
    """A library's state, in words. If the library is not compiled: also what is slower now, and how to compile it.

    The states are: compiled, being compiled, not compiled yet, off, no compiler, the compiler fails, headers are
    missing, the cache folder cannot be used.
    """
    lost = f"Without it, {library.without}"
    if not CPP.get():
        return f"off: {CPP.name}=0; unset it to change that. {lost}"
    try:
        built = library.is_built()
        compiling = not built and library.is_being_compiled()
    except build.CannotBuild as error:
        then = f"; then run `{COMMAND}`" if error.state != "off" else ""
        return f"{error.state}: {error}{then}. {lost}"
    if built:
        return "compiled"
    if compiling:
        return f"another process compiles it now, in some 30 s. Until then, {library.without}"
    return f"not compiled yet: `{COMMAND}` compiles it in some 30 s, as does the first use. {lost}"


def before_measuring(device: str) -> None:
    """On a CPU, compile the libraries now, because until then calls would run torch's own ops."""
    if device != "cpu" or not CPP.get():
        return
    from . import screen

    for library in libraries():
        try:
            if not library.is_built():
                screen.err().print(f"compiling {library.name}, once for this machine: some 30 s", style="dim")
                library.compile()
        except build.CannotBuild as error:
            screen.err().print(f"{library.name} is not compiled: {error}. Without it, {library.without}", style="dim")


def run() -> int:
    """Compile every library that is not compiled yet. Returns 0, or 2 if one cannot be compiled."""
    import typer  # here, because `make setup` lists the libraries while typer is being installed

    if not CPP.get():
        typer.echo(f"opmux: C++ is off: {CPP.name}=0. Unset it, and run `{COMMAND}` again", err=True)
        return 2
    failed = False
    for library in libraries():
        started = time.monotonic()
        try:
            built = _compile(library)
        except build.CannotBuild as error:
            typer.echo(f"opmux: {library.name} is not compiled: {error}. Without it, {library.without}", err=True)
            failed = True
            continue
        took = f"compiled in {time.monotonic() - started:.0f} s: {built}" if built else "compiled before"
        typer.echo(f"{library.name}: {took}")
    return 2 if failed else 0


def _compile(library: Compiled) -> Path | None:
    """Compile a library, even if that has failed before. Returns None if it was already compiled."""
    with contextlib.suppress(build.CompilerFails):
        if library.is_built():
            return None
    return library.compile(retry=True)

"""A simulated accelerator under any device name, to try a vendor's backend without its chip.

`simulate("npu")` creates devices npu:0 and npu:1 in this process's own memory, through PrivateUse1, torch's dispatch
key for other vendors. They have tensors with real storages, strides and views, a current device, streams, events,
generators, autocast, `torch.npu` and `torch.accelerator`. An op without a kernel for the device runs the CPU's kernel
on the device's memory, and is counted: `fallbacks()` lists what a backend does not cover. A kernel that is registered
for PrivateUse1 takes precedence, and Triton's kernels run in its interpreter.

The simulation shows whether dispatch, registration, vendor packages and models work under that device's name, and give
right results. It also detects mistakes that the CPU hides: tensors of two devices in one op, a generator of the wrong
device, results that are never written (fresh memory is NaN, because all its bits are 1). It does not show speed, races,
the order of streams, what a chip lacks (dtypes, memory), or what its compiler refuses. There are no sparse or quantized
tensors, no inductor and no collectives. A device type that torch itself has cannot be simulated: vendors whose device
is `cuda` need their chip.

The simulation lasts as long as the process, has one device type, and must start before the first `backward()` and
before triton is imported. Compiling it takes about 20 s, once.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr

from ...core.errors import OpmuxError
from ...cpp import build

FLAGS = ("-O1",)
_now: dict[str, Any] = {}  # the arguments of `simulate` in this process; empty before


class CannotSimulate(OpmuxError, RuntimeError):
    """Raised if a device cannot be simulated in this process. The message says what to do."""


def simulate(device: str, arch: str | None = None, name: str | None = None, count: int = 2) -> None:
    """Create `count` simulated devices of the type `device` in this process; repeating the same call is a no-op.

    `torch.<device>.get_device_properties(i)` returns `arch` and `name`. The module's docstring lists the limits of the
    simulation.
    """
    from . import launch

    requested = {k: v for k, v in dict(device=device, arch=arch, name=name).items() if v is not None}
    if _now:
        if requested.items() <= _now.items():
            return
        raise CannotSimulate(f"simulate({_as_text(requested)}) after simulate({_as_text(_now)}): one name per process")
    _check(device, count)
    if launch.compiles():
        raise CannotSimulate(
            f"triton was imported before simulate({device!r}), and compiles its kernels: call simulate first, or set "
            f"{launch.VARIABLE}=1 before the import"
        )
    build.library("simulator", sources(), flags=FLAGS)  # if this fails, nothing has been changed yet
    launch.interpret()
    name = name or f"Simulated {device}"
    _register(device, arch, name, count)
    launch.on(device)
    _now.update(device=device, arch=arch, name=name, count=count)


def sources() -> list[Path]:
    """The source files of the simulator's library."""
    folder = Path(__file__).parent
    return sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])


def fallbacks() -> dict[str, int]:
    """Op -> how often it ran the CPU's kernel because the device has none, most first: {"aten::mm.out": 3}.

    If the device has no kernel for the functional overload of a `structured` op of ATen, torch calls the `out=`
    overload. So the `out=` overload is counted, although a kernel for the functional overload would cover the call.
    """
    counts = torch.ops.opmux_simulator.fallbacks() if _now else {}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def forget_fallbacks() -> None:
    """Reset the counts to 0."""
    if _now:
        torch.ops.opmux_simulator.forget_fallbacks()


def run(
    device: str | None,
    code: str,
    *,
    arch: str | None = None,
    count: int = 2,
    env: Mapping[str, str] | None = None,
    limit: float = 300.0,
    start: Callable[..., subprocess.CompletedProcess[str]] | None = None,
) -> Any:
    """Run a program in a new process, on a simulated device if `device` is given. Returns its last line as JSON.

    Raises RuntimeError with the program's stderr if it fails or takes more than `limit` seconds. `start(command, env=,
    timeout=)`, if given, starts the process instead of `subprocess.run`, and returns the same kind of object.
    """
    first = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    if device is not None:
        first = f"from opmux.tools.simulator import simulate; simulate({device!r}, {arch!r}, count={count}); {first}"
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
    where = "the CPU" if device is None else f"a simulated {device}"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "simulated.py")  # a file, because triton reads the source of kernels
        program.write_text(code, encoding="utf-8")
        command = [sys.executable, "-X", "faulthandler", "-c", first, str(program)]
        try:
            done = (start or _start)(command, env=variables, timeout=limit)
        except subprocess.TimeoutExpired as error:
            stderr = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
            raise RuntimeError(f"the program on {where} took over {limit:g} s:\n{stderr}") from None
    if done.returncode:
        raise RuntimeError(f"the program on {where} failed ({done.returncode}):\n{done.stderr}")
    lines = done.stdout.splitlines()
    try:
        return json.loads(lines[-1] if lines else "")
    except ValueError:
        raise RuntimeError(f"the program on {where} printed no JSON last:\n{done.stdout[-2000:]}") from None


_start = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", errors="replace", check=False)


# ---- the steps of simulate ------------------------------------------------------------------------------------------


def _as_text(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in arguments.items())


def _check(device: str, count: int) -> None:
    if not re.fullmatch("[a-z_]+", device):
        raise CannotSimulate(f"a device's name has small letters and _, such as 'npu'; got {device!r}")
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise CannotSimulate(f"this process has a device {taken!r} already: torch accepts one additional device type")
    try:
        torch.device(device)
    except RuntimeError:
        pass
    else:
        raise CannotSimulate(f"{device!r} is one of torch's own device types, and cannot be simulated")
    if not 1 <= count <= 64:
        raise CannotSimulate(f"count = {count}. Allowed: 1 to 64 devices")


def _register(device: str, arch: str | None, name: str, count: int) -> None:
    from . import device as module

    graphs = _get_sequence_nr()  # number of autograd nodes that this thread has created
    torch.utils.rename_privateuse1_backend(device)
    build.load("simulator", sources(), flags=FLAGS)
    torch.ops.opmux_simulator.set_count(count)
    module.type_name, module.count, module.properties = device, count, module.Properties(name, arch)
    torch._register_device_module(device, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if graphs:
        _try_backward(device)


def _try_backward(device: str) -> None:
    """Raise if a backward ran before: at a process's first backward, autograd creates its queues, one per device."""
    try:
        torch.ones(1, device=device, requires_grad=True).sum().backward()
    except RuntimeError as error:
        raise CannotSimulate(
            f"backward() ran in this process before simulate({device!r}): autograd counts the devices then. "
            "Call simulate first"
        ) from error


__all__ = ["CannotSimulate", "simulate", "fallbacks", "forget_fallbacks", "run"]

"""Starts auto mode's planner, a separate process that plans and compiles the calls that C++ launches.

The second time a call occurs, the gate (native/gate.cpp, planner.h) sends the call's key to the planner, and runs
torch's own kernel until the planner answers. The planner (tools/planning.py) runs the call on meta tensors with
Triton's compiler, without a device. It answers with what to launch: kernels, grids and parameters. So a program never
waits for Python or for a compiler.

The planner knows this machine's chip, the environment and the settings files, but not what the program sets in code.
After `set_policy`, or if an implementation is registered, C++ records calls in this process instead (launching.py),
within the time that `gate.allow` grants.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import IO, Any

import torch

from ...core import launches
from ...core.default import get_default_manager
from ...core.discovery import plugins_are_named
from ...core.dispatch import is_foreign
from ...core.errors import OpmuxError
from ...core.lock import lock
from ...core.log import logger
from ...core.policy import from_knobs, get_global_policy
from ...cpp import background, build, launching
from ...cpp import library as native_library
from ...machine import devices, vendors
from ...settings import PLANNER
from . import gate

MOST_WORKERS = 4
DEVICE = "cuda"  # the only device type on which C++ launches kernels
PROGRAM = "import sys; sys.path[:] = {path!r}; from opmux.tools.planning import main; main()"


class _PlannerState:
    process: subprocess.Popen[bytes] | None = None
    socket: socket.socket | None = None
    ended: list[subprocess.Popen[bytes]] = []  # stopped processes that have not exited yet
    knows: dict[str, Any] = {}  # the result of `_facts` with which the process was started
    errors: IO[bytes] | None = None  # the process's stderr
    failed = False


def use(on: bool) -> None:
    """Start the planner and use it for auto mode's calls; with False, stop using it, but leave its process running."""
    planner_socket = start() if on else None
    if planner_socket is not None:
        launching.planned()
    gate.plan(planner_socket)


def start() -> socket.socket | None:
    """Start the planner's process, unless it runs; None if it cannot be used, or not be started. In any thread."""
    if not _possible():
        return None
    with lock.held:
        try:
            return _running()
        except (OSError, RuntimeError, TypeError) as error:
            _PlannerState.failed = True
            logger.warning("auto mode plans calls in this process, as no other one can be started: %s", error)
            return None


def _possible() -> bool:
    if _PlannerState.failed or not PLANNER.get() or not native_library.available() or not launching.drives():
        return False
    return (devices.arch_of(DEVICE) or "").startswith("sm_") and _decides_alike()


def _decides_alike() -> bool:
    """Whether the planner would choose the same implementations as this process: nothing set in code, no failures."""
    manager = get_default_manager()
    if plugins_are_named() or vendors.changed_in_code() or manager.failures():
        return False
    try:
        from_settings = from_knobs()
    except OpmuxError:  # the program has set an opmux environment variable to an invalid value
        return False
    return get_global_policy() == from_settings and not any(map(is_foreign, manager.registry.all_impls()))


def _running() -> socket.socket:
    """The planner's socket. Starts a planner if none runs, or if the running planner was started with other facts."""
    facts = _facts()
    if _PlannerState.process is not None and _PlannerState.process.poll():
        assert _PlannerState.errors is not None
        _PlannerState.errors.seek(0)
        stderr = _PlannerState.errors.read().decode(errors="replace").strip()[-400:]
        raise RuntimeError(f"it ended with status {_PlannerState.process.returncode}: {stderr}")
    if (
        _PlannerState.socket is None
        or _PlannerState.knows != facts
        or _PlannerState.process is None
        or _PlannerState.process.poll() is not None
    ):
        stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _PlannerState.process = _start(theirs, facts)
        finally:
            theirs.close()
        _PlannerState.socket, _PlannerState.knows = ours, facts
        if _check not in launches.on_rebind:
            launches.on_rebind.append(_check)
            launches.on_forget.append(stop)
    return _PlannerState.socket


def _start(theirs: socket.socket, facts: dict[str, Any]) -> subprocess.Popen[bytes]:
    workers = max(1, min(MOST_WORKERS, background.cores_of_rank() // 4))
    facts_json = json.dumps({**facts, "workers": workers, "socket": theirs.fileno()})
    command = [sys.executable, "-c", PROGRAM.format(path=background.module_path()), facts_json]
    # The planner does not use the device, and each of its workers uses one core.
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    env.pop("TRITON_INTERPRET", None)
    _PlannerState.errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has failed
    return build.start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=_PlannerState.errors,
        env=env,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # so that Ctrl-C interrupts only the program
    )


def _facts() -> dict[str, Any]:
    """What the planner's answers depend on: the chip, and which overload each number in a request stands for.

    A planner with other facts must be restarted. The facts do not include the cores that this process may use, because
    programs and their libraries change these at any time.
    """
    chip = devices.chip_of(DEVICE)
    properties = torch.cuda.get_device_properties()
    return {
        "chip": list(vars(chip).values()),
        "devices": [i for i in range(torch.cuda.device_count()) if torch.cuda.get_device_name(i) == chip.name],
        "cores": properties.multi_processor_count,
        "shared": getattr(properties, "shared_memory_per_block_optin", 0),
        "overloads": {slot: name for (device, name), slot in gate.slots().items() if device == DEVICE},
    }


def _check() -> None:
    """Stop the planner if the program has changed something in code, which the planner cannot see."""
    if _PlannerState.socket is not None and not _decides_alike():
        logger.info(
            "auto mode plans calls in this process from now on: a policy or an implementation was set in code, or an "
            "implementation has failed"
        )
        stop()


def stop() -> None:
    """End the process; C++ sends no requests until `use` is called again."""
    gate.plan(None)
    launching.clear()  # ignore answers that arrive later
    process, ours = _PlannerState.process, _PlannerState.socket
    _PlannerState.process = _PlannerState.socket = None
    if ours is not None:  # C++ closes its copy of the descriptor when the connection ends
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
    if process is not None:  # it exits after its current compilation and removes its files
        _PlannerState.ended = [p for p in (*_PlannerState.ended, process) if p.poll() is None]


if hasattr(os, "register_at_fork"):

    def _renew() -> None:
        _PlannerState.process = _PlannerState.socket = None  # after a fork: both belong to the parent process
        _PlannerState.ended = []

    os.register_at_fork(after_in_child=_renew)

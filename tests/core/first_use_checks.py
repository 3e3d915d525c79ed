"""Faults during a first use, each in a forked child. Run as a script by test_first_use_faults.py; prints JSON.

A child traces its first use, and at the k-th line of our code raises, or forks. Then it repeats the same use. The
results, impls, policy, vendors and modules must equal those of a child without a fault.
"""

import faulthandler
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections import Counter
from functools import partial
from pathlib import Path

import torch

import opmux
from opmux import imports
from opmux.core import discovery, get_default_manager, policy, registry, specs
from opmux.faces.aten import engine
from opmux.machine import vendors

SRC = str(Path(opmux.__file__).parent)
SITE = tempfile.mkdtemp(prefix="first_use_")
ERRORS = (KeyboardInterrupt, RuntimeError, MemoryError)
LOOPS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")

FAMILY = """
from torch import Tensor
from opmux.core import op
from opmux.core.adapter import adapt

@op(grad="fault_twice_bwd")
def fault_twice(x: Tensor) -> Tensor:
    return late(x)

@op(out="dx")
def fault_twice_bwd(dy: Tensor) -> Tensor:
    return late(dy)

@adapt("tex::fault_four", over=fault_twice)
def fault_four(call, x: Tensor) -> Tensor:
    return call(call(x))

def late(x):
    return x + x
"""
KERNELS = """
from opmux.core import impl
from opmux.specs import fault_family as spec

@impl(spec.fault_twice, devices={"cpu"})
def twice(x):
    return x * 2

@impl(spec.fault_twice_bwd, devices={"cpu"})
def twice_bwd(dy):
    return dy * 2
"""
PLUGIN = """
import torch
from torch import Tensor
import opmux
from opmux.core import BackendImplKind, OpImpl, get_default_manager, impl, op
from . import more

@op
def plug_half(x: Tensor) -> Tensor:
    return x / 2

@impl(plug_half, id="vendor.tagged", kind="vendor", vendor="plug")
def tagged(x):
    return x * 0.5

scope = opmux.policy("reference")

def register(registry):
    with scope:
        assert opmux.ops.fault_twice(torch.ones(1)).item() == 2
    opmux.set_policy(prefer="vendor")
    registry.register_impl(OpImpl("fault_twice", "vendor.plug", BackendImplKind.VENDOR, "plug", lambda x: x * 2))
"""
MORE = """
from opmux.core import impl
@impl("fault_twice_bwd", id="vendor.more", kind="vendor", vendor="plug")
def twice_bwd(dy):
    return dy * 2
"""
VENDOR = """
from opmux.backends import VendorInfoBase
vendor_info = VendorInfoBase("chippy", "chip")
"""


def write(name: str, text: str) -> None:
    path = Path(SITE, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def install() -> None:
    write("specs/fault_family.py", FAMILY)
    write("kernels/fault_family.py", KERNELS)
    write("site/plug/__init__.py", PLUGIN)
    write("site/plug/more.py", MORE)
    write("site/chippy/__init__.py", VENDOR)
    entries = "[opmux.backends]\nplug = plug\nchippy = chippy\n"
    write("site/plug-1.0.dist-info/entry_points.txt", entries)
    write("site/plug-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    import opmux.kernels
    import opmux.specs

    opmux.specs.__path__.append(f"{SITE}/specs")
    opmux.kernels.__path__.append(f"{SITE}/kernels")


def warm_up() -> None:
    """Import everything large that is not under test, so that a child's first use is short."""
    for family in specs.families:
        if family != "fault_family":
            specs.load(family)
    vendors.known_so_far()
    importlib.import_module("opmux.backends._cpu.ops")
    for name in ("triton", "torch._dynamo", "torch._subclasses.fake_tensor"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    get_default_manager()._register_declared()
    # Search only the test's folder: searching all installed distributions takes longer than the rest of a child.
    here = f"{SITE}/site"
    importlib.metadata.entry_points = lambda group: [
        entry
        for distribution in importlib.metadata.distributions(path=[here] if here in sys.path else [])
        for entry in distribution.entry_points
        if entry.group == group
    ]


# ---- first uses -----------------------------------------------------------------------------------------------------


def use_family() -> list:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    y = opmux.ops.fault_twice(x)
    y.sum().backward()
    return [y.tolist(), x.grad.tolist(), opmux.ops.fault_four(torch.ones(1)).tolist()]


def use_plugins() -> list:
    if f"{SITE}/site" not in sys.path:
        sys.path.insert(0, f"{SITE}/site")
    return [*use_family(), opmux.ops.plug_half(torch.ones(1)).tolist()]


def use_enable() -> list:
    names = opmux.enable(include=["softmax", "native_layer_norm"], mode="all")
    x = torch.tensor([[0.0, 0.0]])
    return [torch.softmax(x, -1).tolist(), torch.nn.functional.layer_norm(x, (2,)).tolist(), sorted(names)]


def portrait() -> dict:
    """The state of the process that tests compare."""
    gc.collect()  # a traceback may keep a scope alive
    get_default_manager().prepare()
    table = get_default_manager().registry
    own = [k for k in table if "fault_" in k or "plug_" in k]
    ids = lambda key: sorted(f"{i.impl_id} of {table.origin(key, i.impl_id).plugin}" for i in table.impls(key))
    return {
        "impls": {k: ids(k) for k in own},
        "count": sum(len(table.impls(k)) for k in table),
        "first": {k: get_default_manager().get_selected_impl_id(k) for k in own},
        "policy": str(policy.get_policy()),
        "scopes": policy.live_scopes(),
        "vendors": sorted(vendors.known()),
        "left out": sorted(vendors.broken()),
        "tagged": len(registry.tagged),
        "plugins": {p.name: p.status for p in discovery.plugins()},
        "torch": [n for n in ("fault_twice", "fault_twice_bwd", "plug_half") if hasattr(torch.ops.opmux, n)],
        "stand-ins": not imports.finder.grants and not imports.finder.given,
        "meta_path": len(sys.meta_path),
        "enabled": sorted(engine.STATE.requested),
        "overridden": {d: sorted(overrides.entries) for d, overrides in engine._devices.items()},
    }


def ready_to_enable() -> None:
    """Import all but one of the op families, and half of the adapters; the child imports the rest."""
    get_default_manager().prepare()
    for family in specs.families:
        if family not in ("fault_family", "softmax"):
            specs.load_implementers(family)
    for name in ("activation", "norm", "channel_norm", "random"):
        importlib.import_module(f"opmux.faces.aten.{name}")
    get_default_manager().prepare()


# name -> (first use, preparation in the parent, number of faults). The order matters: plugins are loaded only once.
SCENARIOS = {
    "plugins": (use_plugins, lambda: None, 120),
    "family": (use_family, lambda: get_default_manager().prepare(), 340),
    "enable": (use_enable, ready_to_enable, 50),
}


# ---- faults ---------------------------------------------------------------------------------------------------------


class Trace:
    """Counts the lines of our code that a thread runs, and calls a function at one of them."""

    def __init__(self, line: int = -1, act=None):
        self.count, self.at, self.act, self.where = 0, line, act, None
        self.calls: Counter[types.CodeType] = Counter()

    def local(self, frame, event, arg):
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.where = f"{frame.f_code.co_filename.removeprefix(SRC)}:{frame.f_lineno}"
                self.act()
        return self.local

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith((SRC, SITE)) or code.co_name in LOOPS:
            return None
        self.calls[code] += 1
        return self.local if self.calls[code] <= 4 else None  # trace only the first calls of each function


def traced(use, trace: Trace):
    sys.settrace(trace)
    try:
        return use()
    finally:
        sys.settrace(None)


def fork(work, limit: int = 60) -> dict:
    """Fork a child that runs the function, and return its result."""
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        faulthandler.register(signal.SIGALRM, chain=True)  # a hanging child prints its stack and is killed
        signal.alarm(limit)
        try:
            out = work()
        except BaseException:
            out = {"failed": traceback.format_exc()}
        os.write(start, json.dumps(out).encode())
        os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else {"failed": f"died with status {status}"}


def clean(use) -> dict:
    trace = Trace()
    report = {"result": traced(use, trace), "lines": trace.count}
    use()
    return report | {"portrait": portrait()}


def after_fault(use, k: int, kind: type) -> dict:
    def act():
        sys.settrace(None)
        raise kind("injected")

    trace, got = Trace(k, act), None
    try:
        traced(use, trace)
    except BaseException as error:
        got = type(error).__name__
    try:
        result = use()
    except AttributeError as error:  # the op belongs to a plugin that was not loaded
        result = str(error) if "plug_half" in str(error) else 1 / 0
    return {"where": trace.where, "got": got, "result": result, "portrait": portrait()}


def after_fork(use, k: int) -> dict:
    """Fork the process while a thread is in the middle of a first use. The child then makes its own first use."""
    here, forked = threading.Event(), threading.Event()

    def act():
        here.set()
        forked.wait(20)

    trace = Trace(k, act)

    def work():
        try:
            traced(use, trace)
        finally:
            here.set()

    thread = threading.Thread(target=work)
    thread.start()
    here.wait(20)
    out = fork(lambda: {"result": use(), "portrait": portrait()}, limit=25)
    forked.set()
    thread.join(20)
    out["mine"] = use()
    return out | {"where": trace.where}


def same(result: dict, expected: dict) -> bool:
    return result.get("result") == expected["result"] and result.get("portrait") == expected["portrait"]


def run(name: str, part: float) -> dict:
    use, ready, faults = SCENARIOS[name]
    ready()
    gc.collect()
    gc.freeze()  # the children's garbage collector skips what exists now
    expected = fork(lambda: clean(use))
    if "failed" in expected:
        return {"faults": 0, "bad": [expected]}
    lines, count, forks = expected["lines"], int(faults * part), int(faults * part / 10)
    report = {"faults": count, "forks": forks, "lines": lines, "bad": [], "expected": expected}
    for i in range(count):
        k, kind = 1 + (lines - 1) * i // max(1, count - 1), ERRORS[i % 3]
        result = fork(partial(after_fault, use, k, kind))
        # An error in a plugin's code or during its import is reported as the plugin's error.
        reported = kind is RuntimeError and name == "plugins" and "portrait" in result and left_out(result, expected)
        reported = reported or failed_impl(result, expected)
        if not same(result, expected) and not reported:
            report["bad"].append({"k": k, "kind": kind.__name__, **result})
    for i in range(forks):
        result = fork(partial(after_fork, use, 1 + lines * i // forks))
        if "portrait" in result:
            # At the fork, the parent's thread may be in a scope. The child cannot tell whether that scope has ended.
            result["portrait"]["scopes"] = 0
        if not same(result, expected) or result["mine"] != expected["result"]:
            report["bad"].append({"fork": True, **result})
    return report


def failed_impl(result: dict, expected: dict) -> bool:
    """Whether the error was raised in a kernel, in the check of a result, or in a part that a composition called.
    The impl is skipped from then on; nothing else may have changed.
    """
    if "portrait" not in result or result["result"] != expected["result"]:
        return False
    if {k for k, v in result["portrait"].items() if v != expected["portrait"][k]} != {"first"}:
        return False
    first = result["portrait"]["first"]
    passed_over = {k for k, v in first.items() if v != expected["portrait"]["first"][k]}
    own = any(file in result["where"] for file in ("kernels/fault_family.py", "core/results.py", "core/tensors.py"))
    return own or passed_over == {"tex::fault_four"}


def left_out(result: dict, expected: dict) -> bool:
    """Whether a plugin or a vendor's folder was reported as broken, and left nothing behind."""
    if result["portrait"]["left out"]:
        return {**result["portrait"], "left out": [], "count": 0} == {**expected["portrait"], "count": 0}
    plugins = result["portrait"]["plugins"]
    broken = [n for n, status in plugins.items() if status == "broken"]
    if len(broken) != 1 or (result["portrait"]["stand-ins"], result["portrait"]["scopes"]) != (True, 0):
        return False
    if broken == ["chippy"]:
        return "chippy" not in result["portrait"]["vendors"] and result["result"] == expected["result"]
    impls = [i for row in result["portrait"]["impls"].values() for i in row]
    policy_is_ours = "prefer=opmux" in result["portrait"]["policy"]
    return (
        policy_is_ours and not [i for i in impls if "of plug" in i] and "plug_half" not in result["portrait"]["torch"]
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    install()
    warm_up()
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else list(SCENARIOS)
    portion = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    reports = {}
    for title in (n for n in SCENARIOS if n in names):
        started = time.monotonic()
        reports[title] = run(title, portion)
        reports[title]["seconds"] = time.monotonic() - started
    print(json.dumps(reports))

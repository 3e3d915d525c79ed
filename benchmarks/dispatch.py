"""The cost of dispatch in ns per call, compared with a plain Python call of the same function body in the same run.

    python benchmarks/dispatch.py [--json FILE] [--quick]

Both calls go through the same kind of lambda. `time.thread_time` and the best of many repeats make times independent of
other load. Compare the ratios, because absolute ns depend on the core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import torch

import opmux
from opmux.core import BackendImplKind, OpImpl, OpRegistry, machine, op, reset_global_policy

TARGETS = {
    "opmux.ops.x": 2.5,
    "held reference": 2.5,
    "no_grad, differentiable": 2.5,
    "manager.call": 6.0,
    "manager.call, no spec, three impls": 8.0,
}


def body(x, weight, eps=1e-6):
    return x


def own_body(x, weight, eps=1e-6):
    return x


# Marks own_body as an impl of ours, which checks for tracers itself.
own_body.__module__ = "opmux.bench"


def body_bwd(dy, x, weight, eps):
    return dy, weight


def best_ns(fn, plain, repeats: int, loops: int) -> tuple[float, float]:
    """The best time of a `fn()` and of a `plain()`, in ns of thread CPU time. They alternate, as clocks drift."""
    clock, span = time.thread_time_ns, range(loops)

    def once(f) -> float:
        start = clock()
        for _ in span:
            f()
        return (clock() - start) / loops

    times = [(once(fn), once(plain)) for _ in range(repeats)]
    return min(t for t, _ in times), min(t for _, t in times)


def declare_ops() -> None:
    """Declare the benchmark's ops, whose bodies do nothing: several without a gradient, and one with a gradient."""
    t = torch.Tensor
    names = dict.fromkeys(("bench_plain", "bench_reference", "bench_dtype", "bench_device"))
    names["bench_grad"] = "bench_grad_bwd"
    for name, grad in names.items():
        fn = lambda x, weight, eps=1e-6: x
        fn.__name__, fn.__doc__ = name, "Does nothing."
        fn.__annotations__ = {"x": t, "weight": t, "eps": float, "return": t}
        new_op = op(fn, grad=grad, fake=lambda x, weight, eps=1e-6: x.clone())
        setattr(opmux.ops, name, new_op)
    fn = lambda dy, x, weight: (dy, weight)
    fn.__name__, fn.__annotations__ = "bench_grad_bwd", {"dy": t, "x": t, "weight": t, "return": tuple[t, t]}
    op(fn, out="dx dweight", fake=lambda dy, x, weight: (dy.clone(), weight.clone()))
    registry = opmux.core.get_default_manager().registry
    for name in ("bench_plain", "bench_grad"):  # registered like the CPU's own kernels
        registry.register_impl(
            OpImpl(name, "default.bench", BackendImplKind.DEFAULT, fn=own_body, declines_tracers=True)
        )
    registry.register_impl(
        OpImpl("bench_dtype", "vendor.bench", BackendImplKind.VENDOR, "bench", body, 0, {torch.float32})
    )
    registry.register_impl(
        OpImpl("bench_device", "vendor.bench", BackendImplKind.VENDOR, "bench", body, devices={"cpu"})
    )


def register(count: int, into: OpRegistry) -> None:
    for i in range(len(into), count):
        for kind, vendor in (
            (BackendImplKind.DEFAULT, None),
            (BackendImplKind.VENDOR, "v"),
            (BackendImplKind.REFERENCE, None),
        ):
            into.register_impl(OpImpl(f"bench_op_{i}", f"{kind.value}.bench", kind, vendor, body))


def cases() -> dict[str, tuple]:
    """name -> (the call through opmux, the plain call that it is compared with)."""
    x, w = torch.ones(4), torch.ones(4)
    manager = opmux.core.get_default_manager()
    ops, held, call = opmux.ops, opmux.ops.bench_plain, manager.call
    grad, keyed = opmux.ops.bench_grad, opmux.ops.bench_dtype
    plain = lambda: body(x, w)
    own = OpRegistry()
    register(1, own)
    manager_of_own = opmux.core.OpManager(own)
    named, resolved = manager_of_own.call, manager_of_own.resolve("bench_op_0")
    return {
        "opmux.ops.x": (lambda: ops.bench_plain(x, w), plain),
        "held reference": (lambda: held(x, w), plain),
        "keyword and default": (lambda: held(x, weight=w, eps=1e-5), lambda: body(x, weight=w, eps=1e-5)),
        "a reference alone": (lambda: ops.bench_reference(x, w), plain),
        "manager.call": (lambda: call("bench_plain", x, w), plain),
        "manager.call, no spec, three impls": (lambda: named("bench_op_0", x, w), plain),
        "resolve(), no spec, three impls": (lambda: resolved(x, w), plain),
        "impl from outside, dtype-keyed": (lambda: keyed(x, w), plain),
        "grad mode on, not needed": (lambda: grad(x, w), plain),
    }


def measure(repeats: int, loops: int, ops: int, threads: int) -> list[dict]:
    rows = []

    def row(name, fn, plain) -> None:
        fn(), plain()
        ns, base = best_ns(fn, plain, repeats, loops)
        rows.append({"case": name, "ops": ops, "threads": threads, "ns": ns, "plain_ns": base, "ratio": ns / base})

    table = cases()
    for name, (fn, plain) in table.items():
        row(name, fn, plain)
    fn, plain = table["grad mode on, not needed"]
    with torch.no_grad():
        row("no_grad, differentiable", fn, plain)
    with opmux.policy("reference"):
        row("scope live", *table["held reference"])
        row("scope live, manager.call", *table["manager.call"])
    with threading_scope():
        row("scope live in another thread", *table["held reference"])
    with second_device():
        x, w, device = torch.ones(4), torch.ones(4), opmux.ops.bench_device
        row("second device class", lambda: device(x, w), table["held reference"][1])
    return rows


class TwoDevices(machine.Machine):
    """A machine with an accelerator, so that dispatch must check the device of impls that are for one device."""

    def accelerators(self) -> tuple[str, ...]:
        return ("meta",)


@contextmanager
def second_device():
    before = machine.current()
    machine.set_machine(TwoDevices())
    opmux.core.get_default_manager().invalidate("benchmark")
    try:
        yield
    finally:
        machine.set_machine(before)
        opmux.core.get_default_manager().invalidate("benchmark")


class threading_scope:
    """A policy block that another thread has entered and not left."""

    def __enter__(self):
        self.ready, self.done = threading.Event(), threading.Event()

        def hold():
            with opmux.policy("reference"):
                self.ready.set()
                self.done.wait()

        self.thread = threading.Thread(target=hold)
        self.thread.start()
        self.ready.wait()

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()


def with_neighbour(fn):
    """Run `fn` while a second thread calls the same op in a loop."""
    stop = threading.Event()
    x, w, held = torch.ones(4), torch.ones(4), opmux.ops.bench_plain

    def busy():
        while not stop.is_set():
            held(x, w)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        return fn()
    finally:
        stop.set()
        thread.join()


def show(rows: list[dict]) -> None:
    print("ns per call, and ratio to a plain Python call of the same body")
    print(f"{'case':36}{'ops':>6}{'threads':>9}{'ns':>8}{'over plain':>12}{'ratio':>8}  target")
    for r in rows:
        target = TARGETS.get(r["case"])
        mark = "" if target is None else f"  {target}x {'ok' if r['ratio'] <= target else 'OVER'}"
        over = f"+{r['ns'] - r['plain_ns']:.0f}"
        print(f"{r['case']:36}{r['ops']:>6}{r['threads']:>9}{r['ns']:>8.0f}{over:>12}{r['ratio']:>7.2f}x{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and few ops, for a look")
    options = parser.parse_args()
    repeats, loops = (5, 1_000) if options.quick else (25, 20_000)
    reset_global_policy()
    declare_ops()
    registry = opmux.core.get_default_manager().registry
    rows = []
    for count in (10,) if options.quick else (10, 140, 500):
        register(count, registry)
        rows += measure(repeats, loops, len(registry), 1)
    rows += with_neighbour(lambda: measure(repeats, loops, len(registry), 2))
    show(rows)
    if options.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        where = {
            "date": str(date.today()),
            "commit": commit,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "clock": "time.thread_time_ns, best of repeats",
        }
        options.json.write_text(json.dumps({"facts": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

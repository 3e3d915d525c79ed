"""Threads and forks: no lost call, no wrong impl, no hanging child."""

from __future__ import annotations

import gc
import os
import random
import sys
import textwrap
import threading
import time

import fresh
import pytest
import torch

import opmux
from opmux.core import (
    BackendImplKind,
    OpImpl,
    OpManager,
    OpRegistry,
    SelectionPolicy,
    entry,
    policy_context,
    reset_global_policy,
    set_global_policy,
)
from opmux.core import policy as policies

VENDOR, REFERENCE, DEFAULT = BackendImplKind.VENDOR, BackendImplKind.REFERENCE, BackendImplKind.DEFAULT


def test_eight_threads_may_register_switch_and_call(slow):
    """Each call must return a result that a policy in force during the call allows.

    Each thread has its own scope, under which exactly one impl of its op may run. Meanwhile the process policy changes,
    and impls are registered and removed.
    """
    registry = OpRegistry()
    ops = [f"op{n}" for n in range(8)]
    for op in ops:
        registry.register_impl(OpImpl(op, "ref", REFERENCE, None, lambda x: ("ref", x)))
        registry.register_impl(OpImpl(op, "def", DEFAULT, None, lambda x: ("def", x)))
        for v in range(4):
            registry.register_impl(OpImpl(op, f"v{v}", VENDOR, f"v{v}", lambda x, v=v: (f"v{v}", x)))
    manager = OpManager(registry)
    held = {op: manager.resolve(op) for op in ops}
    stop = time.monotonic() + (30 if slow else 4)
    calls, problems = [0] * 8, []

    def call(me, rng, allowed):
        op = rng.choice(ops)
        token = rng.random()
        result = manager.call(op, token) if rng.random() < 0.5 else held[op](token)
        calls[me] += 1
        if result[1] != token or result[0] not in allowed:
            problems.append((result, allowed))

    def work(me):
        rng = random.Random(me)
        try:
            while time.monotonic() < stop and not problems:
                dice = rng.random()
                if dice < 0.4:
                    mine = f"v{rng.randrange(4)}"
                    order = {op: [f"vendor:{mine}"] for op in ops}
                    with policy_context(SelectionPolicy(per_op_order=order)):
                        for _ in range(5):
                            call(me, rng, {mine})
                elif dice < 0.5:
                    name, op = f"t{me}.{rng.random()}", rng.choice(ops)
                    impl = OpImpl(op, name, VENDOR, f"t{me}", lambda x, name=name: (name, x), priority=-1)
                    registry.register_impl(impl)
                    with policy_context(SelectionPolicy(per_op_order={op: [f"impl:{name}"]})):
                        token = rng.random()
                        result = manager.call(op, token)
                        calls[me] += 1
                        if result != (name, token):
                            problems.append((result, name))
                    registry.unregister(op, name)
                elif dice < 0.6:
                    set_global_policy(SelectionPolicy(prefer=rng.choice(["flagos", "reference"])))
                else:
                    for _ in range(5):
                        call(me, rng, {"ref", "def"})
        except Exception as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert problems == []
    assert min(calls) > 50, calls
    assert {op: len(registry.get_implementations(op)) for op in ops} == dict.fromkeys(ops, 6)


def test_freeing_a_scope_does_not_hide_a_new_one():
    """A thread that frees the last scope waits for the lock. Meanwhile an op is bound, and a new scope is created: the
    op must follow the new scope.
    """
    registry = OpRegistry()
    registry.register_impl(OpImpl("op", "def", DEFAULT, None, lambda x: "def"))
    registry.register_impl(OpImpl("op", "v", VENDOR, "v", lambda x: "v"))
    manager = OpManager(registry)
    held = manager.resolve("op")
    scopes = [policies._track(policies.Scope((), None))]
    known = policies.live_scopes() - 1
    with policies.lock.held:
        thread = threading.Thread(target=scopes.clear)
        thread.start()
        while policies.live_scopes() > known:
            time.sleep(0.001)
        assert (manager.call("op", 1), held(1)) == ("def", "def")
        with policy_context(SelectionPolicy(per_op_order={"op": ["vendor:v"]})):
            assert (manager.call("op", 1), held(1)) == ("v", "v")
    thread.join()


def test_ctrl_c_while_a_scope_is_entered_does_not_hide_a_later_one(monkeypatch):
    """The traceback of Ctrl-C keeps the first scope alive; the second scope must still be registered."""
    interrupted = []

    def watch(live):
        interrupted.append(live)
        if len(interrupted) == 1:
            raise KeyboardInterrupt

    for name, value in {"_watchers": [watch], "_live": {}, "_notified": False}.items():
        monkeypatch.setattr(policies, name, value)
    with pytest.raises(KeyboardInterrupt) as raised:
        policies._track(policies.Scope((), None))
    second = policies._track(policies.Scope((), None))
    assert interrupted == [True, True] and policies.live_scopes() == 2
    del second, raised


def test_a_switch_applies_to_every_later_call(slow):
    """After set_global_policy returns, no thread's next call may run the old impl."""
    registry = OpRegistry()
    for kind, name in ((DEFAULT, "flagos"), (REFERENCE, "reference")):
        registry.register_impl(OpImpl("op", name, kind, None, lambda name=name: name))
    manager = OpManager(registry)
    held, stop = manager.resolve("op"), threading.Event()
    others = [threading.Thread(target=lambda: [held() for _ in iter(stop.is_set, True)]) for _ in range(3)]
    for t in others:
        t.start()
    try:
        for n in range(2000 if slow else 400):
            want = "reference" if n % 2 else "flagos"
            set_global_policy(SelectionPolicy(prefer=want))
            assert held() == manager.call("op") == want
    finally:
        stop.set()
        for t in others:
            t.join()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


def run(script: str) -> str:
    result = fresh.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@needs_fork
def test_a_fork_while_another_thread_registers_is_safe():
    """At the fork, another thread holds the lock. That thread does not exist in the child, but the child must work."""
    out = run(
        """
        import os, threading, sys
        import torch, opmux
        from opmux.core import OpImpl, OpManager, OpRegistry, BackendImplKind, get_default_manager
        from opmux.core.lock import lock

        registry = OpRegistry()
        registry.register_impl(OpImpl("op", "ref", BackendImplKind.REFERENCE, None, lambda x: x + 1))
        manager = OpManager(registry)
        opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))
        stop = threading.Event()

        def churn():
            n = 0
            while not stop.is_set():
                n += 1
                with lock.held:  # hold it long enough that a fork is likely to meet it
                    registry.register_impl(OpImpl("op", f"v{n}", BackendImplKind.VENDOR, "v", lambda x: x + 1))
                    manager.call("op", 1)
                    registry.unregister("op", f"v{n}")

        thread = threading.Thread(target=churn)
        thread.start()
        worked = 0
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                ok = manager.call("op", 1) == 2
                registry.register_impl(OpImpl("op", "child", BackendImplKind.DEFAULT, None, lambda x: x + 10))
                ok &= manager.call("op", 1) == 11
                with opmux.policy("reference"):
                    ok &= manager.call("op", 1) == 2
                ok &= bool(opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))[0].eq(1).all() | True)
                os._exit(0 if ok else 1)
            _, status = os.waitpid(pid, 0)
            worked += status == 0
        stop.set()
        thread.join()
        print(worked, registry.list_operators(), [i.impl_id for i in registry.get_implementations("op")])
        """
    )
    assert out.split("\n")[0] == "40 ['op'] ['ref']"


@needs_fork
def test_a_forked_child_does_not_repeat_discovery():
    """A forked child can register impls, and does not print the parent's log lines again."""
    out = run(
        """
        import logging, os, sys
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
        import torch, opmux
        opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))
        sys.stdout.flush()
        if os.fork() == 0:
            print("child")
            opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        """
    )
    parent, child = out.split("child\n")
    assert "Registered impl_ids: [" in parent and "'reference.torch'" in parent
    assert child == ""


def test_first_calls_on_many_threads_bind_once(caplog):
    import logging

    registry = OpRegistry()
    registry.register_impl(OpImpl("op", "ref", REFERENCE, None, lambda x: x))
    manager, gate = OpManager(registry), threading.Barrier(8)

    def work():
        gate.wait()
        assert manager.call("op", 1) == 1

    with caplog.at_level(logging.INFO, "opmux"):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    lines = [r.getMessage() for r in caplog.records]
    assert lines == ["Registered impl_ids: ['ref']", "Op 'op' using 'ref' (kind=reference, vendor=None)"]


def test_a_manager_can_be_garbage_collected():
    import weakref

    registry = OpRegistry()
    registry.register_impl(OpImpl("op", "ref", REFERENCE, None, lambda x: x))
    manager = OpManager(registry)
    manager.call("op", torch.ones(1))
    with opmux.policy("reference"):
        manager.call("op", torch.ones(1))
    gone = weakref.ref(manager)
    del manager
    opmux.set_policy("reference")  # makes scopes release what they had bound
    gc.collect()
    assert gone() is None


def test_managers_and_scopes_may_be_freed_while_others_are_counted():
    """Garbage collection may run in any line that allocates; in Python 3.11 also inside `tuple(...)`."""
    gc.collect()
    before, known = gc.get_threshold(), policies.live_scopes()
    try:
        for later in range(120):
            gc.set_threshold(100_000)
            for _ in range(20):
                one = {"manager": OpManager(OpRegistry())}
                with policy_context(SelectionPolicy(prefer="vendor")):
                    one["self"], one["scope"] = one, entry.scope.get()  # a cycle: only the garbage collector frees it
            del one
            gc.set_threshold(1 + gc.get_count()[0] + later % 40, 1, 1)
            policies.live_scopes()
            set_global_policy(SelectionPolicy(prefer="vendor"))
    finally:
        gc.set_threshold(*before)
        reset_global_policy()
    gc.collect()
    assert policies.live_scopes() <= known

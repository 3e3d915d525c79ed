"""Policies in scopes: blocks, decorators, threads, tasks, generators. Ended scopes cost nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading

import pytest
import torch

import opmux
from opmux.core import (
    BackendImplKind,
    BadPolicy,
    OpImpl,
    OpManager,
    OpRegistry,
    SelectionPolicy,
    UnknownName,
    get_policy,
    policy_context,
    reset_global_policy,
    set_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)
from opmux.core.policy import live_scopes


@pytest.fixture(autouse=True)
def none_left_over():
    """Check that no scope which a test enters is alive after the test. Older scopes may be alive: exceptions of other
    tests hold them.
    """
    before = live_scopes()
    yield
    gc.collect()
    assert live_scopes() <= before


@pytest.fixture
def manager():
    registry = OpRegistry()
    for kind, vendor in (("flagos", None), ("vendor", "acme"), ("vendor", "bolt"), ("reference", None)):
        name = vendor or kind
        registry.register_impl(OpImpl("which", name, BackendImplKind(kind), vendor, lambda name=name: name))
    return OpManager(registry)


def which(manager):
    """Return the impl that runs in the current scope; all call paths must agree."""
    by_name, by_hold = manager.call("which"), manager.resolve("which")()
    assert by_name == by_hold == manager.get_selected_impl_id("which") == manager.explain("which").chosen.impl_id
    return by_name


def test_scopes_nest_and_are_undone(manager):
    assert which(manager) == "flagos"
    with opmux.policy("reference"):
        assert which(manager) == "reference"
        with opmux.policy("vendor"):
            assert which(manager) == "acme"
            with opmux.policy(deny=["ACME"]):
                assert which(manager) == "bolt"
                with opmux.policy(deny=["bolt"]):  # deny lists of nested scopes add up
                    assert which(manager) == "flagos"
            assert which(manager) == "acme"
        assert which(manager) == "reference"
    assert which(manager) == "flagos"


def test_a_scope_object_is_reentrant_and_reusable(manager):
    scope = opmux.policy("reference")
    with scope, scope, opmux.policy("vendor"), scope:
        assert which(manager) == "reference"
    assert which(manager) == "flagos"
    with pytest.raises(ZeroDivisionError), scope:
        raise ZeroDivisionError
    assert which(manager) == "flagos" and get_policy().prefer == "flagos"


def test_a_scope_is_computed_when_entered_not_when_created(manager):
    strict = with_strict_mode()
    set_global_policy(SelectionPolicy(prefer="vendor"))
    with strict:
        assert get_policy().strict and which(manager) == "acme"


def test_a_policy_can_decorate_functions_and_coroutines(manager):
    @opmux.policy("reference")
    def plain(n):
        return which(manager) if n == 0 else plain(n - 1)

    @opmux.policy("vendor")
    async def task():
        await asyncio.sleep(0.001)
        return which(manager)

    async def both():
        return await asyncio.gather(task(), asyncio.sleep(0), task())

    assert plain(3) == "reference"
    assert asyncio.run(both()) == ["acme", None, "acme"]
    assert which(manager) == "flagos"
    with pytest.raises(TypeError, match="generator"):
        opmux.policy("vendor")(lambda: (yield))


def test_tasks_inherit_scopes_and_do_not_leak_them(manager):
    async def inner(prefer, started, go):
        with opmux.policy(prefer):
            started.set()
            await go.wait()
            return which(manager)

    async def main():
        go = asyncio.Event()
        tasks = []
        for prefer in ("reference", "vendor"):
            started = asyncio.Event()
            tasks.append(asyncio.create_task(inner(prefer, started, go)))
            await started.wait()
        assert which(manager) == "flagos"
        go.set()
        return [await t for t in tasks]

    assert asyncio.run(main()) == ["reference", "acme"]


def test_another_thread_has_the_process_policy(manager):
    policies = []
    with opmux.policy("reference"):
        thread = threading.Thread(target=lambda: policies.append(which(manager)))
        thread.start()
        thread.join()
        assert which(manager) == "reference"
    assert policies == ["flagos"]


def test_with_functions_set_one_part_of_a_policy(manager):
    with with_preference("vendor"):
        with with_allowed_vendors("bolt"):
            assert which(manager) == "bolt"
        with with_allowed_vendors():  # an empty allow list allows none
            assert which(manager) == "flagos"
        with with_denied_vendors("acme", "bolt"):
            assert which(manager) == "flagos"
    with policy_context(SelectionPolicy(prefer="reference")), with_preference("vendor"):
        assert which(manager) == "acme"


def test_a_full_policy_replaces_and_a_layer_adds(manager, monkeypatch):
    monkeypatch.setenv("TE_FL_PER_OP", "which=vendor:bolt")
    reset_global_policy()
    assert which(manager) == "bolt"
    with opmux.policy(strict=True):
        assert which(manager) == "bolt"  # the layer keeps the environment's order
    with opmux.policy("reference"):
        assert which(manager) == "reference"  # a scope's preference beats the environment's order
    with policy_context(SelectionPolicy()):
        assert which(manager) == "flagos"


def test_set_policy_applies_to_all_threads_and_to_stored_functions(manager):
    held = manager.resolve("which")
    assert held() == "flagos"
    opmux.set_policy("vendor")
    assert held() == "acme"
    opmux.set_policy(deny="acme")
    assert held() == "bolt" and get_policy().prefer == "vendor"
    reset_global_policy()
    assert held() == "flagos"


@pytest.mark.parametrize("order, expected", [
    ("vendor:bolt|flagos", "bolt"), (["reference"], "reference"), ("impl:ACME", "acme"), ("!flagos", "acme"),
    ("!opmux|!vendor:acme|*", "bolt"), ("vendor|!vendor:acme", "bolt"), ("Triton", "flagos"), ("opmux", "flagos"),
    (" vendor : bolt | * ", "bolt"),
])  # fmt: skip
def test_orders_select_the_first_match(manager, order, expected):
    with opmux.policy(per_op={"Which": order}):
        assert which(manager) == expected


def test_a_per_op_order_is_exclusive_unless_it_has_a_star(manager):
    with opmux.policy(per_op={"which": "vendor:bolt"}):
        assert [i.impl_id for i in manager.resolve_candidates("which")] == ["bolt"]
    with opmux.policy("reference", per_op={"which": "vendor:bolt|*"}):
        assert [i.impl_id for i in manager.resolve_candidates("which")] == ["bolt", "reference", "flagos", "acme"]


@pytest.mark.parametrize("wrong, error, hint", [
    (dict(per_op={"which": "flagoss"}), BadPolicy, "Did you mean 'flagos'"),
    (dict(per_op={"which": ""}), BadPolicy, "at least one token"),
    (dict(per_op={"which": "vendor:"}), BadPolicy, "is not a token"),
    (dict(per_op={"which": "kind:x"}), BadPolicy, "is not a token"),
    (dict(per_op={"which": 3}), BadPolicy, "an order is a list of tokens"),
    (dict(allow=3), BadPolicy, "names of vendors"),
    (dict(per_op="which=flagos"), BadPolicy, "per_op maps ops to orders"),
    (dict(strict="no"), BadPolicy, "strict is True or False"),
])  # fmt: skip
def test_invalid_syntax_raises_when_the_scope_is_created(wrong, error, hint):
    with pytest.raises(error, match=hint):
        opmux.policy(**wrong)


def test_the_error_for_an_invalid_preference_suggests_the_nearest():
    with pytest.raises(BadPolicy, match="'vender' is not a preference.*Did you mean 'vendor'"):
        opmux.policy("vender")
    with pytest.raises(BadPolicy, match="expected a SelectionPolicy"):
        policy_context("vendor")
    with pytest.raises(BadPolicy, match="expected a SelectionPolicy"):
        set_global_policy("vendor")


@pytest.mark.parametrize("wrong, suggestion", [
    (dict(per_op={"rms_nrm": "reference"}), "rms_norm"),
    (dict(per_op={"which": "vendor:acmee"}), "acme"),
    (dict(per_op={"which": "impl:bolt2"}), "bolt"),
])  # fmt: skip
def test_the_error_for_an_unknown_name_suggests_the_nearest(manager, wrong, suggestion):
    before = get_policy()
    with pytest.raises(UnknownName, match=f"did you mean '{suggestion}'"), opmux.policy(**wrong):
        pass
    with pytest.raises(UnknownName, match=f"did you mean '{suggestion}'"):
        opmux.set_policy(**wrong)
    assert get_policy() == before


def test_unknown_vendors_in_lists_never_raise(manager, caplog):
    with caplog.at_level(logging.WARNING, "opmux"):
        for _ in range(2):
            with opmux.policy(deny=["elsewhere"], allow=["acme", "bolt"]):
                assert which(manager) == "flagos"
    assert [r.getMessage() for r in caplog.records if "elsewhere" in r.getMessage()].__len__() == 1


def test_scopes_may_be_left_in_any_order(manager):
    a, b = opmux.policy("reference"), opmux.policy("vendor")
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert which(manager) == "acme"
    b.__exit__(None, None, None)
    assert which(manager) == "flagos"


def test_the_outermost_of_many_scopes_may_be_left_first(manager):
    scopes = [opmux.policy("reference") for _ in range(1500)]
    for scope in scopes:
        scope.__enter__()
    scopes[0].__exit__(None, None, None)
    assert which(manager) == "reference"
    for scope in reversed(scopes[1:]):
        scope.__exit__(None, None, None)
    assert which(manager) == "flagos"


def test_a_generator_closed_by_another_thread_ends_its_scope(manager):
    """The scope ends in the thread that entered it."""

    def inside():
        with opmux.policy("reference"):
            yield which(manager)

    generator = inside()
    assert next(generator) == "reference"
    with opmux.policy("vendor"):
        assert which(manager) == "acme"
        closing = threading.Thread(target=generator.close)
        closing.start()
        closing.join()
        assert which(manager) == "acme"
    assert which(manager) == "flagos" and str(opmux.core.get_policy()) == "prefer=opmux"
    opmux.set_policy("vendor")
    assert which(manager) == "acme"  # the generator follows the process's policy
    opmux.set_policy("flagos")
    with opmux.policy("reference"):
        assert which(manager) == "reference"
    assert which(manager) == "flagos"


def test_leaving_a_scope_twice_raises_and_changes_nothing(manager):
    scope = opmux.policy("reference")
    scope.__enter__()
    scope.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="was exited already"):
        scope.__exit__(None, None, None)
    with scope:
        assert which(manager) == "reference"


def test_a_task_keeps_the_scope_in_which_it_was_started(manager):
    async def later(go):
        await go.wait()
        return which(manager)

    async def main():
        go = asyncio.Event()
        with opmux.policy("reference"):
            task = asyncio.create_task(later(go))
            await asyncio.sleep(0)
        assert which(manager) == "flagos"
        go.set()
        return await task

    assert asyncio.run(main()) == "reference"


def test_ended_scopes_cost_nothing(manager):
    held = manager.resolve("which")
    held()
    if live_scopes():
        pytest.skip("an exception kept by another test holds a scope")
    plain = held.__code__
    with opmux.policy("reference"):
        held()
        assert held.__code__ is not plain and live_scopes() == 1
    assert held.__code__ is plain and live_scopes() == 0


def test_a_registration_applies_to_a_live_scope(manager):
    with opmux.policy("vendor"):
        assert which(manager) == "acme"
        manager.registry.register_impl(
            OpImpl("which", "fast", BackendImplKind.VENDOR, "bolt", lambda: "fast", priority=5)
        )
        assert which(manager) == "fast"
        manager.registry.unregister("which", "fast")
        assert which(manager) == "acme"


def test_many_policies_are_evicted_from_the_cache(manager):
    """The cache evicts policies that a loop creates. A live scope still follows registrations."""
    with opmux.policy("vendor"):
        for n in range(80):
            with opmux.policy(deny=[f"x{n}"]):
                assert which(manager) == "acme"
        manager.registry.register_impl(OpImpl("which", "late", BackendImplKind.VENDOR, "z", lambda: "late", priority=9))
        assert which(manager) == "late"


def test_the_policy_of_the_forward_selects_the_backward(add_impl):
    """The backward uses the policy scope of its forward, even if it runs on another thread or after the scope has
    ended.
    """
    calls = []

    def fake_bwd(dy, x, weight, rstd, offset):
        calls.append(threading.current_thread().name)
        return torch.full_like(x, 7.0), torch.full_like(weight, 7.0)

    add_impl("rms_norm_bwd", "vendor.seven", BackendImplKind.VENDOR, fake_bwd, vendor="seven")
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.ones(4, requires_grad=True)
    with opmux.policy("vendor"):
        y, _ = opmux.ops.rms_norm(x, w)
    thread = threading.Thread(target=lambda: y.sum().backward(), name="elsewhere")
    thread.start()
    thread.join()
    assert calls == ["elsewhere"] and x.grad.eq(7).all()
    x.grad = None
    opmux.set_policy("reference")
    y, _ = opmux.ops.rms_norm(x, w)
    opmux.set_policy("vendor")  # does not apply to this backward, which is already selected
    y.sum().backward()
    assert calls == ["elsewhere"] and not x.grad.eq(7).any()


def test_the_error_for_a_non_tensor_names_the_argument_inside_a_scope(add_impl):
    """One impl supports one dtype only, so the call first checks dtypes, in a function that depends on the policy."""
    add_impl(
        "rms_norm", "vendor.acme", BackendImplKind.VENDOR, lambda *a: a, vendor="acme", supported_dtypes={torch.half}
    )
    for scope in (policy_context(SelectionPolicy()), opmux.policy("vendor")):
        with scope, torch.no_grad(), pytest.raises(TypeError, match="x must be a Tensor; got list"):
            opmux.ops.rms_norm([1.0], torch.ones(1))

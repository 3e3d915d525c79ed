"""Random registries, policies and failures (150, ten thousand with --slow) against a model of the selection rules."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opmux.core import BackendImplKind, NotSupported, OpImpl, OpManager, OpRegistry, SelectionPolicy, policy_context
from opmux.core import manager as manager_module
from opmux.core.errors import OpmuxError

VENDORS = ("acme", "Bolt", "core")
KIND_ORDER = {
    "flagos": ["flagos", "vendor", "reference"],
    "vendor": ["vendor", "flagos", "reference"],
    "reference": ["reference", "flagos", "vendor"],
}
TOKENS = ["flagos", "DEFAULT", "triton", "vendor", "reference", "*", "vendor:acme", "Vendor:bolt", "vendor:core"]
TOKENS += ["impl:i0", "IMPL:I1", "!vendor", "!flagos", "!vendor:bolt", "!impl:i2"]

# How an impl may behave; the model knows these behaviours.
BEHAVIOURS = ("works", "works", "works", "declines", "missing", "breaks", "when", "dtype", "arch", "value", "oom")


class Impl:
    def __init__(self, n, kind, vendor, priority, behaviour):
        self.id, self.kind, self.priority, self.behaviour = f"i{n}", kind, priority, behaviour
        self.vendor = vendor if kind != "flagos" else (vendor if n % 2 else None)
        self.vendor = None if kind == "reference" else self.vendor


impls = st.builds(
    lambda rows: [Impl(n, *row) for n, row in enumerate(rows)],
    st.lists(
        st.tuples(
            st.sampled_from(sorted(KIND_ORDER)),
            st.sampled_from(VENDORS),
            st.integers(-2, 2),
            st.sampled_from(BEHAVIOURS),
        ),
        min_size=1,
        max_size=5,
    ),
)
policies = st.fixed_dictionaries(
    {
        "prefer": st.sampled_from(["flagos", "vendor", "reference", "Triton", "vendor:acme", "impl:i1"]),
        "strict": st.booleans(),
        "order": st.none() | st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4),
        "deny": st.frozensets(st.sampled_from(["ACME", "bolt", "core"]), max_size=2),
        "allow": st.none() | st.frozensets(st.sampled_from(["acme", "Bolt", "core"]), max_size=2),
    }
)


# ---- the model ------------------------------------------------------------------------------------------------------


def hits(token, impl):
    token = {"default": "flagos", "triton": "flagos"}.get(token.lower(), token.lower())
    if token.startswith("vendor:"):
        return impl.vendor is not None and impl.vendor.lower() == token[7:]
    return impl.id == token[5:] if token.startswith("impl:") else impl.kind == token


def ordered(impls, policy):
    prefer = policy["prefer"].lower().replace("triton", "flagos")
    rest = KIND_ORDER.get(prefer) or [prefer, *KIND_ORDER["flagos"]]
    order = rest if policy["order"] is None else policy["order"]
    tokens = [t for t in order if t[0] != "!"] or ["*"]
    allowed = None if policy["allow"] is None else {v.lower() for v in policy["allow"]}
    denied = {v.lower() for v in policy["deny"]}
    pool = sorted(impls, key=lambda i: (-i.priority, i.id))
    pool = [
        i
        for i in pool
        if i.vendor is None or (i.vendor.lower() not in denied and (allowed is None or i.vendor.lower() in allowed))
    ]
    pool = [i for i in pool if not any(hits(t[1:], i) for t in order if t[0] == "!")]
    chosen = []
    for token in tokens:
        for part in rest if token == "*" else [token]:
            chosen += [i for i in pool if hits(part, i) and i not in chosen]
    return [i for i in chosen if i.behaviour != "arch"]


def run(impls, policy, quarantined):
    """Return (outcome, called impls, quarantined impls). The outcome is a result id, or the raised error."""
    called, failed = [], []
    for impl in ordered(impls, policy):
        behaviour = impl.behaviour
        if behaviour == "dtype" or behaviour == "when":
            if policy["strict"]:
                return "NotSupported", called, quarantined
            continue
        if not policy["strict"] and impl.id in quarantined:
            continue
        called.append(impl.id)
        if behaviour == "works":
            return impl.id, called, quarantined | {i for i, b in failed if b != "declines"}
        if behaviour == "oom" and not policy["strict"]:
            return f"error of {impl.id}", called, quarantined
        if policy["strict"]:
            first = next((i for i, b in failed if b != "declines"), None)
            return f"error of {first or impl.id}", called, quarantined
        first = next((i for i, b in failed if b != "declines"), None)
        if behaviour != "declines" and impl.kind == "reference" and first is not None:
            return f"error of {first}", called, quarantined
        failed.append((impl.id, behaviour))
    errors = [i for i, b in failed if b != "declines"]
    if not errors:
        return "NoImplementation", called, quarantined
    return (f"error of {errors[0]}" if len(errors) == 1 else "DispatchError"), called, quarantined


# ---- the system -----------------------------------------------------------------------------------------------------

ERRORS = {
    "declines": NotSupported,
    "missing": NotImplementedError,
    "breaks": RuntimeError,
    "value": ValueError,
    "oom": torch.OutOfMemoryError,
}


def real(impl, called):
    def fn(x):
        called.append(impl.id)
        if impl.behaviour in ERRORS:
            raise ERRORS[impl.behaviour](f"error of {impl.id}")
        return impl.id

    return OpImpl(
        "model_op",
        impl.id,
        BackendImplKind(impl.kind),
        impl.vendor,
        fn,
        impl.priority,
        supported_dtypes={torch.int8} if impl.behaviour == "dtype" else None,
        min_arch="sm_90" if impl.behaviour == "arch" else None,
        when=(lambda x: "refused") if impl.behaviour == "when" else None,
    )


def outcome(call, x):
    try:
        return call(x)
    except Exception as error:
        text = str(error)
        if text.startswith("error of"):
            return text
        return type(error).__name__ if isinstance(error, OpmuxError) else repr(error)


def check(impls, policy, by_name):
    called: list[str] = []
    registry = OpRegistry()
    registry.register_many(real(i, called) for i in impls)
    manager = OpManager(registry)
    per_op = {} if policy["order"] is None else {"MODEL_OP": policy["order"]}
    chosen = SelectionPolicy(policy["prefer"], policy["strict"], per_op, policy["deny"], policy["allow"])
    # As in settings, a token may name an impl that is not registered.
    chosen = chosen.relaxed()
    x = torch.zeros(2)
    quarantined: frozenset = frozenset()
    with policy_context(chosen):
        expected = ordered(impls, policy)
        assert [i.impl_id for i in manager.resolve_candidates("model_op")] == [i.id for i in expected]
        for named in by_name:
            called.clear()
            call = (lambda x: manager.call("model_op", x)) if named else manager.resolve("Model_Op")
            result, calls, after = run(impls, policy, quarantined)
            explained = manager.explain("model_op", x).chosen
            assert outcome(call, x) == result
            assert called == calls
            if not policy["strict"]:
                assert (explained.impl_id if explained else None) == (next((i for i in calls), None))
            quarantined = frozenset(after)
            assert {f.impl_id for f in manager.failures()} == quarantined
    manager_module._warned.clear()


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_the_dispatcher_agrees_with_the_model(examples):
    calls = st.lists(st.booleans(), min_size=3, max_size=3)
    options = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    options(given(impls=impls, policy=policies, by_name=calls)(check))()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "opmux")


def test_the_model_detects_a_wrong_dispatcher():
    """A model without priorities disagrees with the dispatcher."""
    low, high = Impl(0, "vendor", "acme", 0, "works"), Impl(1, "vendor", "acme", 1, "works")
    policy = {"prefer": "vendor", "strict": False, "order": None, "deny": frozenset(), "allow": None}
    assert run([low, high], policy, frozenset())[0] == "i1"
    low.priority = 2
    assert run([low, high], policy, frozenset())[0] == "i0"
    with pytest.raises(AssertionError):
        registry = OpRegistry()
        registry.register_many([real(low, []), real(high, [])])
        assert OpManager(registry).get_selected_impl_id("model_op") == "i1"

"""What happens when an impl fails: fallback, strict mode, quarantine, snapshots."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref

import pytest
import torch

from opmux.core import (
    BackendImplKind,
    DispatchError,
    NoImplementation,
    NotSupported,
    OpImpl,
    OpManager,
    OpRegistry,
    SelectionPolicy,
    dispatch,
    get_default_manager,
    machine,
    policy_context,
    set_global_policy,
    specs,
)
from opmux.core import snapshot as snapshots


class FakeMachine(machine.Machine):
    """Simulate a machine with these accelerator types, all of the same arch."""

    def __init__(self, arch, chips):
        self.arch, self.chips = arch, chips

    def arch_of(self, device_type):
        return self.arch

    def accelerators(self):
        return self.chips


DEFAULT, VENDOR, REFERENCE = BackendImplKind.DEFAULT, BackendImplKind.VENDOR, BackendImplKind.REFERENCE
STRICT = SelectionPolicy(prefer="vendor", strict=True)
LAX = SelectionPolicy(prefer="vendor")


class Counted:
    """A function that counts its calls and may raise a given error."""

    def __init__(self, fn=None, error: Exception | None = None):
        self.fn, self.error, self.calls = fn or (lambda *a, **k: "ok"), error, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.fn(*args, **kwargs)


def manager_of(op: str, *impls: tuple, **extra) -> OpManager:
    """A manager with these impls of one op; each is (kind, fn) or (kind, fn, fields)."""
    registry = OpRegistry()
    for n, (kind, fn, *more) in enumerate(impls):
        fields = {"vendor": "acme"} if kind is VENDOR else {}
        fields |= more[0] if more else {}
        registry.register_impl(OpImpl(op, f"{kind.value}.{n}", kind, fn=fn, **fields))
    return OpManager(registry)


@pytest.fixture(autouse=True)
def vendor_first():
    set_global_policy(LAX)
    yield


def outcomes(manager, op, *args):
    """The set of results of all call paths; it has one element if they agree."""
    return {manager.call(op, *args), manager.resolve(op)(*args)}


@pytest.mark.parametrize(
    "error",
    [
        NotSupported("no"),
        NotImplementedError("x not implemented"),
        ImportError("lib"),
        RuntimeError("kernel"),
        OSError(),
        TypeError("an argument of the vendor's library"),
        ValueError("unsupported configuration"),
        AttributeError("no such thing"),
        KeyError("table"),
        AssertionError(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_failing_forward_falls_back_and_strict_raises_the_error(error):
    bad, good = Counted(error=error), Counted(lambda x: "good")
    manager = manager_of("some_op", (VENDOR, bad), (REFERENCE, good))
    assert outcomes(manager, "some_op", torch.ones(2)) == {"good"}
    with policy_context(STRICT), pytest.raises(type(error)) as caught:
        manager_of("some_op", (VENDOR, bad), (REFERENCE, good)).call("some_op", torch.ones(2))
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(),
     RuntimeError("CUDA error: an illegal memory access was encountered"),
     RuntimeError("CUDA error: device-side assert triggered")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_some_errors_are_never_retried(error):
    bad, good = Counted(error=error), Counted()
    manager = manager_of("some_op", (VENDOR, bad), (REFERENCE, good))
    for call in (manager.call, lambda op, *a: manager.resolve(op)(*a)):
        with pytest.raises(type(error)) as caught:
            call("some_op", torch.ones(2))
        assert caught.value is error and good.calls == 0
    assert manager.failures() == []


def test_a_failing_impl_is_called_and_logged_once(caplog):
    bad, good = Counted(error=RuntimeError("no such kernel")), Counted()
    manager = manager_of("rms_norm", (VENDOR, bad), (REFERENCE, good))
    x, w = torch.ones(3, 4), torch.ones(4)
    with caplog.at_level(logging.WARNING, "opmux"):
        for _ in range(5):
            manager.call("rms_norm", x, w)
    assert bad.calls == 1 and good.calls == 5
    assert [r.getMessage().count("no such kernel") for r in caplog.records] == [1]
    [failure] = manager.failures()
    assert failure.case == (torch.float32, (2, 3, 3)) and "no such kernel" in failure.reason


def test_quarantine_is_by_dtype_and_shape_class():
    bad, good = Counted(error=RuntimeError("no")), Counted()
    manager = manager_of("rms_norm", (VENDOR, bad), (REFERENCE, good))
    call = manager.resolve("rms_norm")
    for shape, dtype, calls in [
        ((3, 4), torch.float32, 1),
        ((4, 3), torch.float32, 1),  # the same shape class: both sizes round up to 4
        ((3, 5), torch.float32, 2),
        ((3, 4), torch.float16, 3),
        ((3, 4, 1), torch.float32, 4),
        ((3, 4), torch.float32, 4),
    ]:
        call(torch.ones(shape, dtype=dtype), torch.ones(shape[-1], dtype=dtype))
        assert bad.calls == calls
    assert manager.clear_quarantine("rms_norm") == 4
    call(torch.ones(3, 4), torch.ones(4))
    assert bad.calls == 5


def test_an_impl_that_cannot_be_imported_is_skipped_for_all_calls():
    bad, good = Counted(error=ImportError("no module named acme")), Counted()
    manager = manager_of("rms_norm", (VENDOR, bad), (REFERENCE, good))
    for n in (1, 100, 10000):
        manager.call("rms_norm", torch.ones(n), torch.ones(n))
    assert bad.calls == 1
    assert manager.get_selected_impl_id("rms_norm") == "reference.1"


def test_strict_calls_a_quarantined_impl_again():
    bad, good = Counted(error=RuntimeError("no")), Counted()
    manager = manager_of("rms_norm", (VENDOR, bad), (REFERENCE, good))
    manager.call("rms_norm", torch.ones(4), torch.ones(4))
    with policy_context(STRICT), pytest.raises(RuntimeError, match="^no$"):
        manager.call("rms_norm", torch.ones(4), torch.ones(4))
    assert bad.calls == 2


def test_a_callers_bad_shape_raises_the_original_error_without_quarantine():
    """The impl raises RuntimeError, as torch does for bad shapes; the reference would fail too."""
    error = RuntimeError("acme: shapes do not match")
    bad, good = Counted(error=error), Counted()
    manager = manager_of("rms_norm", (VENDOR, bad), (DEFAULT, good))
    with pytest.raises(RuntimeError) as caught:
        manager.call("rms_norm", torch.ones(3, 4), torch.ones(7))
    assert caught.value is error and good.calls == 0 and manager.failures() == []


def test_the_first_error_is_raised_if_the_reference_fails_too():
    first = RuntimeError("first")
    manager = manager_of("own_op", (VENDOR, Counted(error=first)), (REFERENCE, Counted(error=RuntimeError("second"))))
    for call in (manager.call, lambda op, *a: manager.resolve(op)(*a)):
        with pytest.raises(RuntimeError) as caught:
            call("own_op", torch.ones(2))
        assert caught.value is first
    assert manager.failures() == []


def test_the_final_error_lists_every_candidate_and_the_first_cause():
    manager = manager_of(
        "own_op",
        (VENDOR, Counted(error=RuntimeError("cause one"))),
        (VENDOR, Counted(error=RuntimeError("cause two"))),
        (DEFAULT, Counted(), {"when": lambda *a: "too small"}),
    )
    with pytest.raises(DispatchError) as caught:
        manager.call("own_op", torch.ones(2))
    text = str(caught.value)
    assert text.index("cause one") < text.index("cause two") < text.index("too small")
    assert [str(e) for e in caught.value.errors] == ["cause one", "cause two"]
    assert caught.value.__cause__ is caught.value.errors[0]


def test_without_candidates_the_error_lists_every_reason():
    manager = manager_of(
        "own_op",
        (VENDOR, Counted(error=NotSupported("odd width"))),
        (DEFAULT, Counted(), {"supported_dtypes": {torch.bfloat16}}),
        (REFERENCE, Counted(), {"min_arch": "sm_90"}),
    )
    with pytest.raises(NoImplementation, match="^own_op not implemented") as caught:
        manager.call("own_op", torch.ones(2))
    for words in ("odd width", "takes bfloat16; the first tensor is float32", "needs sm_90"):
        assert words in str(caught.value)


def test_a_single_candidate_raises_its_own_error():
    error = RuntimeError("mine")
    manager = manager_of("own_op", (VENDOR, Counted(error=error)))
    with pytest.raises(RuntimeError) as caught:
        manager.call("own_op", torch.ones(2))
    assert caught.value is error


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer, runs", [(True, True), (None, True), (False, False), ("odd", False)])
def test_when_is_checked_on_every_call_path(answer, runs):
    manager = manager_of(
        "own_op", (VENDOR, lambda x: "vendor", {"when": lambda x: answer}), (REFERENCE, lambda x: "ref")
    )
    assert outcomes(manager, "own_op", torch.ones(2)) == {"vendor" if runs else "ref"}
    assert manager.explain("own_op", torch.ones(2)).chosen.kind is (VENDOR if runs else REFERENCE)


def test_supported_dtypes_checks_the_first_tensor():
    fields = {"supported_dtypes": {"bfloat16", torch.float16}}
    manager = manager_of("own_op", (VENDOR, lambda *a: "vendor", fields), (REFERENCE, lambda *a: "ref"))
    half, full = torch.ones(2, dtype=torch.float16), torch.ones(2)
    assert outcomes(manager, "own_op", half, full) == {"vendor"}
    assert outcomes(manager, "own_op", full, half) == {"ref"}
    assert manager.call("own_op") == "vendor"  # no tensor, so no dtype to check


@pytest.mark.parametrize("have, wants, ok", [
    ("sm_90", "sm_90", True), ("sm_90", "sm_80", True), ("sm_80", "sm_90", False), ("sm_100", "sm_90a", True),
    ("gfx942", "sm_80", False), ("gfx942", "gfx90a", True), ("gfx90a", "gfx942", False), (None, "sm_70", False),
])  # fmt: skip
def test_min_arch_compares_within_its_prefix(monkeypatch, have, wants, ok):

    monkeypatch.setattr(machine, "_machine", FakeMachine(have, ()))
    manager = manager_of("own_op", (VENDOR, lambda *a: "vendor", {"min_arch": wants}), (REFERENCE, lambda *a: "ref"))
    assert outcomes(manager, "own_op", torch.ones(2)) == {"vendor" if ok else "ref"}


def test_strict_skips_what_this_machine_lacks_and_raises_for_unsupported_tensors():
    wrong_arch = (VENDOR, lambda *a: "arch", {"min_arch": "sm_90"})
    manager = manager_of("own_op", wrong_arch, (VENDOR, lambda *a: "next"), (REFERENCE, lambda *a: "ref"))
    with policy_context(STRICT):
        assert manager.call("own_op", torch.ones(2)) == "next"
        wrong_dtype = manager_of(
            "own_op", (VENDOR, Counted(), {"supported_dtypes": {torch.int8}}), (REFERENCE, Counted())
        )
        with pytest.raises(NotSupported, match="^own_op not implemented.*takes int8; the first tensor is float32"):
            wrong_dtype.call("own_op", torch.ones(2))
        assert wrong_dtype.explain("own_op", torch.ones(2)).chosen is None
        refusing = manager_of("own_op", (VENDOR, Counted(), {"when": lambda x: "odd"}), (REFERENCE, Counted()))
        with pytest.raises(NotSupported, match="^own_op not implemented.*odd"):
            refusing.call("own_op", torch.ones(2))


def test_the_device_of_the_tensors_selects_the_impl(monkeypatch):
    """On a machine with an accelerator, a CPU tensor still selects the CPU's impl."""

    monkeypatch.setattr(machine, "_machine", FakeMachine(None, ("meta",)))  # meta plays the part of the chip
    fields = {"devices": {"meta"}}
    manager = manager_of("own_op", (VENDOR, lambda *a: "chip", fields), (REFERENCE, lambda *a: "ref"))
    for _ in range(2):
        assert outcomes(manager, "own_op", torch.ones(2)) == {"ref"}
        assert outcomes(manager, "own_op", torch.ones(2, device="meta")) == {"chip"}
    monkeypatch.setattr(machine, "_machine", FakeMachine(None, ("meta", "other")))
    manager.invalidate("a second kind of chip")
    assert outcomes(manager, "own_op", torch.ones(2)) == {"ref"}
    assert outcomes(manager, "own_op", torch.ones(2, device="meta")) == {"chip"}


def test_a_choice_for_a_meta_tensor_does_not_apply_to_the_cpu():
    """Regression: without an accelerator, a first call on meta selected the accelerator's impl also for CPU tensors."""
    fields = {"devices": {machine.ACCELERATOR}, "supported_dtypes": {torch.float32}}
    manager = manager_of("own_op", (VENDOR, lambda *a: "chip", fields), (REFERENCE, lambda *a: "ref"))
    for device in ("meta", "cpu"):
        assert outcomes(manager, "own_op", torch.ones(2, device=device)) == {"ref"}


@pytest.mark.parametrize("first, second", [("meta", "cpu"), ("cpu", "meta")])
@pytest.mark.parametrize("why", ["lacks", "unused"])
def test_a_choice_for_one_device_does_not_apply_to_another(monkeypatch, why, first, second):
    """Tests both orders of the calls. No impl names devices, but the selection still depends on the device."""

    class Lacking(FakeMachine):
        def lacks(self, device_type):
            return frozenset({torch.float32} if device_type == "meta" and why == "lacks" else ())

        def unused(self, device_type):
            return {"own_op": "its vendor wants no such kernel"} if device_type == "meta" and why == "unused" else {}

    monkeypatch.setattr(machine, "_machine", Lacking(None, ("meta",)))  # meta plays the part of the chip
    manager = manager_of("own_op", (DEFAULT, lambda *a: "ours"), (REFERENCE, lambda *a: "ref"))
    want = {"cpu": {"ours"}, "meta": {"ref"}}
    for device in (first, second):
        assert outcomes(manager, "own_op", torch.ones(2, device=device)) == want[device]


# ---- mutating ops ---------------------------------------------------------------------------------------------------


def fail_after_writing(error):
    """Adds one to all its arguments in place, then fails: a retry would double the update."""

    def fn(*args):
        for t in _flat(args):
            t.add_(1)
        raise error

    return fn


def add_one(*args):
    for t in _flat(args):
        t.add_(1)
    return "added"


def _flat(value):
    for v in value:
        yield from _flat(v) if isinstance(v, (list, tuple)) else [v]


def test_an_op_without_a_spec_is_never_applied_twice():
    manager = manager_of("add_one", (VENDOR, fail_after_writing(RuntimeError("late"))), (REFERENCE, add_one))
    x, ys = torch.zeros(3), [torch.zeros(2), [torch.zeros(1)]]
    version = x._version
    assert manager.call("add_one", x, ys) == "added"
    assert x.eq(1).all() and ys[0].eq(1).all() and ys[1][0].eq(1).all()
    assert x._version == version + 1


def test_strict_does_not_undo_or_retry_a_failed_mutation():
    manager = manager_of("add_one", (VENDOR, fail_after_writing(RuntimeError("late"))), (REFERENCE, add_one))
    x = torch.zeros(3)
    with policy_context(STRICT), pytest.raises(RuntimeError, match="^late"):
        manager.call("add_one", x)
    assert x.eq(1).all()


def test_tensors_are_restored_if_all_impls_fail():
    manager = manager_of(
        "add_one", (VENDOR, fail_after_writing(RuntimeError("a"))), (DEFAULT, fail_after_writing(RuntimeError("b"))),
        (DEFAULT, Counted(error=NotSupported("no"))),
    )  # fmt: skip
    x = torch.zeros(3)
    with pytest.raises(DispatchError):
        manager.call("add_one", x)
    assert x.eq(0).all()


def test_a_failing_proven_impl_raises():
    """After three successful calls for a dtype and shape class no snapshot is taken, so there is no retry."""
    state = {"fail": False}

    def sometimes(x):
        x.add_(1)
        if state["fail"]:
            raise RuntimeError("late")

    manager = manager_of("add_one", (VENDOR, sometimes), (REFERENCE, add_one))
    x = torch.zeros(3)
    for _ in range(3):
        manager.call("add_one", x)
    state["fail"] = True
    with pytest.raises(RuntimeError, match="^late"):
        manager.call("add_one", x)
    assert x.eq(4).all()
    other = torch.zeros(100)  # another shape class, for which the impl is not proven
    assert manager.call("add_one", other) == "added" and other.eq(1).all()


def test_not_supported_needs_no_snapshot():
    state = {"decline": False}

    def sometimes(x):
        if state["decline"]:
            raise NotSupported("not today")
        x.add_(1)

    manager = manager_of("add_one", (VENDOR, sometimes), (REFERENCE, add_one))
    x = torch.zeros(3)
    for _ in range(4):
        manager.call("add_one", x)
    state["decline"] = True
    assert manager.call("add_one", x) == "added" and x.eq(5).all()


def test_tensors_too_large_for_a_snapshot_have_no_fallback(monkeypatch):
    monkeypatch.setattr(snapshots, "LIMIT", 8)
    manager = manager_of("add_one", (VENDOR, fail_after_writing(RuntimeError("late"))), (REFERENCE, add_one))
    with pytest.raises(RuntimeError, match="^late"):
        manager.call("add_one", torch.zeros(3))


def test_no_snapshot_is_taken_during_graph_capture(monkeypatch):
    monkeypatch.setattr(snapshots, "_capturing", lambda: True)
    manager = manager_of("add_one", (VENDOR, fail_after_writing(RuntimeError("late"))), (REFERENCE, add_one))
    with pytest.raises(RuntimeError, match="^late"):
        manager.call("add_one", torch.zeros(3))


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(4).expand(3, 4),
    lambda: torch.zeros(4, 4).t(),
    lambda: torch.zeros(8)[::2],
    lambda: torch.zeros(3, requires_grad=True),
    lambda: torch.zeros(0),
    lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
    lambda: torch.zeros(3, dtype=torch.complex64),
], ids=["expanded", "transposed", "strided", "leaf", "empty", "fp8", "complex"])  # fmt: skip
def test_snapshots_restore_every_layout(make):
    x = make()
    raw = lambda: x.detach().contiguous().view(-1).view(torch.uint8).clone()
    before, version = raw(), x._version
    saved = snapshots.Snapshot([("x", x)])
    x.untyped_storage().fill_(7)
    assert x.numel() == 0 or not torch.equal(raw(), before)
    saved.restore()
    assert torch.equal(raw(), before) and x._version == version


def test_inference_tensors_are_restored():
    with torch.inference_mode():
        x = torch.zeros(3)
    saved = snapshots.Snapshot([("x", x)])
    with torch.inference_mode():
        x.add_(1)
    saved.restore()
    assert x.eq(0).all()


def test_calls_that_write_nothing_take_no_snapshot(monkeypatch):
    """tex's norms write `ln_out` if it is given, and nothing if it is None."""
    snapshot_calls = []
    monkeypatch.setattr(snapshots, "take", lambda values, generators: snapshot_calls.append(values) or "not now")
    bad = Counted(error=RuntimeError("late"))
    manager = manager_of("rmsnorm_fwd", (VENDOR, bad), (REFERENCE, lambda *a: "ref"))
    x, w, buffer = torch.ones(3, 4), torch.ones(4), torch.zeros(3, 4)
    assert manager.call("rmsnorm_fwd", x, w, 1e-5, None, None, None, 0, False) == "ref"
    assert snapshot_calls == [[]]
    with pytest.raises(RuntimeError, match="^late(.|\n)*no other impl is tried after 'vendor.0': not now"):
        manager.call("rmsnorm_fwd", torch.ones(300, 4), w, 1e-5, buffer, None, None, 0, False)
    assert [(n, v is buffer) for n, v in snapshot_calls[1]] == [("ln_out", True)]


# ---- regressions ----------------------------------------------------------------------------------------------------


def test_after_a_declining_when_all_others_run_once_and_errors_name_the_right_impl():
    calls = []

    def flaky(x):
        calls.append("b")
        if len(calls) == 1:
            raise RuntimeError("flaky")
        return x

    def never(x):
        calls.append("a")

    refuses = (VENDOR, never, {"when": lambda x: "no", "priority": 5})
    manager = manager_of("relu", refuses, (VENDOR, flaky), (REFERENCE, lambda x: "ref"))
    assert manager.call("relu", torch.ones(3)) == "ref"
    assert calls == ["b"] and [f.impl_id for f in manager.failures()] == ["vendor.1"]


def test_not_supported_from_another_op_counts_as_a_failure():
    """The outer impl may have written before the inner op raises NotSupported, so the error counts as a failure."""
    state = {"inner": True}

    def inner(x):
        if not state["inner"]:
            raise NotSupported("not now")

    def outer(x):
        x.add_(1)
        manager.call("inner", x)

    registry = OpRegistry()
    registry.register_impl(OpImpl("inner", "v", VENDOR, "v", inner))
    registry.register_impl(OpImpl("outer", "v", VENDOR, "v", outer))
    registry.register_impl(OpImpl("outer", "ref", REFERENCE, None, lambda x: x.add_(1)))
    manager = OpManager(registry)
    x = torch.zeros(3)
    for _ in range(3):
        manager.call("outer", x)
    state["inner"] = False
    with pytest.raises(NoImplementation, match="^inner not implemented"):
        manager.call("outer", x)
    assert x.eq(4).all()


def test_a_meta_tensor_selects_the_accelerators_impl(monkeypatch):

    monkeypatch.setattr(machine, "_machine", FakeMachine(None, ("cuda",)))
    manager = manager_of("own_op", (VENDOR, lambda x: "chip", {"devices": {"cuda"}}), (REFERENCE, lambda x: "ref"))
    assert manager.call("own_op", torch.ones(1, device="meta")) == "chip"  # meta tensors count as tensors on the chip
    assert manager.call("own_op", torch.ones(1)) == "ref"


def test_failures_on_fake_tensors_do_not_quarantine():
    def launch(x):
        if x.is_meta:
            raise RuntimeError("cannot launch on meta")
        return "vendor"

    manager = manager_of("own_op", (VENDOR, launch), (REFERENCE, lambda x: "ref"))
    assert manager.call("own_op", torch.ones(3, device="meta")) == "ref"
    assert manager.call("own_op", torch.ones(3)) == "vendor" and manager.failures() == []


def test_records_of_an_impl_are_removed_with_it():
    bad = Counted(error=RuntimeError("no"))
    manager = manager_of("rms_norm", (VENDOR, bad), (REFERENCE, lambda *a: "ref"))
    args = torch.ones(4), torch.ones(4)
    assert manager.call("rms_norm", *args) == "ref"
    manager.registry.unregister("rms_norm", "vendor.0")
    manager.registry.register_impl(OpImpl("rms_norm", "vendor.0", VENDOR, "acme", lambda *a: "fixed"))
    assert manager.call("rms_norm", *args) == "fixed"


def test_out_of_memory_is_recognized_after_another_error():
    oom = torch.OutOfMemoryError("no memory")
    for kind in (VENDOR, REFERENCE):
        manager = manager_of("own_op", (VENDOR, Counted(error=RuntimeError("first"))), (kind, Counted(error=oom)))
        with pytest.raises(torch.OutOfMemoryError) as caught:
            manager.call("own_op", torch.ones(2))
        assert caught.value is oom and "first" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "answer, runs", [(1, True), (0, False), (torch.tensor(True), True), (torch.tensor(False), False)]
)
def test_a_when_may_return_any_truth_value(answer, runs):
    manager = manager_of("own_op", (VENDOR, lambda x: "v", {"when": lambda x: answer}), (REFERENCE, lambda x: "ref"))
    assert outcomes(manager, "own_op", torch.ones(2)) == {"v" if runs else "ref"}


@pytest.mark.parametrize("hook", [lambda: False, lambda: 1 / 0])
def test_availability_hooks_are_respected(hook):
    def fn(x):
        return "vendor"

    by_field = manager_of("own_op", (VENDOR, fn, {"available": hook}), (REFERENCE, lambda x: "ref"))
    fn._is_available = hook
    by_attribute = manager_of("own_op", (VENDOR, fn), (REFERENCE, lambda x: "ref"))
    for manager in (by_field, by_attribute):
        assert manager.call("own_op", torch.ones(2)) == "ref"
        assert "_is_available()" in str(manager.explain("own_op"))


@pytest.mark.parametrize("make", [
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
], ids=["sparse", "nested"])  # fmt: skip
def test_tensors_without_plain_memory_are_accepted(make):
    manager = manager_of("own_op", (VENDOR, lambda x: "v"), (REFERENCE, lambda x: "ref"))
    assert outcomes(manager, "own_op", make()) == {"v"}


def test_an_interrupted_call_restores_tensors():
    def interrupted(x):
        x.add_(1)
        raise KeyboardInterrupt

    manager = manager_of("own_op", (VENDOR, interrupted), (REFERENCE, add_one))
    x = torch.zeros(3)
    with pytest.raises(KeyboardInterrupt):
        manager.call("own_op", x)
    assert x.eq(0).all()


def test_errors_can_be_pickled():
    import pickle

    from opmux.core import UnknownName

    error = UnknownName("op", "rms_nrom", ["rms_norm"])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.name == "rms_nrom"


@pytest.mark.parametrize("buffer", [None, torch.zeros(3, 4)], ids=["no buffer", "buffer"])
@pytest.mark.parametrize("op", ["an_op_without_a_spec", "rms_norm", "rmsnorm_fwd"])
def test_a_when_is_checked_even_for_proven_calls(op, buffer):
    """Proven calls are stored by dtype and shape, but a `when` may check anything; here it checks numbers."""
    small = lambda x, *rest: bool(x[0, 0] < 6) or "too large"
    manager = manager_of(op, (VENDOR, lambda *a: "vendor", {"when": small}), (REFERENCE, lambda *a: "ref"))
    x, w = torch.zeros(3, 4), torch.ones(4)
    rest = (1e-6, 0.0) if op == "rms_norm" else (1e-5, buffer, None, None, 0, False)
    for _ in range(2):
        x.zero_()
        results = [outcomes(manager, op, x.add_(1), w, *rest) for _ in range(9)]
        assert results == [{"vendor"}] * 5 + [{"ref"}] * 4


def test_after_a_refusal_the_next_impl_is_called_directly(add_impl, caplog, monkeypatch):
    """The loop over candidates takes 100 times as long as a direct call, so only the first call and calls after an
    error use it.
    """
    calls, fails = [], []

    def second(x):
        calls.append("second")
        if fails:
            raise RuntimeError("broken")
        return x + 1

    own = {"vendor": "acme", "outside": False}
    add_impl("opmux::relu", "vendor.acme", VENDOR, lambda x: x + 3, when=lambda x: x.shape[0] < 4 or "too long", **own)
    add_impl("opmux::relu", "vendor.acme.b", VENDOR, second, when=lambda x: x.shape[0] < 6 or "too long", **own)
    add_impl("opmux::relu", "vendor.acme.c", VENDOR, lambda x: x + 2, **own)
    loops, run = [], dispatch.Chain.run
    monkeypatch.setattr(dispatch.Chain, "run", lambda *a, **k: loops.append(1) or run(*a, **k))
    relu, x = specs.functions["opmux::relu"], {n: torch.zeros(n) for n in (3, 5, 7)}
    for n, value in ((3, 3.0), (5, 1.0), (7, 2.0)) * 4:
        with caplog.at_level(logging.DEBUG, "opmux"):
            assert relu(x[n]).tolist() == [value] * n
    assert len(loops) == 2 and "'vendor.acme' declined: too long" in caplog.text
    fails.append(1)
    calls.clear()
    assert relu(x[5]).tolist() == [2.0] * 5 and calls == ["second"]
    (failed,) = get_default_manager().failures()
    assert failed.impl_id == "vendor.acme.b" and "broken" in failed.reason
    assert relu(x[5]).tolist() == [2.0] * 5 and calls == ["second"]
    with policy_context(STRICT), pytest.raises(NotSupported, match="too long"):
        relu(x[5])


def test_an_impl_proven_without_written_arguments_is_not_proven_with_them():
    """tex's norms write only if `ln_out` is given."""

    def no_buffers(*args):
        if args[3] is not None:
            args[3].fill_(1)
            raise NotImplementedError("no buffers")
        return "vendor"

    manager = manager_of("rmsnorm_fwd", (VENDOR, no_buffers), (REFERENCE, lambda *a: "ref"))
    rest = (None, None, 0, False)
    for dtype in (torch.float32, torch.float16):
        x, w, buffer = torch.ones(3, 4, dtype=dtype), torch.ones(4, dtype=dtype), torch.zeros(3, 4, dtype=dtype)
        for _ in range(4):
            assert manager.call("rmsnorm_fwd", x, w, 1e-5, None, *rest) == "vendor"
        assert manager.call("rmsnorm_fwd", x, w, 1e-5, buffer, *rest) == "ref"
        assert buffer.eq(0).all()


def test_calls_by_name_without_a_spec_always_recover():
    """A proven impl skips checks for its dtypes and shapes; a call with others is checked completely."""
    registry, calls, broken = OpRegistry(), [], []

    def first(*args, **kwargs):
        calls.append("first")
        if broken:
            raise RuntimeError("no kernel")
        return "first"

    registry.register_impl(OpImpl("nameless", "vendor.first", VENDOR, "first", first))
    registry.register_impl(OpImpl("nameless", "vendor.next", VENDOR, "next", lambda *a, **k: "next"))
    manager = OpManager(registry)
    x = torch.ones(3, 4)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    forms = [
        ((x,), {}),
        ((x, 2), {"alpha": 3}),
        ((2, x), {}),
        (([x], 2), {}),
        ((), {"x": x}),
        ((), {}),
        ((torch.nn.Parameter(x),), {}),
        ((nested,), {}),
    ]
    for args, kwargs in forms:
        for _ in range(6):
            assert manager.call("nameless", *args, **kwargs) == "first"
    assert len(calls) == 6 * len(forms)
    broken.append(True)
    assert manager.call("nameless", torch.ones(5, 7, 2)) == "next"  # not proven for this shape: runs on trial
    with pytest.raises(RuntimeError, match="no kernel"):  # proven, so there is no snapshot
        manager.call("nameless", x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("error", [NotSupported, RuntimeError, ValueError, torch.OutOfMemoryError])
@pytest.mark.parametrize("rest", ["another impl", "none", "one that fails", "a when that raises"])
def test_a_failed_call_keeps_no_reference_to_its_tensors(error, rest, strict):
    """Tensors are freed before the next garbage collection: keeping gigabytes in each step would exhaust the memory."""

    def fails(*args):
        raise error("as it is told")

    others = {
        "another impl": [(REFERENCE, lambda x: None)],
        "none": [],
        "one that fails": [(REFERENCE, fails)],
        "a when that raises": [(DEFAULT, lambda x: None, {"when": fails}), (REFERENCE, lambda x: None)],
    }
    manager = manager_of("held", (VENDOR, fails), *others[rest])
    set_global_policy(STRICT if strict else LAX)
    gc.collect()
    gc.disable()
    try:
        for call in (manager.resolve("held"), lambda x: manager.call("held", x)):
            for _ in range(3):
                tensor = torch.ones(2)
                gone = weakref.ref(tensor)
                with contextlib.suppress(RuntimeError, ValueError, NotImplementedError, DispatchError):
                    call(tensor)
                del tensor
                assert gone() is None
    finally:
        gc.enable()

"""Selection by measured times: which implementation runs, what `explain` says, and what an invalid file does."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opmux
from opmux import cache as cache_dir
from opmux.core import BackendImplKind, OpImpl, get_default_manager, reset_global_policy, specs
from opmux.core.dispatch import Failure
from opmux.machine import devices
from opmux.machine.devices import Chip
from opmux.machine.here import HERE
from opmux.tuning import provider_speed, speed_files, tile_files
from opmux.tuning.provider_speed import FILES, LibrariesFirst
from opmux.tuning.speed_classes import CLASSES

LABEL = "linear[dtype=float32 m<={} n<=8 k<=4]"
A, B, REFERENCE = "vendor.acme", "vendor.acme.b", "reference.torch"
CPU = "cpu"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    reset_global_policy()
    provider_speed.forget()
    yield
    monkeypatch.undo()
    get_default_manager().clear_quarantine()
    reset_global_policy()
    provider_speed.forget()


@pytest.fixture
def impls():
    """Registers libraries of a vendor for `linear`; the value of the result tells which one ran."""
    registry = get_default_manager().registry
    registry.list_operators()
    added = []

    def put(impl_id, value, priority, **fields):
        fn = lambda x, weight, bias: x.new_full((*x.shape[:-1], weight.shape[0]), value)
        impl = OpImpl("opmux::linear", impl_id, BackendImplKind.VENDOR, "acme", fn, priority, outside=False, **fields)
        registry.register_impl(impl)
        added.append(impl_id)

    yield put
    for impl_id in added:
        registry.unregister("opmux::linear", impl_id)


@pytest.fixture
def two(impls):
    impls(A, 1.0, 10)
    impls(B, 2.0, 5)


def store_times(rows: dict) -> None:
    """Store times by number of rows, as `opmux tune --providers` does."""
    provider_speed.store(speed_files.chip_of(CPU), {LABEL.format(m): times for m, times in rows.items()}, {})


def value_of_selected(m: int) -> float | None:
    """The value that the selected implementation returns; None if it is the reference."""
    y = opmux.ops.linear(torch.zeros(m, 4), torch.zeros(8, 4), None)
    return y[0, 0].item() or None


def explained(m: int) -> dict[str, tuple[str, str]]:
    report = opmux.explain("linear", torch.zeros(m, 4), torch.zeros(8, 4))
    return {v.impl.impl_id: (v.status, v.reason) for v in report.verdicts}


# ---- selection by speed ---------------------------------------------------------------------------------------------


def test_the_faster_library_runs_only_for_its_class(two):
    assert [value_of_selected(m) for m in (1, 16, 17)] == [1.0, 1.0, 1.0]
    store_times({16: {A: 55.0, B: 41.0}, 32: {A: 41.0, B: 55.0}})
    assert [value_of_selected(m) for m in (1, 8, 9, 16, 17, 32, 33)] == [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    rows = torch.zeros(3, 5, 4), torch.zeros(8, 4)
    assert opmux.ops.linear(*rows).unique().item() == 2.0  # 15 rows: the product of two dimensions


def test_explain_shows_the_deciding_measurement(two):
    store_times({16: {A: 55.0, B: 41.25}})
    report = explained(16)
    words = "measured on cpu: vendor.acme.b 41.25 us, this 55 us (dtype=float32 m<=16 n<=8 k<=4)"
    assert report[A] == ("next", words) and report[B][0] == "chosen"
    assert explained(17)[A][0] == "chosen"
    assert f"next, speed: {words}" in str(opmux.explain("linear", torch.zeros(9, 4), torch.zeros(8, 4)))


@pytest.mark.parametrize("b, runs", [(98.5, 1.0), (97.5, 2.0)])
def test_a_difference_below_2_percent_keeps_the_order(two, b, runs):
    store_times({16: {A: 100.0, B: b}})
    assert value_of_selected(16) == runs


def test_an_unmeasured_implementation_keeps_its_place(two):
    store_times({16: {B: 1.0, REFERENCE: 0.5}, 32: {A: 1.0}})
    assert value_of_selected(16) == value_of_selected(32) == 1.0


def test_the_reference_may_be_the_fastest(two):
    store_times({16: {A: 3.0, B: 2.0, REFERENCE: 1.0}})
    assert value_of_selected(16) is None and explained(16)[REFERENCE][0] == "chosen"


def test_an_unavailable_implementation_is_skipped(impls):
    impls(A, 1.0, 10)
    impls(B, 2.0, 5, available=lambda: "not installed")
    store_times({16: {A: 55.0, B: 41.0}})
    assert value_of_selected(16) == 1.0


def test_an_implementation_that_does_not_support_the_call_is_skipped(impls):
    """The call is excluded by its `when` or its dtypes."""
    impls(A, 1.0, 10)
    impls(B, 2.0, 5, when=lambda x, weight, bias: bias is None or "takes no bias")
    store_times({16: {A: 55.0, B: 41.0}})
    x, weight = torch.zeros(16, 4), torch.zeros(8, 4)
    assert opmux.ops.linear(x, weight).unique().item() == 2.0
    assert opmux.ops.linear(x, weight, torch.zeros(8)).unique().item() == 1.0
    impls("vendor.acme.c", 3.0, 1, supported_dtypes={torch.float64})
    store_times({16: {A: 55.0, B: 41.0, "vendor.acme.c": 1.0}})
    assert value_of_selected(16) == 2.0


def test_a_quarantined_implementation_is_skipped(two):
    store_times({16: {A: 55.0, B: 41.0}})
    assert value_of_selected(16) == 2.0
    get_default_manager().quarantine("opmux::linear", Failure("linear", B, None, "it broke"))
    assert value_of_selected(16) == 1.0
    get_default_manager().clear_quarantine("linear")
    assert value_of_selected(16) == 2.0


def test_if_the_faster_one_raises_the_next_one_runs(impls):
    impls(A, 1.0, 10)
    store_times({16: {A: 55.0, B: 41.0}})
    registry, calls = get_default_manager().registry, []

    def fails(x, weight, bias):
        calls.append(1)
        raise RuntimeError("no")

    registry.register_impl(OpImpl("opmux::linear", B, BackendImplKind.VENDOR, "acme", fails, 5, outside=False))
    try:
        assert [value_of_selected(16) for _ in range(3)] == [1.0, 1.0, 1.0] and calls == [1]
    finally:
        registry.unregister("opmux::linear", B)


def test_policies_that_rank_implementations_override_measurements(two):
    store_times({16: {A: 55.0, B: 41.0, REFERENCE: 1.0}})
    assert value_of_selected(16) is None
    for policy, runs in (
        ({"per_op": {"linear": f"impl:{A}"}}, 1.0),
        ({"per_op": {"linear": f"impl:{A}"}, "strict": True}, 1.0),
        ({"per_op": {"linear": f"impl:{A}|impl:{B}"}}, 1.0),
        ({"per_op": {"linear": "vendor:acme|*"}}, 2.0),
        ({"prefer": "vendor"}, 2.0),
        ({"prefer": "vendor", "strict": True}, 1.0),
        ({"deny": ["acme"]}, None),
    ):
        with opmux.policy(**policy):
            assert value_of_selected(16) == runs, policy
        assert value_of_selected(16) is None


def test_calls_on_another_device_ignore_the_times(two, monkeypatch):
    """On a machine with an accelerator, the stored times are those of the accelerator."""
    store_times({16: {A: 55.0, B: 41.0}})
    assert value_of_selected(16) == 2.0
    with devices.assume("nvidia", "sm_90"):
        HERE.changed()
        monkeypatch.setattr(type(FILES), "measured", lambda self, chip: {LABEL.format(16): {A: 55.0, B: 41.0}})
        provider_speed.forget()
        make = lambda device: (torch.empty(16, 4, device=device), torch.empty(8, 4, device=device))
        chosen = lambda device: opmux.explain("linear", *make(device)).chosen.impl_id
        with opmux.policy(per_op={"linear": "vendor:acme|*"}):
            assert (chosen("meta"), chosen("cpu")) == (B, A)
    HERE.changed()


def test_an_order_by_speed_is_right_despite_chains_of_small_differences(impls):
    """The measurements do not show that A is slower than B, or B than C. But A is slower than C, so A must not be
    first.
    """
    for impl_id, value, priority in ((A, 1.0, 10), (B, 2.0, 5), ("vendor.acme.c", 3.0, 1)):
        impls(impl_id, value, priority)
    store_times({16: {A: 100.0, B: 98.5, "vendor.acme.c": 97.0}})
    assert value_of_selected(16) == 2.0
    report = opmux.explain("linear", torch.zeros(16, 4), torch.zeros(8, 4))
    assert [v.impl.impl_id for v in report.verdicts if v.impl.vendor == "acme"] == [B, "vendor.acme.c", A]


def test_calls_by_name_and_calls_that_need_gradients_are_selected_by_speed_too(two):
    store_times({16: {A: 55.0, B: 41.0}})
    x, weight = torch.zeros(16, 4, requires_grad=True), torch.zeros(8, 4)
    assert opmux.ops.linear(x, weight).unique().item() == 2.0
    manager = get_default_manager()
    assert manager.call("linear", x.detach(), weight, bias=None).unique().item() == 2.0
    assert manager.call("linear", torch.zeros(17, 4), weight).unique().item() == 1.0


@pytest.mark.parametrize("wrong", [(torch.zeros(16, 4), torch.zeros(8)), (None, torch.zeros(8, 4)), (3.0, 4.0)])
def test_wrong_arguments_raise_the_same_error_with_and_without_times(wrong):
    with pytest.raises(Exception) as without:
        opmux.ops.linear(*wrong)
    store_times({16: {A: 55.0, REFERENCE: 41.0}})
    with pytest.raises(type(without.value)) as raised:
        opmux.ops.linear(*wrong)
    assert str(raised.value) == str(without.value) and not get_default_manager().failures()


def test_a_switch_to_another_implementation_is_logged_once_with_its_measurement(two, caplog):
    store_times({16: {A: 55.0, B: 41.0}})
    with caplog.at_level("INFO", "opmux"):
        assert [value_of_selected(m) for m in (17, 16, 17, 16, 15)] == [1.0, 2.0, 1.0, 2.0, 2.0]
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Op 'linear' switched")]
    (line,) = [line for line in lines if f"to '{B}'" in line]
    assert "measured on cpu: vendor.acme.b 41 us, this 55 us" in line


# ---- our kernel and a vendor's libraries ----------------------------------------------------------------------------


@pytest.fixture
def h200(monkeypatch, tmp_path):
    """Simulate an NVIDIA H200. `ask(times)` explains `gemm` for 16 rows with these shipped times."""
    launch = pytest.importorskip("opmux.kernels.lib.launch")
    monkeypatch.setattr(launch, "runs_on_chip", lambda: True)
    shipped: dict = {}
    monkeypatch.setattr(type(FILES), "measured", lambda self, chip: dict(shipped))
    chip = [Chip("nvidia", "sm_90", "NVIDIA H200")]
    monkeypatch.setattr(provider_speed, "chip_of", lambda device: chip[0])

    def ask(rows, m=16):
        shipped.clear()
        shipped.update(rows)
        provider_speed.forget()
        make = lambda *shape: torch.empty(shape, device="meta", dtype=torch.bfloat16)
        report = opmux.explain("gemm", make(m, 64), make(64, 128))
        assert report.chosen is not None
        return report.chosen.impl_id, {v.impl.impl_id: f"{v.stage}: {v.reason}" for v in report.verdicts}

    with devices.assume("nvidia", "sm_90"):
        HERE.changed()
        yield ask
    HERE.changed()


OURS, CUBLAS = "default.flagos", "vendor.nvidia.cublas"
BF16 = "gemm[dtype=bfloat16 out=bfloat16 trans_a=False trans_b=False m<={} n<=128 k<=64]"


def test_our_kernel_runs_where_it_is_faster_than_a_preferred_library(h200):
    faster = {BF16.format(16): {OURS: 41.0, CUBLAS: 55.0}}
    chosen, why = h200({})
    assert chosen == CUBLAS and why[OURS].startswith("library: cuBLAS is faster: it runs only if a policy names it")
    chosen, why = h200(faster)
    facts = BF16.format(16).removeprefix("gemm[").removesuffix("]")
    words = f"speed: measured on NVIDIA H200 (sm_90): default.flagos 41 us, this 55 us ({facts})"
    assert (chosen, why[CUBLAS]) == (OURS, words)
    chosen, why = h200(faster, m=17)  # a class without measurements
    assert (chosen, why[OURS]) == (CUBLAS, "speed: cuBLAS is faster")
    chosen, why = h200(faster | {BF16.format(32): {OURS: 55.0, CUBLAS: 41.0}}, m=17)
    assert chosen == CUBLAS and "vendor.nvidia.cublas 41 us, this 55 us" in why[OURS]


def test_our_kernel_for_one_chip_also_needs_a_measurement(h200):
    mine, registry = "default.flagos.nvidia.hopper", get_default_manager().registry
    fn = next(i.fn for i in registry.impls("opmux::gemm") if i.impl_id == OURS)
    registry.register_impl(OpImpl("opmux::gemm", mine, BackendImplKind.DEFAULT, "nvidia", fn, 200))
    try:
        chosen, why = h200({})
        assert (chosen, why[mine]) == (CUBLAS, "speed: cuBLAS is faster")
        assert h200({BF16.format(16): {mine: 41.0, CUBLAS: 55.0}})[0] == mine
        with opmux.policy(per_op={"gemm": f"impl:{mine}"}):
            assert h200({})[0] == mine
    finally:
        registry.unregister("opmux::gemm", mine)


def test_a_difference_below_2_percent_keeps_the_library(h200):
    other = {BF16.format(1): {OURS: 1.0, CUBLAS: 9.0}}  # makes our kernel a candidate
    assert h200(other | {BF16.format(16): {OURS: 100.0, CUBLAS: 101.0}})[0] == CUBLAS
    assert h200(other | {BF16.format(16): {OURS: 100.0, CUBLAS: 103.0}})[0] == OURS
    assert h200(other | {BF16.format(16): {OURS: 1.0}})[0] == CUBLAS  # cuBLAS was not measured


def test_strict_and_policies_that_name_an_implementation_override_measurements(h200):
    slower, faster = ({BF16.format(16): dict(zip((OURS, CUBLAS), us))} for us in ((55.0, 41.0), (41.0, 55.0)))
    with opmux.policy(strict=True):
        assert h200(faster)[0] == CUBLAS
    with opmux.policy("vendor"):
        assert h200(faster)[0] == CUBLAS
    with opmux.policy(per_op={"gemm": "impl:default.flagos"}, strict=True):
        assert h200(slower)[0] == OURS
    with opmux.policy(deny=["nvidia"]):
        assert h200(slower)[0] == OURS


def test_aten_overloads_prefer_the_vendors_library(h200):
    """Implementations of overloads have no `when`, so they cannot be selected per call."""
    h200({BF16.format(16): {OURS: 41.0, CUBLAS: 55.0}})
    first = HERE.preferred("cuda")["opmux::gemm"]
    assert isinstance(first, LibrariesFirst) and first() is None and first.always() == "cuBLAS is faster"


# ---- files ----------------------------------------------------------------------------------------------------------


def test_the_users_file_overrides_a_shipped_one(monkeypatch, tmp_path, two):
    folder = tmp_path / "vendor"
    folder.mkdir()
    chip = speed_files.chip_of(CPU)
    one, other = LABEL.format(16), LABEL.format(32)
    shipped = {one: {A: 55.0, B: 41.0}, other: {A: 55.0, B: 41.0}}
    (folder / FILES.name).write_text(FILES.text(chip, shipped, {"seconds": 3}))
    monkeypatch.setattr(tile_files, "folders", lambda chip: ("here",))
    monkeypatch.setattr(tile_files, "place", lambda name: folder)
    provider_speed.forget()
    assert (value_of_selected(16), value_of_selected(32)) == (2.0, 2.0)
    store_times({16: {A: 41.0, B: 55.0}})
    assert (value_of_selected(16), value_of_selected(32)) == (1.0, 2.0)
    assert FILES.shipped(chip) == shipped
    store_times({64: {A: 2.0, B: 1.0}})  # added to the user's file
    assert (value_of_selected(16), value_of_selected(32), value_of_selected(64)) == (1.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "JSONDecodeError"),
        ('{"format": 3, "entries": {}}', "it is not of format 2"),
        ('{"format": 2, "entries": {}}', "it was made for another chip"),
        ('{"format": 2, "made_for": HERE}', "it has no entries"),
    ],
)
def test_an_invalid_file_warns_once_and_keeps_the_order(two, caplog, text, message):
    store_times({16: {A: 55.0, B: 41.0}})
    file = FILES.path(speed_files.chip_of(CPU))
    assert file is not None
    made_for = json.dumps(speed_files.made_for(speed_files.chip_of(CPU)))
    cache_dir.replace(file, text.replace("HERE", made_for).encode())
    provider_speed.forget()
    assert [value_of_selected(16) for _ in range(3)] == [1.0, 1.0, 1.0]
    (line,) = [r.getMessage() for r in caplog.records if "is ignored" in r.getMessage()]
    assert str(file) in line and message in line


@pytest.mark.parametrize("bad", ["fast", 0, None])
def test_an_invalid_entry_warns_once_and_the_others_are_used(two, caplog, bad):
    store_times({16: {A: 55.0, B: 41.0}, 32: {A: 55.0, B: 41.0}})
    file = FILES.path(speed_files.chip_of(CPU))
    data = json.loads(file.read_text())
    data["entries"][LABEL.format(32)][B] = bad
    cache_dir.replace(file, json.dumps(data).encode())
    provider_speed.forget()
    assert [value_of_selected(16), value_of_selected(32), value_of_selected(32)] == [2.0, 1.0, 1.0]
    (line,) = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert str(file) in line and LABEL.format(32) in line and "expected the microseconds of each impl" in line


def test_a_file_of_the_previous_format_is_read(two):
    store_times({16: {A: 55.0, B: 41.0}})
    file = FILES.path(speed_files.chip_of(CPU))
    data = json.loads(file.read_text())
    cache_dir.replace(file, json.dumps({"made_for": data["made_for"], "format": 1, "ops": data["entries"]}).encode())
    provider_speed.forget()
    assert value_of_selected(16) == 2.0


def test_an_invalid_file_is_replaced_by_the_next_measurement(two):
    file = FILES.path(speed_files.chip_of(CPU))
    assert file is not None
    cache_dir.make(file.parent)
    cache_dir.replace(file, b"{")
    store_times({16: {A: 55.0, B: 41.0}})
    assert value_of_selected(16) == 2.0 and json.loads(file.read_text())["made_for"]["chip"] == "cpu"


def test_shipped_times_are_readable():
    for arch in ("sm_80", "sm_90", "sm_100"):
        for label in FILES.shipped(Chip("nvidia", arch)):
            assert f"opmux::{label.partition('[')[0]}" in CLASSES


@pytest.mark.parametrize("key", CLASSES)
def test_classes_are_computed_from_the_arguments_of_their_op(key, few):
    spec, known = specs.find(key), CLASSES[key]
    for sample in few(list(spec.samples(torch.float32, torch.device("cpu"))), 4):
        args, kwargs = spec.bound(sample.args, sample.kwargs)
        values = known.of(*args, **kwargs)
        assert len(values) == len(known.names) and hash(values) is not None
        assert known.label(spec.name, values).startswith(f"{spec.name}[dtype=")


@pytest.mark.parametrize("key", CLASSES)
def test_computing_a_class_runs_no_torch_op(key, few):
    """A class is computed in each call, so the code reads only shapes and strides, and creates no tensor."""

    class Forbidden(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} was called")

    spec = specs.find(key)
    (sample,) = few(list(spec.samples(torch.float32, torch.device("cpu"))), 1)[:1]
    args, _ = spec.bound(sample.args, sample.kwargs)
    with Forbidden():
        CLASSES[key].of(*args)


def test_aten_overloads_ignore_provider_times():
    """Auto mode has measured the overloads themselves. Computing a class would slow down direct calls of overloads."""
    from opmux.faces.aten.overloads import table

    provider_speed.store(speed_files.chip_of(CPU), {"matmul[dtype=float32]": {OURS: 1.0, REFERENCE: 2.0}}, {})
    overload = table()["mm"]
    assert "opmux::matmul" in overload.bases and HERE.speeds("opmux::matmul", CPU) is not None
    assert HERE.speeds(overload.key, CPU) is None

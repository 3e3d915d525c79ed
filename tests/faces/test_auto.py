"""`mode="auto"`: decisions from measurements, `record=`, and names that every entry point accepts, on the CPU's
kernels.
"""

import gc
import io
import json
import tracemalloc

import pytest
import torch

import opmux
from opmux.core.errors import UnknownName
from opmux.cpp import library as native_library
from opmux.faces.aten import decisions, engine, gate, record, saved, switch
from opmux.faces.aten.decisions import NEVER, Speed, Times
from opmux.faces.aten.overloads import table
from opmux.machine.devices import Chip
from opmux.tuning import tile_files
from opmux.tuning.speed_files import BadSpeeds, chip_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SMALL, MIDDLE, LARGE = 2**16, 2**20, 2**24
LONG = 10.0, 100.0, 500.0  # torch's times in us at these sizes; from 100 us on they hide the Python overhead


def speed(*ratios, host=(5.0, 9.0), native=(2.0, 6.0, 50.0), dtype=BF16):
    """Measured times at three sizes: torch takes `native` us, and our kernels take `ratios` times as long."""
    rows = zip((SMALL, MIDDLE, LARGE), native, ratios, strict=True)
    return Speed(host, {dtype: tuple(Times(n, t, t * r) for n, t, r in rows)})


@pytest.fixture
def measured(monkeypatch):
    """Sets the measurements and the traces of models that auto mode reads."""

    def know(speeds, traces=None, gated=False):
        decisions._decide.cache_clear()
        monkeypatch.setattr(saved, "usable", lambda: False)  # a saved choice would hide the given speeds and traces
        monkeypatch.setattr(decisions, "measured", lambda chip: speeds)
        monkeypatch.setattr(decisions, "traces", lambda: traces or {})
        monkeypatch.setattr(decisions, "gated", lambda: gated)

    yield know
    opmux.disable()
    monkeypatch.undo()
    decisions.forget()


@pytest.mark.parametrize(
    ("measured", "size"),
    [
        (speed(0.9, 0.9, 0.9, host=(5, 5)), 0),
        (speed(1.2, 0.9, 0.9, host=(5, 5)), MIDDLE),
        (speed(0.9, 1.2, 0.9, host=(5, 5)), LARGE),
        (speed(0.9, 0.9, 1.005, host=(5, 5)), 0),
        (speed(0.9, 0.9, 1.02, host=(5, 5)), NEVER),
    ],
)
def test_ops_are_overridden_from_the_smallest_size_that_is_as_fast(measured, size):
    assert measured.smallest(BF16) == measured.smallest(FP16) == size
    assert measured.smallest(FP32) == NEVER


def test_a_longer_host_time_must_be_hidden_by_the_kernel():
    # The limit is the size at which torch's kernel takes 18 us, twice our host time of 9 us. It lies between the
    # measured sizes at which torch takes 6 us and 50 us.
    size = speed(0.9, 0.9, 0.9).smallest(BF16)
    assert MIDDLE < size < LARGE
    assert speed(0.9, 0.9, 0.9).at(BF16, size).native == pytest.approx(18, rel=1e-3)
    assert speed(0.9, 0.9, 0.9, native=(1, 1, 9)).smallest(BF16) == 2 * LARGE
    assert speed(0.9, 0.9, 0.9, native=(20, 60, 90)).smallest(BF16) == SMALL


def test_without_a_known_size_all_calls_are_ours_or_none():
    """For example, the first tensor of `addmm` is the bias, whose size says nothing about the size of the call."""
    rows = lambda *ratios: {BF16: tuple(Times(64, t, t * r) for t, r in zip((2.0, 50.0), ratios, strict=True))}
    assert Speed((5, 5), rows(0.9, 0.9)).smallest(BF16) == 0
    assert Speed((5, 9), rows(0.9, 0.9)).smallest(BF16) == NEVER
    assert Speed((5, 5), rows(1.1, 0.9)).smallest(BF16) == NEVER


def test_a_lookup_in_a_large_table_counts_as_a_small_call(measured):
    """Reading a token's row is too fast to hide our host time, however large the vocabulary is."""
    measured({"embedding": speed(0.5, 0.5, 0.5), "gather": speed(0.5, 0.5, 0.5, host=(20, 9))}, gated=True)
    assert [decisions.decide(table()[n], "cpu").taken for n in ("embedding", "gather")] == [False, True]


def test_times_are_interpolated_between_sizes_and_extrapolated_beyond():
    known = speed(1.0, 1.0, 1.0)
    assert known.at(BF16, 2) == (2, 2.0, 2.0)
    assert known.at(BF16, 2**18).native == pytest.approx((2 * 6) ** 0.5)
    assert known.at(BF16, 2 * LARGE).native == 100
    assert known.at(FP32, 2) is None


def test_auto_mode_enables_nothing_without_measurements(measured):
    measured({})
    assert opmux.enable() == opmux.enabled_ops() == []
    assert opmux.enable(include="softmax") == []
    assert opmux.enable(include="softmax", mode="all") == ["_softmax", "_softmax.out"]
    opmux.enable()
    assert not engine.registered("_softmax")  # the override that mode="all" registered is removed


GAIN = {"a model": {"_softmax": [["bfloat16", LARGE, 10], ["bfloat16", MIDDLE, 1]]}}
LOSS = {"another": {"_softmax": [["bfloat16", SMALL, 1]]}}


def test_without_the_gate_an_op_must_be_faster_in_every_model_trace(measured):
    known = {"_softmax": speed(0.5, 0.5, 0.5)}
    measured(known, GAIN)
    assert opmux.enable() == ["_softmax"]
    measured(known, GAIN | LOSS)
    assert opmux.enable() == []
    assert "slower for another" in opmux.explain("_softmax", torch.randn(2, 4), -1, False).remark
    measured(known)
    assert opmux.enable() == []
    measured({"_softmax": speed(0.5, 0.5, 1.5)}, GAIN)
    assert opmux.enable() == []
    assert "75.0 us, torch's 50.0 us" in opmux.explain("_softmax").remark


def test_with_the_gate_each_call_is_decided_by_its_size(measured):
    measured({"_softmax": speed(1.5, 0.5, 0.5, host=(5, 5), native=LONG)}, gated=True)
    assert opmux.enable() == ["_softmax"] and engine.STATE.auto
    assert decisions.thresholds("_softmax", "cpu") == (*({BF16: MIDDLE, FP16: MIDDLE},) * 2, True)
    decision = decisions.decide(table()["_softmax"], "cpu")
    x = torch.empty(MIDDLE, dtype=BF16)
    assert decision.takes(x) and not decision.takes(x[1:]) and not decision.takes(x.float())
    assert opmux.explain("_softmax", x, -1, False).remark == ""
    assert "torch's own kernel runs for this size" in opmux.explain("_softmax", x[1:], -1, False).remark
    with opmux.use(mode="all"):
        assert not engine.STATE.auto and len(opmux.enabled_ops()) > 5
    assert opmux.enabled_ops() == ["_softmax"] and engine.STATE.auto


def test_unmeasured_overloads_use_the_times_of_their_functional_overload(measured, monkeypatch):
    """`masked_fill_` does not, because torch's functional overload copies and then calls it. `_softmax.out` does not,
    because our kernel needs a copy for it.
    """
    monkeypatch.setattr(gate, "may_launch", lambda device, shape, family: True)
    fast, slow = speed(0.5, 0.5, 0.5, host=(5, 5), native=LONG), speed(1.5, 1.5, 1.5, host=(5, 5), native=LONG)
    names = ["mul.Tensor", "mul_.Tensor", "mul.out", "masked_fill.Scalar", "masked_fill_.Scalar", "_softmax.out"]
    overridden = lambda: [n for n in names if decisions.decide(table()[n], "cpu").taken]
    measured({"mul.Tensor": fast, "masked_fill.Scalar": fast, "_softmax": fast}, gated=True)
    assert overridden() == names[:-2]
    limits = lambda name: decisions.decide(table()[name], "cpu").limits[BF16]
    assert limits("mul.Tensor") == limits("mul_.Tensor") == 0
    assert SMALL < limits("mul.out") < MIDDLE  # `out` overloads run in Python
    measured({"mul.Tensor": fast, "mul_.Tensor": slow}, gated=True)
    assert overridden() == ["mul.Tensor", "mul.out"]


def test_calls_that_run_in_python_need_a_larger_gain(measured, monkeypatch):
    measured({"_softmax": speed(0.5, 0.5, 0.5, host=(5, 5), native=(2, 80, 500))}, gated=True)
    monkeypatch.setattr(gate, "may_launch", lambda device, shape, family: True)
    launched, in_python, _ = decisions.thresholds("_softmax", "cpu")
    # At the limit for Python, torch's kernel takes 90 us: twice the time of a call in Python.
    assert launched[BF16] == 0 and MIDDLE < in_python[BF16] < LARGE
    opmux.enable()
    small, large = (torch.empty(n, dtype=BF16) for n in (SMALL, LARGE))
    assert "until C++ launches ours" in opmux.explain("_softmax", small, -1, False).remark
    assert opmux.explain("_softmax", large, -1, False).remark == ""


def test_calls_that_always_run_in_python_need_a_clear_gain_or_a_hidden_host_time(measured):
    """Reason, measured: a backward that runs once per step took 64 us in a model, but 21 us in the benchmark loop."""
    for host, smallest in (((20, 14), 0), ((20, 19), None), ((20, 21), None)):
        measured({"nll_loss_backward": speed(0.5, 0.5, 0.5, host=host, native=LONG)}, gated=True)
        limit = decisions.decide(table()["nll_loss_backward"], "cpu").limits[BF16]
        # At the limit, torch's kernel takes 60 us: twice the time of a call in Python.
        assert limit == smallest if smallest is not None else MIDDLE < limit < LARGE


def test_an_op_that_only_loses_on_the_host_says_so(measured):
    # The first tensor has the same size in all calls, so it does not tell the size of the call.
    rows = {BF16: tuple(Times(64, t, t * 0.5) for t in (2.0, 50.0))}
    measured({"nll_loss_backward": Speed((20, 21), rows)}, gated=True)
    decision = decisions.decide(table()["nll_loss_backward"], "cpu")
    assert not decision.taken and "its time on the host is longer than torch's" in decision.why


def test_a_file_of_measurements_round_trips_and_a_damaged_one_raises(tmp_path):
    known = {"_softmax": speed(1.5, 0.5, 0.5), "add.Tensor": speed(1.0, 1.0, 1.0, dtype=FP32)}
    file = tmp_path / "speeds.json"
    file.write_text(decisions.FILES.text(Chip("nvidia", "sm_90"), known, {"seconds": 1}))
    assert decisions.FILES.read(file) == known
    file.write_text('{"format": 1, "ops": {"add.Tensor": {}}}')
    with pytest.raises(BadSpeeds, match=r"speeds\.json"):
        decisions.FILES.read(file)


def test_storing_new_measurements_keeps_those_of_other_ops(tmp_path, monkeypatch, caplog):
    file, chip = tmp_path / "speeds.json", chip_of("cpu")
    monkeypatch.setattr(type(decisions.FILES), "path", lambda self, chip: file)
    first, second = speed(1.5, 0.5, 0.5), speed(1.0, 1.0, 1.0)
    decisions.store(chip, {"_softmax": first, "add.Tensor": first}, {})
    decisions.store(chip, {"add.Tensor": second}, {})
    assert decisions.FILES.read(file) == {"_softmax": first, "add.Tensor": second}
    file.write_text("{")
    decisions.store(chip, {"add.Tensor": second}, {})
    assert decisions.FILES.read(file) == {"add.Tensor": second} and "it is kept as" in caplog.text


def test_shipped_measurements_are_readable():
    for arch in ("sm_80", "sm_90", "sm_100"):
        for folder in tile_files.folders(Chip("nvidia", arch)):
            known = decisions.FILES.read(tile_files.place(folder) / decisions.FILES.name)
            assert not known or any(name in table() for name in known)
    for calls in decisions.traces().values():
        assert all(len(row) == 3 and hasattr(torch, row[0]) for rows in calls.values() for row in rows)


# ---- record ---------------------------------------------------------------------------------------------------------


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_record_counts_calls_by_implementation(tmp_path):
    x, file = torch.randn(2, 4), tmp_path / "calls.jsonl"
    with opmux.use(mode="all", record=file):
        torch.softmax(x, -1), torch.softmax(x, -1), torch.softmax(x.double(), 0)
    first, second = lines(file.read_text())
    assert first == {
        "overload": "_softmax", "impl": "cpp.cpu", "dtype": "float32", "shapes": [[2, 4]], "count": 2,
    }  # fmt: skip
    assert second["impl"] == "native" and second["dtype"] == "float64" and second["why"].startswith("cpp.cpu: ")
    assert not record.live


def test_record_says_why_auto_mode_left_a_call_to_torch(measured):
    measured({"_softmax": speed(1.5, 0.5, 0.5, host=(5, 5), dtype=FP32, native=LONG)}, gated=True)
    out = io.StringIO()
    opmux.enable(record=out)
    assert opmux.enabled_ops() == ["_softmax"]
    torch.softmax(torch.randn(2, 4), -1), torch.log_softmax(torch.randn(2, 4), -1)
    opmux.disable()
    small, other = lines(out.getvalue())
    assert small["overload"] == "_softmax" and "float32 from 1048576 elements" in small["why"]
    assert other["overload"] == "_log_softmax" and "not measured" in other["why"]


def test_a_recording_ends_when_its_block_ends(tmp_path):
    block = opmux.use(mode="all", record=tmp_path / "calls")
    with pytest.raises(KeyError), block:
        torch.softmax(torch.randn(2, 4), -1)
        raise KeyError
    assert not record.live and [c["count"] for c in lines((tmp_path / "calls").read_text())] == [1]
    with block, opmux.use(mode="all"):  # the record also counts ops that the inner block enables
        torch.softmax(torch.randn(2, 4), -1)
    assert [c["count"] for c in lines((tmp_path / "calls").read_text())] == [2]
    with opmux.use(mode="all"):
        torch.softmax(torch.randn(2, 4), -1)
    assert [c["count"] for c in lines((tmp_path / "calls").read_text())] == [2]
    with pytest.raises(record.BadSink, match="missing/calls.*No such file or directory. Name a file in a folder"):
        opmux.use(record=tmp_path / "missing" / "calls")


def test_auto_mode_counts_the_calls_that_cpp_would_launch(measured, monkeypatch):
    """Python counts calls, and such calls do not reach it. So C++ launches nothing while calls are counted."""
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    measured({"_softmax": speed(1.5, 0.5, 0.5, host=(5, 5), dtype=FP32, native=LONG)}, gated=True)
    opmux.enable()
    small, large = torch.randn(4, 8), torch.randn(1024, MIDDLE // 1024)
    with engine.counted() as calls:
        torch.softmax(small, -1), torch.softmax(large, -1), torch.softmax(large.double(), -1)
    assert calls == {"_softmax": 1}
    with engine.counted() as calls, opmux.use(mode="all", include="_softmax"):
        torch.softmax(small, -1), torch.softmax(large, -1)
    assert calls == {"_softmax": 2}


# ---- no side effects ------------------------------------------------------------------------------------------------


def test_a_hundred_rounds_of_enable_and_disable_change_and_leak_nothing():
    x = torch.randn(3, 5)
    names = opmux.enable(mode="all")
    opmux.disable()
    registrations = lambda: [torch._C._dispatch_dump(f"aten::{n}") for n in names]
    kernel = lambda: torch.library.get_kernel("aten::_softmax", "CPU").call_boxed
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    before, expected = registrations(), kernel()(own, x, -1, False)

    def rounds(count):
        for _ in range(count):
            opmux.enable(mode="all")
            opmux.disable()
        gc.collect()

    rounds(5)
    tracemalloc.start()
    try:
        rounds(1)
        start = tracemalloc.get_traced_memory()[0]
        rounds(100)
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    assert registrations() == before
    assert torch.equal(kernel()(own, x, -1, False), expected) and torch.equal(torch.softmax(x, -1), expected)
    assert grown < 200_000, f"{grown} bytes are kept of 100 rounds"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine that was never measured")
def test_enable_warns_once_if_nothing_was_measured(caplog):
    switch._warn_once.cache_clear()
    with caplog.at_level("WARNING", "opmux"):
        assert opmux.enable() == [] == opmux.enable()
        opmux.enable(mode="all")
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line.startswith('mode="auto" of opmux.enable() enables nothing on a CPU, torch\'s own kernels run: ')
    assert "none was measured on it. `opmux tune --aten` measures them" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine that was never measured")
def test_a_use_block_warns_once_if_nothing_was_measured(caplog):
    switch._warn_once.cache_clear()
    with caplog.at_level("WARNING", "opmux"):
        for _ in range(2):
            with opmux.use():
                assert opmux.enabled_ops() == []
    (line,) = [r.getMessage() for r in caplog.records]
    assert "enables nothing on a CPU" in line


# ---- names ----------------------------------------------------------------------------------------------------------


def test_enable_explain_and_conform_accept_the_same_names():
    from opmux.tools.conform.scope import OpScope

    on = opmux.enable(mode="all")
    opmux.disable()
    for name in (*on, "aten::_softmax", "_softmax.default"):
        plain = name.removeprefix("aten::").removesuffix(".default")
        assert opmux.enable(include=name, mode="all") == ([plain] if "." in name else opmux.enabled_ops())
        assert plain in opmux.enabled_ops() and plain in OpScope.of([name]).overloads
        after = opmux.explain(name)
        opmux.disable()
        before = opmux.explain(name)
        assert before.key == after.key and before.chosen.impl_id == after.chosen.impl_id != "native"
        assert after.remark == "" and "torch's own kernel runs, because" in before.remark


def test_explain_says_why_an_op_is_left_to_torch():
    x = torch.randn(2, 2)
    assert "torch's own kernel runs, because" in opmux.explain("linalg_cholesky_ex", x).remark
    assert "composes it" in opmux.explain("broadcast_tensors").remark
    assert opmux.explain("add_").key == "aten::add_.Tensor"
    with pytest.raises(UnknownName, match=r"add\.Tensor"):
        opmux.explain("add.Tensr")


def test_explain_names_kernels_of_torchs_native_registry():
    registry = pytest.importorskip("torch._native.registry")
    (op, key), nodes = next(iter(registry._graphs.items()))
    theirs = sorted({n.dsl_name for n in nodes if n.active})
    rows = opmux.faces.aten.extension._of_torch_native(f"aten::{op}", {"CUDA": "cuda", "CPU": "cpu"}[key])
    assert not theirs or theirs[0] in rows


def test_ops_that_torch_decomposes_count_as_having_a_kernel():
    """A decomposed op runs on every device; a structured op needs a kernel of its `out=` overload on the device."""
    known = lambda name, key: decisions.has_kernel(table()[name], key)
    assert known("select_backward", "CPU") and known("view_copy", "CPU") and known("exp", "CPU")
    assert known("select_backward", "PrivateUse3") and known("slice_backward", "PrivateUse3")
    assert not known("exp", "PrivateUse3") and not known("mul.Tensor", "PrivateUse3")

"""The C++ gate of overrides, tested under the CPU's dispatch key with overrides that record their calls."""

import logging
import warnings

import pytest
import torch

from opmux.cpp import build, launching
from opmux.cpp import library as native_library
from opmux.faces.aten import gate, native
from opmux.faces.aten.overloads import table
from opmux.faces.aten.schema import OverloadSchema

FREQUENT = ("add.Tensor", "mul.Tensor", "exp", "add_.Tensor", "sum.dim_IntList", "native_layer_norm", "cat",
            "_foreach_neg_", "_foreach_div.List")  # fmt: skip
OTHERS = ("exp.out", "arange", "_native_batch_norm_legit.no_stats")  # gate.cpp has no typed entry for these signatures
MORE = ("gelu", "_softmax", "copy_", "mm", "addmm", "where.self", "clone", "embedding", "_to_copy", "native_dropout",
        "native_group_norm", "clamp", "_foreach_lerp_.Scalar", "_foreach_addcmul_.Scalar", "_foreach_sqrt",
        "_foreach_addcdiv_.ScalarList", "_foreach_norm.Scalar", "_foreach_copy_", "_foreach_div_.ScalarList",
        "_fused_adamw_")  # fmt: skip


@pytest.fixture(scope="module")
def library():
    if not native_library.available():
        pytest.skip("the native library cannot be compiled here")
    return native_library.loaded()


@pytest.fixture
def called(library):
    """A list of the overrides' names in the order of calls; each override runs ATen's saved kernel."""
    calls, gates = [], []
    lib = torch.library.Library("aten", "IMPL")

    def override(name):
        native = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

        def call(*args, **kwargs):
            calls.append(name)
            args = [a if name not in ("add.Tensor", "mul.Tensor") or isinstance(a, torch.Tensor)
                    else torch.tensor(a) for a in args]  # fmt: skip
            return native(keys, *args, **kwargs)

        return call

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*FREQUENT, *OTHERS):
            new_gate = gate.make("cpu", OverloadSchema(name), "CPU")
            lib.impl(name, override(name), "CPU")
            new_gate.install()
            gates.append(new_gate)
    yield calls
    gate.select(frozenset(), None)
    for new_gate in gates:
        new_gate.remove()
    lib._destroy()


def program():
    """Call each overload once: with a number for a tensor, undefined tensors, lists, None, and a given `out`."""
    x = torch.linspace(-1, 1, 24).view(4, 6)
    results = [
        x + x,
        x * 2,
        2 * x,
        torch.exp(x),
        x.clone().add_(x, alpha=3),
        x.sum(1),
        torch.cat([x, x]),
        torch.arange(5),
    ]
    results += torch.native_layer_norm(x, (6,), None, None, 1e-5)
    results += torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)
    many = [x.clone(), x[0].clone()]
    torch._foreach_neg_(many)
    return [*results, *many, *torch._foreach_div(many, many), torch.exp(x, out=torch.empty(4, 6))]


def test_selected_ops_call_the_override_and_other_ops_call_atens_kernel(called):
    expected = program()
    assert called == []
    gate.select(frozenset((*FREQUENT, *OTHERS)), None)
    got = program()
    assert sorted(set(called)) == sorted((*FREQUENT, *OTHERS)) and called.count("mul.Tensor") == 2
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    called.clear()
    gate.select(frozenset({"exp"}), None)
    program()
    assert called == ["exp"]


@pytest.mark.parametrize(
    ("limits", "ours"),
    [({torch.float32: 24}, True), ({torch.float32: 25}, False), ({torch.float32: gate.NEVER}, False),
     ({torch.bfloat16: 0}, False), ({torch.float32: 0}, True), ({}, False)],
)  # fmt: skip
def test_dtype_and_size_of_the_first_tensor_select_the_override(called, limits, ours):
    names = frozenset((*FREQUENT, *OTHERS)) - {"arange"}
    gate.select(names, lambda name, device: (limits, limits, False))
    gate.forget()
    program()
    assert set(called) == (names if ours else set())


def test_a_call_without_tensors_calls_the_override_if_any_size_does(called):
    gate.select(frozenset({"arange"}), lambda name, device: (*({torch.bfloat16: 1 << 20},) * 2, False))
    torch.arange(3)
    gate.select(frozenset({"arange"}), lambda name, device: (*({torch.bfloat16: gate.NEVER},) * 2, False))
    torch.arange(3)
    assert called == ["arange"]


def test_a_thread_that_runs_a_reference_calls_atens_kernels(called):
    gate.select(frozenset({"exp"}), None)
    gate.inside(1)
    try:
        torch.exp(torch.ones(2))
    finally:
        gate.inside(-1)
    assert called == []
    torch.exp(torch.ones(2))
    assert called == ["exp"]


def test_removing_gates_restores_atens_registrations(library):
    dump = lambda: [torch._C._dispatch_dump(f"aten::{n}") for n in FREQUENT]
    before = dump()
    for _ in range(3):
        gates = [gate.make("cpu", OverloadSchema(n), "CPU") for n in FREQUENT]
        for one in gates:
            one.install()
        assert "opmux's gate" in dump()[0]
        for one in gates:
            one.remove()
        assert dump() == before


def test_frequent_signatures_have_a_typed_entry(library):
    """Looks up typed entries by the schema's text; no other test would fail if torch changed a schema."""
    for names, kind in ((FREQUENT, 2), (MORE, 2), (OTHERS, 1)):
        for name in names:
            new_gate = gate.make("cpu", OverloadSchema(name), "CPU")
            assert library.gate_install(new_gate._made) == kind, name
            new_gate.remove()


def test_overloads_that_cpp_can_launch_have_a_typed_entry(library):
    """C++ launches only overloads with a typed entry; for auto mode, `RARE` lists the others."""
    stacked = set()
    for name, overload in table().items():
        shape = overload.shape
        expected = name in gate.MORE or overload.family in launching.FAMILIES
        if expected and shape.kind != "out" and native.exists(shape, "CPU"):
            new_gate = gate.Gate("cpu", shape, "CPU")
            if library.gate_install(new_gate._made) == 1:
                stacked.add(name)
            new_gate.remove()
    assert stacked == gate.RARE


def test_an_unknown_overload_raises_with_its_name(library):
    with pytest.raises(RuntimeError, match="no_such_op"):
        gate.Gate("cpu", OverloadSchema("no_such_op"), "CPU")


def test_cpp_can_be_disabled_and_a_failed_build_logs_one_line(monkeypatch, caplog):
    monkeypatch.setattr(native_library._LibraryState, "library", None)
    monkeypatch.setattr(native_library._LibraryState, "tried", False)
    monkeypatch.setenv("OPMUX_CPP", "0")
    assert not native_library.available()
    assert gate.make("cpu", OverloadSchema("exp"), "CPU") is None
    gate.select(frozenset({"exp"}), None)

    def fail(*args, **kwargs):
        raise build.CannotBuild("there is no C++ compiler")

    monkeypatch.setattr(native_library._LibraryState, "tried", False)
    monkeypatch.delenv("OPMUX_CPP")
    monkeypatch.setattr(build, "load", fail)
    with caplog.at_level(logging.INFO, logger="opmux"):
        assert not native_library.available()
        assert not native_library.available()
    (line,) = (r.getMessage() for r in caplog.records)
    assert "Python does what C++ would" in line and line.endswith("there is no C++ compiler")

"""What a failed impl wrote is undone before the next impl runs, in all objects that the arguments reach."""

from __future__ import annotations

import dataclasses
import threading
import types
from collections import deque

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, SelectionPolicy, set_global_policy, snapshot

FP8 = torch.float8_e4m3fn
VENDOR, REFERENCE = BackendImplKind.VENDOR, BackendImplKind.REFERENCE


@pytest.fixture(autouse=True)
def vendor_first():
    set_global_policy(SelectionPolicy(prefer="vendor"))


@dataclasses.dataclass
class Holder:
    t: torch.Tensor


class Slotted:
    __slots__ = ("__hidden", "t")

    def __init__(self, t):
        self.t, self.__hidden = t, t


def leaf_with_grad():
    x = torch.zeros(4, requires_grad=True)
    x.grad = torch.ones(4)
    return x


def parameter_with_main_grad():
    x = torch.nn.Parameter(torch.zeros(4))
    x.main_grad = torch.ones(4)
    return x


def cyclic():
    held = types.SimpleNamespace(t=torch.zeros(4))
    held.me = [held, {"again": held}]
    return held


# argument -> how an impl may modify it, and what a failure must restore
def add(t):
    with torch.no_grad():
        t[:2] += 1


CHANGES = {
    "namespace": (lambda: types.SimpleNamespace(t=torch.zeros(4)), lambda o: add(o.t), lambda o: o.t),
    "dataclass": (lambda: Holder(torch.zeros(4)), lambda o: add(o.t), lambda o: o.t),
    "attribute bound anew": (lambda: Holder(torch.zeros(4)), lambda o: setattr(o, "t", torch.ones(4)), lambda o: o.t),
    "attribute added": (lambda: Holder(torch.zeros(4)), lambda o: setattr(o, "u", 1), lambda o: sorted(vars(o))),
    "attribute of an empty object": (types.SimpleNamespace, lambda o: setattr(o, "u", 1), lambda o: sorted(vars(o))),
    "slots": (lambda: Slotted(torch.zeros(4)), lambda o: add(o.t), lambda o: o.t),
    "slot bound anew": (lambda: Slotted(torch.zeros(4)), lambda o: setattr(o, "t", None), lambda o: o.t),
    "cycle": (cyclic, lambda o: add(o.me[1]["again"].t), lambda o: o.t),
    "dict": (lambda: {"a": torch.zeros(4)}, lambda o: (add(o["a"]), o.pop("a")), lambda o: (list(o), o["a"])),
    "list": (lambda: [torch.zeros(4)], lambda o: (add(o[0]), o.append(3)), lambda o: (len(o), o[0])),
    "deque": (lambda: deque([1, 2]), lambda o: o.popleft(), list),
    "set": (lambda: {1, 2}, lambda o: o.add(3), sorted),
    "bytes": (lambda: bytearray(b"abc"), lambda o: o.extend(b"d"), bytes),
    "array": (lambda: np.zeros(4), lambda o: o.__setitem__(0, 7), lambda o: o.copy()),
    "strided array": (lambda: np.zeros((4, 4))[::2, ::2], lambda o: o.fill(7), lambda o: o.copy()),
    "grad": (leaf_with_grad, lambda o: add(o.grad), lambda o: o.grad),
    "grad bound anew": (leaf_with_grad, lambda o: setattr(o, "grad", None), lambda o: o.grad),
    "main_grad": (parameter_with_main_grad, lambda o: add(o.main_grad), lambda o: o.main_grad),
    "contents": (lambda: torch.zeros(4), add, lambda o: o),
    "data": (lambda: torch.zeros(4), lambda o: setattr(o, "data", torch.ones(9)), lambda o: o),
    "set_": (lambda: torch.zeros(4), lambda o: o.set_(torch.ones(9)), lambda o: o),
    "resize_": (lambda: torch.zeros(4), lambda o: o.resize_(100).fill_(3), lambda o: o),
    "storage shrunk": (lambda: torch.ones(4), lambda o: o.untyped_storage().resize_(0), lambda o: o),
    "t_": (lambda: torch.arange(6.0).view(2, 3), lambda o: (o.t_(), o.add_(1)), lambda o: o),
    "squeeze_": (lambda: torch.zeros(1, 4), lambda o: o.squeeze_(0), lambda o: o),
    "expanded": (lambda: torch.zeros(4).expand(3, 4), lambda o: o.untyped_storage().fill_(7), lambda o: o),
    "view": (lambda: torch.zeros(64)[3:9:2], lambda o: o.add_(1), lambda o: o),
    "0-dim": (lambda: torch.tensor(2.0), lambda o: o.add_(1), lambda o: o),
    "fp8": (lambda: torch.zeros(4).to(FP8), lambda o: o.view(torch.uint8).fill_(7), lambda o: o.float()),
    "sparse": (lambda: torch.eye(3).to_sparse(), lambda o: o.mul_(2), lambda o: o.to_dense()),
    "wrapper": (lambda: TwoTensor(torch.zeros(4), torch.zeros(4)), lambda o: o.a.fill_(7), lambda o: (o.a, o.b)),
    "generator": (torch.Generator, lambda o: torch.rand(3, generator=o), lambda o: o.get_state()),
    "module": (lambda: torch.nn.Linear(2, 2), lambda o: o.weight.data.zero_(), lambda o: o.weight),
}  # fmt: skip


def look(value):
    """A copy of the state that the test compares."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone(), value.stride() if value.layout is torch.strided else ()
    return tuple(map(look, value)) if isinstance(value, tuple) else value


def same(got, expected):
    if isinstance(expected, torch.Tensor):
        return got.shape == expected.shape and torch.equal(got, expected)
    if isinstance(expected, tuple):
        return len(got) == len(expected) and all(map(same, got, expected))
    return np.array_equal(got, expected) if isinstance(expected, np.ndarray) else got == expected


def manager_of(bad, good):
    registry = OpRegistry()
    registry.register_impl(OpImpl("an_op", "bad", VENDOR, "acme", bad))
    registry.register_impl(OpImpl("an_op", "good", REFERENCE, None, good))
    return OpManager(registry)


@pytest.mark.parametrize("by_keyword", [False, True], ids=["positional", "keyword"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_by_a_failed_impl_are_undone(name, by_keyword):
    make, change, see = CHANGES[name]
    value = make()
    before, observed = look(see(value)), []

    def bad(value):
        change(value)
        raise RuntimeError("late")

    def good(value):
        observed.append(look(see(value)))
        return "good"

    call = manager_of(bad, good).call
    assert (call("an_op", value=value) if by_keyword else call("an_op", value)) == "good"
    assert same(observed[0], before) and same(look(see(value)), before)


def test_a_restored_tensor_keeps_its_memory_and_version():
    base = torch.zeros(10)
    view = base[2:6]
    version, address = base._version, view.data_ptr()

    def bad(x):
        x.add_(1)
        x.set_(torch.ones(3))
        raise RuntimeError("late")

    assert manager_of(bad, lambda x: "good").call("an_op", view) == "good"
    assert view.data_ptr() == address and view._version == version and not base.any()
    view.fill_(5)
    assert base[2:6].eq(5).all()


def test_a_failed_impl_does_not_advance_the_random_generator():
    def bad(x):
        torch.rand(5)
        raise RuntimeError("late")

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(manager_of(bad, lambda x: torch.rand(4)).call("an_op", torch.zeros(2)), expected)


@pytest.mark.parametrize(
    "value, words",
    [
        (threading.Lock(), "refers to a lock, whose state cannot be copied"),
        ([iter([1])], "refers to a list_iterator, whose state cannot be copied"),
        (torch.zeros(100), "may write more than 0 MiB, which is too much to copy"),
    ],
    ids=["lock", "iterator", "large"],
)
def test_objects_that_cannot_be_copied_prevent_a_fallback_with_a_reason(value, words, monkeypatch):
    monkeypatch.setattr(snapshot, "LIMIT", 64)
    manager = manager_of(lambda v: 1 / 0, lambda v: "good")
    with pytest.raises(ZeroDivisionError, match=f"no other impl is tried after 'bad': .*{words}"):
        manager.call("an_op", value)


def test_an_error_during_undo_does_not_hide_the_cause(monkeypatch):
    def broken(self):
        raise OSError("cannot put back")

    monkeypatch.setattr(snapshot.Snapshot, "restore", broken)
    with pytest.raises(ZeroDivisionError, match="what 'bad' wrote cannot be undone: OSError: cannot put back"):
        manager_of(lambda v: 1 / 0, lambda v: "good").call("an_op", torch.zeros(3))


def test_a_large_object_graph_is_not_traversed_completely(monkeypatch):
    monkeypatch.setattr(snapshot, "MOST_OBJECTS", 50)
    manager = manager_of(lambda v: 1 / 0, lambda v: "good")
    with pytest.raises(ZeroDivisionError, match="refers to more than 50 objects"):
        manager.call("an_op", [[] for _ in range(100)])

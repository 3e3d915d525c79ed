"""The generated bound launch: what it passes to the entry point of each kind of launcher, and when it falls back."""

from __future__ import annotations

import ctypes
import threading
import types

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels.lib import launch
from opmux.kernels.lib.config import Config


class Pointer:
    def __init__(self, address):
        self.at = address

    def data_ptr(self):
        return self.at


class Chain:
    def __init__(self):
        self.calls = []


HEAD, TAIL = (1, 2, 3, 99, "F", False, False), (16, 0, 32, 7, 8, 0.5, "C")
ENTRIES = {
    "generated": (*HEAD, None, None, "P", None, None, None, *TAIL),
    "shared": (*HEAD, "P", None, None, None, None, None, "N", "S", TAIL),
}


@pytest.fixture(params=ENTRIES)
def quick(request):
    """A launch with three tensors, of which the second is None, two scalars bound in advance, and one scalar passed at
    the call.
    """
    hooks = types.SimpleNamespace(launch_enter_hook=Chain(), launch_exit_hook=Chain())
    entered, stood_back = [], []
    names = dict(
        _x=1, _y=2, _z=3, _k0=7, _k1=8, _c0="C", _function="F", _packed="P", _cooperative=False,
        _pdl=False, _notes="N", _types="S", _hooks=hooks, _enter=hooks.launch_enter_hook, _leave=hooks.launch_exit_hook,
        _entering=hooks.launch_enter_hook.calls, _leaving=hooks.launch_exit_hook.calls, _recording={},
        _device=0, _here=lambda: 0, _stream=lambda device: 99, _entry=lambda *args: entered.append(args),
        _slow=lambda tensors, late: stood_back.append((tensors, late)),
    )  # fmt: skip
    form = launch._Form(("x", "r", "y", "eps"), ("x", "r", "y"), (), ("_k0", "_k1", "eps"), 1, ())
    function = types.FunctionType(launch._code(request.param, form, "101"), names)
    return types.SimpleNamespace(
        call=lambda first=16: function(Pointer(first), None, Pointer(32), 0.5),
        names=names, hooks=hooks, entered=entered, stood_back=stood_back, wanted=ENTRIES[request.param],
    )  # fmt: skip


def test_the_entry_point_gets_every_argument_in_its_place(quick):
    quick.call()
    assert quick.entered == [quick.wanted] and not quick.stood_back


@pytest.mark.parametrize("address", [0, 8, 17])
def test_unaligned_or_null_pointers_fall_back(quick, address):
    """0 is the address of a tensor without memory; the addresses 8 and 17 are not multiples of 16."""
    quick.call(address)
    assert not quick.entered and [late for _, late in quick.stood_back] == [(0.5,)]


def test_another_current_device_falls_back(quick):
    quick.names["_here"] = lambda: 1
    quick.call()
    assert not quick.entered and len(quick.stood_back) == 1


def test_an_active_recording_falls_back(quick):
    quick.names["_recording"][1] = []
    quick.call()
    assert not quick.entered and len(quick.stood_back) == 1


def test_a_launch_is_recorded_for_its_thread():
    import triton

    from opmux.core import launches
    from opmux.kernels.norm import rms_norm, rms_norm_bwd

    if not triton.knobs.runtime.interpret:
        pytest.skip("the kernel runs on a CPU in the interpreter alone")
    x, w = torch.ones(4, 16), torch.ones(16)
    rms_norm(x, w, 1e-6, 0.0, "llama")
    launches.recording[threading.get_ident()] = mine = launches.Record()
    launches.recording[-1] = others = launches.Record()
    try:
        y, rstd = rms_norm(x, w, 1e-6, 0.0, "llama")
        (recorded,) = mine.launches
        assert recorded.args["x_ptr"] is x and recorded.args["eps"] == 1e-6 and len(recorded.grid) == 3
        assert {id(t) for t in mine.made} == {id(y), id(rstd)}
        mine.made.clear()
        mine.launches.clear()
        results = rms_norm_bwd(y, x, w, rstd, 0.0, "llama")
    finally:
        launches.recording.clear()
    # One launch computes dx and partial sums, another one adds the partial sums. `made` lists the tensors that are
    # neither arguments nor results.
    assert len(mine.launches) == 2 and len(mine.made) == 3
    known = {id(t) for t in (y, x, w, rstd, *mine.made)}
    used = {id(a) for one in mine.launches for a in one.args.values() if torch.is_tensor(a)}
    assert used <= known and {id(t) for t in results} <= used
    assert not others.launches and not others.made


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
def test_a_launch_hook_falls_back(quick, name):
    getattr(quick.hooks, name).calls.append(print)
    quick.call()
    setattr(quick.hooks, name, Chain())  # a chain that the launch does not know
    quick.call()
    assert not quick.entered and len(quick.stood_back) == 2


def test_an_import_from_c_finds_builtins(monkeypatch):
    """`PyImport_Import` looks up builtins in the globals of the running Python function."""
    monkeypatch.setattr(launch, "warp_size", lambda: 32)  # there may be no chip
    bring = ctypes.pythonapi.PyImport_ImportModule
    bring.restype, bring.argtypes = ctypes.py_object, [ctypes.c_char_p]
    ready = launch.Launcher(_nothing, sizes="").ready((1, 1, 1), (), Config({}))
    ready.__globals__["_slow"] = bring
    ready.__code__ = (lambda: _slow(b"types")).__code__  # noqa: F821
    assert ready() is types


def _nothing(x_ptr):
    pass

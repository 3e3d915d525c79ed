"""Calls that C++ may replay: a call with an existing plan only launches kernels, and does no other work on the
device.
"""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch

from opmux.core import NotSupported, get_default_manager, specs
from opmux.cpp import launching
from opmux.faces.aten import gate
from opmux.faces.aten.overloads import table

pytest.importorskip("triton")
from opmux.kernels.lib.launch import Launcher

MODE = "interpret"


def collect():
    manager = get_default_manager()
    more = [table()[name] for name in gate.MORE]
    for family in {*launching.FAMILIES, *(o.family for o in more)}:
        specs.load_implementers(family)
    manager.prepare()
    for spec in specs:
        selected = spec.family in launching.FAMILIES or any(spec.key in o.bases for o in more)
        for impl in manager.registry.get_implementations(spec.key) if selected else ():
            if impl.impl_id == "default.flagos":
                yield spec, impl


FOUND = sorted(collect(), key=lambda row: row[0].key)


def test_ops_that_cpp_may_replay_are_collected():
    assert {"aten::add", "aten::select_backward", "aten::copy", "opmux::rms_norm", "opmux::softmax"} <= {
        spec.key for spec, _ in FOUND
    }


def called(spec, fn, args):
    parameters = list(spec.signature.parameters.values())
    args = [*args, *(p.default for p in parameters[len(args) :])]
    names = inspect.signature(fn).parameters.values()
    keywords = {p.name: a for p, a in zip(names, args, strict=False) if p.kind is p.KEYWORD_ONLY}
    return fn(*args[: len(args) - len(keywords)], **keywords)


@pytest.mark.parametrize("spec, impl", FOUND, ids=[s.key for s, _ in FOUND])
def test_a_planned_call_only_launches(spec, impl, monkeypatch):
    monkeypatch.undo()  # poisoning memory would be work on the device
    monkeypatch.setattr(Launcher, "__call__", lambda *args, **more: None)  # the interpreter itself computes with torch
    for dtype in (torch.float32, torch.int32):
        with contextlib.suppress(NotSupported):
            sample = next(iter(spec.samples(dtype, torch.device("cpu"))))
            called(spec, impl.fn, sample.args)
            with launching.LaunchRecorder() as recorder:
                called(spec, impl.fn, sample.args)
            assert recorder._watch.pure
            return
    pytest.fail("neither dtype is taken")

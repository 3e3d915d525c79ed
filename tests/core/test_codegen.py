"""Functions generated from text: errors and debuggers can show their lines."""

from __future__ import annotations

import inspect
import linecache
import traceback

import pytest
import torch

import opmux
from opmux.core import BackendImplKind, codegen

TEXT = "def half(x):\n    return x / _two\n"


def test_generated_source_is_in_tracebacks_and_inspect():
    half = codegen.function(TEXT, "half", "test half", {"_two": 0})
    with pytest.raises(ZeroDivisionError) as caught:
        half(1)
    text = "".join(traceback.format_exception(caught.value))
    assert 'File "<opmux test half>", line 2, in half\n    return x / _two\n' in text
    assert inspect.getsource(half) == TEXT
    linecache.checkcache()  # `traceback` and pytest call it; generated sources must stay
    assert inspect.getsource(half) == TEXT


def test_sources_with_equal_names_keep_their_own_lines():
    first = codegen.function(TEXT, "half", "test same name", {"_two": 2})
    other = codegen.function(TEXT.replace("/", "//"), "half", "test same name", {"_two": 2})
    again = codegen.function(TEXT, "half", "test same name", {"_two": 4})
    assert (first(5), other(5), again(5)) == (2.5, 2, 1.25)
    assert "//" in inspect.getsource(other) and "//" not in inspect.getsource(first)
    assert again.__code__.co_filename == first.__code__.co_filename != other.__code__.co_filename


def test_an_error_inside_an_op_shows_the_generated_lines(add_impl):
    def fails(*args):
        raise RuntimeError("no kernel")

    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)

    def shown(run) -> str:
        with opmux.policy("vendor", strict=True), pytest.raises(RuntimeError, match="no kernel") as caught:
            run()
        return "".join(traceback.format_exception(caught.value))

    add_impl("rms_norm", "vendor.acme", BackendImplKind.VENDOR, fails, vendor="acme", when=lambda *a: True)
    text = shown(lambda: opmux.ops.rms_norm(x, w))
    for line in ("return _t({})", "_returned = _run({})", "return _fall_back("):
        assert line.format("x, weight, eps, offset, casting") in text
    add_impl("gelu_tanh_bwd", "vendor.acme", BackendImplKind.VENDOR, fails, vendor="acme")
    text = shown(lambda: opmux.ops.gelu_tanh(x).sum().backward())
    assert 'File "<opmux backward of gelu_tanh' in text and "_returned = _target(_grad_y, x)" in text

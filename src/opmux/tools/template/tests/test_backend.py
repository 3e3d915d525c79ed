"""VENDOR_TITLE's ops against the references: on the chip where there is one, else interpreted on the CPU.

`opmux conform --vendor VENDOR_NAME` checks all of opmux on the chip, or on a simulated one.
"""

import os

import pytest
import torch

import opmux
from opmux.backends import infer_device
from opmux.core import NotSupported

DEVICE = "DEVICE_NAME" if infer_device() == "DEVICE_NAME" else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, which reads it then
ops = pytest.importorskip("PACKAGE_NAME.ops", exc_type=ImportError)


@pytest.fixture(autouse=True)
def interpreter():
    if DEVICE == "cpu":
        from opmux.kernels.lib import interpret

        interpret.install()  # fixes bfloat16


def cases():
    for name in ops.__all__:
        op = getattr(opmux.ops, name, None)
        for dtype in getattr(getattr(ops, name), "dtypes", (torch.float32,)) if hasattr(op, "spec") else ():
            yield pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")


def results(fn, spec, sample):
    """The results of a function; None if it leaves the call to the next implementation."""
    args, kwargs = spec.bound(sample.args, sample.kwargs)
    answer = fn.when(*args, **kwargs) if hasattr(fn, "when") else True
    if isinstance(answer, str) or answer is False:  # the reason for refusal
        return None
    try:
        return fn(*args, **kwargs)
    except NotSupported:
        return None


@pytest.mark.parametrize("name, dtype", list(cases()))
def test_an_op_agrees_with_its_reference(name, dtype):
    spec, compared = getattr(opmux.ops, name).spec, 0
    for sample in spec.samples(dtype, torch.device(DEVICE)):
        got = results(getattr(ops, name), spec, sample)
        if got is None:
            continue
        compared += 1
        want = spec.reference(*sample.args, **sample.kwargs)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            tol = spec.tol.get(b.dtype)
            limits = {} if tol is None else {"rtol": tol.rtol, "atol": tol.atol}
            about = f"{name}({sample.id}) differs: "
            torch.testing.assert_close(a, b, equal_nan=True, **limits, msg=lambda numbers, about=about: about + numbers)
    assert compared, f"{name} takes none of the samples with {dtype}: see its `when`"


def test_the_package_is_found():
    from opmux.machine import vendors

    package = vendors.get("VENDOR_NAME")
    assert package is not None, f"install it first, or see what is wrong: {vendors.broken()}"
    assert (package.device, package.module) == ("DEVICE_NAME", "PACKAGE_NAME")

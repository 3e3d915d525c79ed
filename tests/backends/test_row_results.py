"""A vendor's functions for ATen's overloads: wrong results are not returned, and one kind of call disables no other.

The vendor is a package outside the tree. One program runs on a simulated device.
"""

from __future__ import annotations

import pytest
from vendor_folder import follow, write

pytest.importorskip("triton")

PACKAGE = {
    "__init__.py": "from opmux.backends import VendorInfoBase\n\nvendor_info = VendorInfoBase('acme', 'acm')\n",
    "ops/__init__.py": '''
import torch
from backend_utils import Autograd

calls = []


def mul(self, other):
    """Returns a result of another shape, dtype and device."""
    return torch.ones(1, dtype=torch.float64)


def neg(self):
    """Has its own gradient, and returns only the first element."""
    return torch.sub(0, self[:1])


def add(self, other, *, alpha=1):
    """Computes in the dtype of its first argument, and fails if the arguments are on different devices."""
    calls.append("add")
    if self.device != other.device:
        raise ValueError("Pointer argument (at 1) cannot be accessed from Triton (cpu tensor?)")
    return torch.sub(self, other.to(self.dtype), alpha=-alpha)


def get_specific_ops():
    return (
        ("mul.Tensor", mul, Autograd.disable),
        ("neg", neg, Autograd.enable),
        ("add.Tensor", add, Autograd.disable),
    )
''',
}

PROGRAM = """
from opmux.core import get_default_manager
from opmux.machine.here import HERE
found["overloads"] = sorted(HERE.ops("acm").rows)
opmux.enable(mode="all")
import acme.ops

def ran(call):
    acme.ops.calls.clear()
    y = call()
    return [y.tolist(), str(y.dtype), y.device.type, len(acme.ops.calls)]

x, n = torch.tensor([1.0, 2.0, 3.0], device="acm"), torch.arange(3, device="acm")
found["mul"] = ran(lambda: x * x)
found["neg"] = ran(lambda: -x.clone().requires_grad_())
failures = lambda: sorted(str(f).partition(":")[2].strip() for f in get_default_manager().failures())
found["wrong"] = failures()
found["scalars"] = [ran(lambda: x + torch.tensor(2.0)), ran(lambda: torch.tensor(2.0) + x)]
found["after scalars"], found["no more"] = ran(lambda: x + x), failures() == found["wrong"]
found["proven"] = [ran(lambda: n + n)[3] for _ in range(4)]
found["promoted"] = [ran(lambda: n + x) for _ in range(2)]
found["not promoted"] = ran(lambda: n + n)
found["quarantined"] = sorted(set(failures()) - set(found["wrong"]))
found["chosen"] = [opmux.explain("aten::add.Tensor", n, other).chosen.impl_id for other in (n, x)]
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")
    write(root / "acme", PACKAGE)
    return follow(root, {}, PROGRAM, device="acm", OPMUX_PLUGIN_MODULES="acme")


def test_a_result_of_another_shape_dtype_and_device_is_not_returned(report):
    assert report.overloads == ["add.Tensor", "mul.Tensor", "neg"]
    assert report.mul == [[1.0, 4.0, 9.0], "torch.float32", "acm", 0]
    assert any("returned float64[1] on cpu as 'y0'; expected float32[3] on acm" in line for line in report.wrong)


def test_a_wrong_result_of_a_function_with_its_own_gradient_is_not_returned(report):
    assert report.neg == [[-1.0, -2.0, -3.0], "torch.float32", "acm", 0]
    assert any("aten::neg: 'default.flagos.acme' failed" in line and "float32[1]" in line for line in report.said)


def test_a_failure_for_a_cpu_scalar_does_not_disable_a_function(report):
    """The function fails for the scalar, and still runs for other calls with the same dtype and shape."""
    for y, dtype, device, calls in report.scalars:
        assert (y, dtype, device, calls) == ([3.0, 4.0, 5.0], "torch.float32", "acm", 1)
    assert getattr(report, "after scalars") == [[2.0, 4.0, 6.0], "torch.float32", "acm", 1]
    assert getattr(report, "no more")


def test_a_function_that_does_not_promote_types_runs_for_equal_types_only(report):
    """Its calls with integers have succeeded. One failure with mixed types skips it for mixed types only."""
    assert report.proven == [1] * 4
    assert [(y, dtype, calls) for y, dtype, _, calls in report.promoted] == [
        ([1.0, 3.0, 5.0], "torch.float32", 1),
        ([1.0, 3.0, 5.0], "torch.float32", 0),
    ]
    assert getattr(report, "not promoted") == [[0, 2, 4], "torch.int64", "acm", 1]
    [failure] = report.quarantined
    assert "for int64, shape class (1, 3), with float32: WrongResult" in failure
    assert report.chosen == ["default.flagos.acme", "default.flagos"]

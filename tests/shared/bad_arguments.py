"""Invalid calls of an op, which its spec derives from the signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opmux.core.spec import Spec


def assert_rejected(spec: Spec, call: Callable[..., Any]) -> None:
    """Assert that every invalid call raises the declared error, names the op, and writes to no argument."""
    errors = list(spec.errors(torch.device("cpu")))
    assert errors
    for bad in errors:
        written = [a for n, a in zip(spec.names, bad.args, strict=True) if n in spec.mutates and torch.is_tensor(a)]
        before = [t.clone() for t in written]
        with pytest.raises(bad.error, match=bad.match) as raised:
            call(*bad.args)
        assert str(raised.value).startswith(f"{spec.name}: "), bad.id
        for a, b in zip(written, before, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)

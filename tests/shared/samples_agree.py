"""Compare an op, through dispatch and without a fallback, with its reference."""

from __future__ import annotations

from typing import Any

import torch

import opmux
from opmux.core import specs
from opmux.core.spec import Tol


def assert_samples_agree(op: Any, dtype: torch.dtype, device: torch.device, equal_nan: bool = False) -> None:
    """Assert that all samples of an op agree with the reference, on the device and within the op's tolerance."""
    as_list = lambda r: list(r) if isinstance(r, tuple) else [r]
    for sample in op.spec.samples(dtype, device):
        theirs = [a.clone() if torch.is_tensor(a) else a for a in sample.args]
        want = op.reference(*theirs)
        with opmux.policy(strict=True):
            got = specs.functions[op.spec.key](*sample.args)
        if op.spec.mutates:
            got, want = sample.args[0], theirs[0]
        for a, b in zip(as_list(got), as_list(want), strict=True):
            tol = op.spec.tol.get(b.dtype, Tol(0, 0))
            torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, equal_nan=equal_nan)

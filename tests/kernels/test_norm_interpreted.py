"""The castings of RMS norms, interpreted, with rows in registers. test_interpreted.py tests long rows and other
samples.
"""

from __future__ import annotations

import pytest
import torch

from opmux.core import specs

pytest.importorskip("triton")
from opmux.kernels import norm

MODE = "interpret"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("casting", ["llama", "none"])
def test_castings_round_as_the_reference_does(casting, dtype):
    """Kernel and reference make the same roundings. At most a few elements differ, because sums have another order."""
    for name in ("rms_norm", "rms_norm_bwd", "rms_norm_bwd_add", "add_rms_norm", "add_rms_norm_bwd"):
        spec = specs.find(name)
        samples = [s for s in spec.samples(dtype, torch.device("cpu")) if f"casting={casting}" in s.id]
        assert samples
        for sample in samples:
            want = spec.reference(*sample.args)
            for which, a, b in zip(spec.out, getattr(norm, name)(*sample.args), want, strict=True):
                if which in ("y", "s"):
                    off = (a != b).float().mean().item()
                    assert off <= 0.02, (name, sample.id, which, off)
                tol = spec.tol[b.dtype]
                torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol)

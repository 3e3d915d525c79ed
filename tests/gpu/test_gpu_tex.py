"""tex on a GPU: no function synchronizes on its normal path, and the guide's test program runs as written."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from opmux.faces.tex import interface
from opmux.faces.tex.ops.unavailable import UNAVAILABLE

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
tex = interface.module()
SPECS = {s.name: s for s in interface.tex_specs() if s.name not in UNAVAILABLE}
# These functions read sizes on the host, as documented. NVIDIA's layer does not call them, because of the version that
# our tex reports.
ON_THE_HOST = {s.name for s in SPECS.values() if s.family == "tex_grouped"}
ON_THE_HOST |= {
    "fused_topk_with_score_function_qb_fwd",  # checks its bounds, unless an argument says that they have been checked
    "copy_data_ptrs_to_device",  # creates a tensor from values on the host
}


def sample(spec):
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.uint8):
        for one in spec.samples(dtype, DEVICE):
            return one
    raise AssertionError(f"{spec.name} has no sample")


@pytest.mark.parametrize("name", sorted(set(SPECS) - ON_THE_HOST))
def test_tex_functions_do_not_synchronize(name):
    spec, fn = SPECS[name], interface.function(SPECS[name])
    samples = [copy.deepcopy(sample(spec)) for _ in range(4)]
    for one in samples[:3]:  # fills caches, and proves the impl
        fn(*one.args, **one.kwargs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fn(*samples[3].args, **samples[3].kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", sorted(ON_THE_HOST))
def test_functions_that_read_sizes_on_the_host_run(name):
    spec = SPECS[name]
    one = sample(spec)
    interface.function(spec)(*one.args, **one.kwargs)
    assert inspect.getdoc(spec.reference)


def test_the_guides_test_program_runs_as_written(capsys):
    """The program calls RMSNorm, and a gemm of row-major matrices."""
    x = torch.randn(32, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    output, _, rsigma = tex.rmsnorm_fwd(x, weight, 1e-5, None, None, torch.bfloat16, 0, False)
    torch.testing.assert_close(output, torch.nn.functional.rms_norm(x, (1024,), weight, 1e-5), rtol=1.6e-2, atol=1e-2)
    assert rsigma.dtype is torch.float32 and rsigma.shape == (32,)
    A = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16)
    B = torch.randn(512, 2048, device="cuda", dtype=torch.bfloat16)
    D = torch.empty(1024, 2048, device="cuda", dtype=torch.bfloat16)
    workspace = torch.empty(1024 * 1024, device="cuda", dtype=torch.uint8)
    tex.generic_gemm(
        A, False, B, False, D, None, torch.bfloat16, None, None, False, None, False, workspace, 1024 * 1024, False,
        False,
    )  # fmt: skip
    torch.testing.assert_close(D, A @ B, rtol=1.6e-2, atol=1e-1)

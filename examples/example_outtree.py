"""Loads a vendor's package whose name is only in the environment; this program does not name the vendor.

Run it from anywhere: python examples/example_outtree.py
With the package installed (`pip install examples/vendor_plugin`) neither the path nor the first variable is needed.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "vendor_plugin" / "src"))
os.environ["TE_FL_PLUGIN_MODULES"] = "acme_opmux"
os.environ["TE_FL_PREFER"] = "vendor"

import torch

import opmux
from opmux.core import get_default_manager, log


def implementation_of(op, *args):
    """The implementation that runs an op for these arguments, and the implementation's package."""
    verdict = next(v for v in opmux.explain(op, *args).verdicts if v.status == "chosen")
    return f"{verdict.impl}\n    from {verdict.origin}"


sys.stdout.reconfigure(line_buffering=True)  # keeps output and log lines in order, in a pipe too
log.show("INFO")

x, weight = torch.randn(4, 64), torch.ones(64)

# Call the op by name: the manager passes arguments and results unchanged.
out, rsigma = get_default_manager().call("rmsnorm_fwd", x, weight)
print(f"manager.call: out {tuple(out.shape)}, rsigma {tuple(rsigma.shape)}")

# Call the op as a function: signature and result are as documented, whichever implementation runs.
tex_out, _, tex_rsigma = opmux.ops.rmsnorm_fwd(x, weight, 1e-5, None, None, torch.float32, 0, False)
print(f"opmux.ops:    out {tuple(tex_out.shape)}, rsigma {tuple(tex_rsigma.shape)}")
print(f"the same numbers: {torch.equal(out, tex_out) and torch.equal(rsigma.flatten(), tex_rsigma)}")

print(f"rmsnorm_fwd: {implementation_of('rmsnorm_fwd', x, weight)}")
print(f"silu_mul, 64 columns: {implementation_of('silu_mul', x, x)}")
print(f"silu_mul, 63 columns: {implementation_of('silu_mul', x[:, 1:], x[:, 1:])}")

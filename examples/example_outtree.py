"""A vendor's package, loaded by name: no line of this program knows the vendor, the environment does.

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


def whose(op, *args):
    """Which implementation of an op runs for these arguments, and which package it came with."""
    found = next(v for v in opmux.explain(op, *args).verdicts if v.status == "chosen")
    return f"{found.impl}\n    from {found.origin}"


sys.stdout.reconfigure(line_buffering=True)  # in step with the log on stderr, in a pipe too
log.show("INFO")

x, weight = torch.randn(4, 64), torch.ones(64)

# By name: the arguments go to the implementation as they are, its result comes back as it is.
out, rsigma = get_default_manager().call("rmsnorm_fwd", x, weight)
print(f"manager.call: out {tuple(out.shape)}, rsigma {tuple(rsigma.shape)}")

# As a function with the op's full signature and its documented result, whoever computes it.
tex_out, _, tex_rsigma = opmux.ops.rmsnorm_fwd(x, weight, 1e-5, None, None, torch.float32, 0, False)
print(f"opmux.ops:    out {tuple(tex_out.shape)}, rsigma {tuple(tex_rsigma.shape)}")
print(f"the same numbers: {torch.equal(out, tex_out) and torch.equal(rsigma.flatten(), tex_rsigma)}")

print(f"rmsnorm_fwd: {whose('rmsnorm_fwd', x, weight)}")
print(f"silu_mul, 64 columns: {whose('silu_mul', x, x)}")
print(f"silu_mul, 63 columns: {whose('silu_mul', x[:, 1:], x[:, 1:])}")

"""Brings up a chip on its first day, without the chip: a package, its check, a wrong kernel that the check finds.

Run it from anywhere: python examples/bring_up_chip.py
It takes about a minute. docs/new-backend.md explains each step.
"""

# Only Python's own modules are imported: each step runs a command of opmux, as you would in a shell.
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The package is made in a temporary folder. It is not installed: this setting tells opmux to import it as a plugin.
folder = tempfile.TemporaryDirectory()
package = Path(folder.name, "opmux-acme", "src")
settings = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(package), *sys.path]),
    "OPMUX_PLUGIN_MODULES": "opmux_acme",
}


# A function that runs a command and returns what it prints.
def opmux(*arguments, env=None):
    """Run a command of opmux; returns its output."""
    command = [sys.executable, "-m", "opmux", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)} if env is None else env
    result = subprocess.run(command, cwd=folder.name, env=environment, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


# A package for a vendor whose devices torch calls "npu". It has one op as an example: silu_mul, in Triton.
print(opmux("new-backend", "acme", "--device", "npu"))

# Check the op against its reference, on a simulated device of this type.
print(opmux("conform", "--vendor", "acme", "--op", "silu_mul", env=settings))

# A sign is wrong in the kernel. The check says which numbers differ, and how to repeat only this check.
file = package / "opmux_acme" / "ops" / "silu_mul.py"
right = file.read_text(encoding="utf-8")
file.write_text(right.replace("tl.exp(-b_a)", "tl.exp(b_a)"), encoding="utf-8")
print(opmux("conform", "--vendor", "acme", "--op", "silu_mul", "--dtype", "float32", "--check", "values", env=settings))

# The kernel is repaired, and the same check passes.
file.write_text(right, encoding="utf-8")
print(opmux("conform", "--vendor", "acme", "--op", "silu_mul", "--dtype", "float32", "--check", "values", env=settings))
folder.cleanup()

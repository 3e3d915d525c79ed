"""Import opmux with every op family and its kernels, and call nothing. Other processes are forked from this state."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import opmux.faces.aten.engine
import opmux.ops
import opmux.tools.cli
import opmux.tools.simulator
from opmux.core import specs

# Modules that most programs import later, in two seconds. They compare tensors, create fake tensors, run the command
# line, and launch kernels in Triton's interpreter. Some names are private, and some packages may not be installed.
LATER = ("torch._dynamo", "torch.distributed.tensor", "torch.testing", "triton.experimental.gluon", "typer._adapters")

specs.load_all()
for family in specs.families:
    specs.load_implementers(family)
for adapters in pkgutil.iter_modules(opmux.faces.aten.__path__, "opmux.faces.aten."):
    importlib.import_module(adapters.name)
for name in LATER:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

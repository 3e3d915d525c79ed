"""Imports opmux with every family of ops and its kernels, and asks it nothing: what other processes are forked from."""

from __future__ import annotations

import opmux.faces.aten.engine
import opmux.ops
import opmux.tools.cli
import opmux.tools.simulator  # noqa: F401
from opmux.core import specs

specs.load_all()
for family in specs.families:
    specs.load_implementers(family)

"""Tiles on Ascend, where they differ from the defaults: blocks fill a vector core's unified buffer.

With one program per 1024 elements, starting programs would take too long, and a launch may have at most 65535 programs.
"""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

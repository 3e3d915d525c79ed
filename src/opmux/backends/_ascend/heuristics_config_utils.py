"""Tiles on Ascend, where they differ from the defaults: blocks fill a vector core's unified buffer.

A program per 1024 elements starts too slowly here, and a launch of more than 65535 programs is refused.
"""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

"""Tiles on MLUs, where they differ: blocks fill a core's NRAM, one half for computing while the other is loaded."""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

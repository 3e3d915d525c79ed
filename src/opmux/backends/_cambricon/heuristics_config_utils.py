"""Tiles on MLUs, where they differ from the defaults: a block fills half of a core's NRAM; the other half is loaded."""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

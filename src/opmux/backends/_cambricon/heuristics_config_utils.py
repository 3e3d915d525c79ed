"""Tiles on MLUs, where they differ from the defaults: blocks fill half of a core's NRAM; the next blocks, the rest."""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

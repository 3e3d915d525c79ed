"""Tiles on Tsingmicro's chips, where they differ from the defaults: 16 programs, each with megabytes of memory."""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info, most=32_768)

"""Tiles on Ascend, where they differ: blocks fill a vector core's unified buffer.

A program for each block of 1024 elements is slow to start here, and over 65535 programs a launch is refused.
"""

from opmux.backends import buffers

from . import vendor_info

HEURISTICS_CONFIGS = buffers.rules(vendor_info)

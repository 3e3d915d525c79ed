"""Tiles on Hopper, where they differ: nowhere, as the kernels' defaults were found on an H200."""

HEURISTICS_CONFIGS = {}

"""Measured times: the fastest tiles of a kernel and the fastest implementation of an op, per chip.

Imports core, cache.py and `machine`. Start with speed_files.py, which reads and writes all files of times.
"""

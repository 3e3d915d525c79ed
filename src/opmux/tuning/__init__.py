"""Stores measured times. They give the fastest tiles of a kernel and the fastest implementation of an op on a chip.

Imports core, cache.py and `machine`. Start with speed_files.py, which reads and writes all files of times.
"""

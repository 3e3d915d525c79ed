"""Stores measured times, and picks from them the fastest tiles of a kernel and implementation of an op on a chip.

Imports core, cache.py and `machine`. Start with speed_files.py, which reads and writes all files of times.
"""

"""Stores measured times. From them it picks a kernel's fastest tiles and an op's fastest implementation on a chip.

Imports core, cache.py and `machine`. Start with speed_files.py, which reads and writes all files of times.
"""

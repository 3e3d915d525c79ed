"""Sorting kernels.

keys.py turns elements into sortable integers. rows.py sorts rows that fit in one program, and finds the top k. radix.py
sorts longer rows. whole.py chooses between rows.py and radix.py.
"""

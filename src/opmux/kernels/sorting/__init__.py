"""Sorting, selection and search, built on kernels/lib/sorting.

ops.py: ops over sorted rows. search.py: lookups in sorted rows. unique.py: distinct and counted elements. histogram.py:
counts per interval. segments.py: segment reductions.
"""

from . import histogram, ops, search, segments, unique  # noqa: F401

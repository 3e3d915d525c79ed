"""Sorting, selection and search, over kernels/lib/sorting: ops.py has the ops over sorted rows, search.py those that
look numbers up, unique.py distinct and counted elements, histogram.py counts by value, segments.py reductions of parts
of a dimension."""

from . import histogram, ops, search, segments, unique  # noqa: F401

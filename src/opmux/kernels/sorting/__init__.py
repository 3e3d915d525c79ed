"""Sorting, selection and search, over kernels/lib/sorting: ops.py has the ops over sorted rows, search.py those that
look numbers up, unique.py distinct and counted elements."""

from . import ops, search, unique  # noqa: F401

"""Sorting, selection and search, over kernels/lib/sorting: ops.py has the ops over sorted rows, search.py those that
look numbers up."""

from . import ops, search  # noqa: F401

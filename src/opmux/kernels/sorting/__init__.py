"""Sorting, selection and search.

keys.py orders dtypes as integers; rows.py sorts rows that one program holds, and selects the first k; radix.py sorts
longer ones; ops.py are the ops over them, search.py those that look numbers up.
"""

from . import ops, search  # noqa: F401

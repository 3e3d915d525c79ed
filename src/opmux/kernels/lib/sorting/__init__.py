"""Sorting, for every family: keys.py orders dtypes as integers; rows.py sorts rows that one program holds, and selects
the first k; radix.py sorts longer rows; whole.py takes the one that fits."""

"""Sorting kernels. keys.py: dtypes as sortable integers; rows.py: sort rows that fit in one program, and top k;
radix.py: sort longer rows; whole.py: choose between rows.py and radix.py."""

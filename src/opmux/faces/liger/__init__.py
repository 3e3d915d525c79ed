"""opmux's `liger_kernel`: Liger-Kernel's names and signatures, implemented by opmux's functions and modules.

A file of this package has one family of ops: autograd Functions, `liger_*` functions and modules. Only the Function
declares Liger's arguments; `function.py` derives the others' arguments from it. `names.py` lists the names of each
module of Liger.
"""

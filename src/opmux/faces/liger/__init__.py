"""opmux's `liger_kernel`: Liger-Kernel's names and signatures, implemented by opmux's functions and modules.

Each file of this package has related ops: their autograd Functions, `liger_*` functions and modules. Only the Function
declares Liger's arguments; `function.py` derives those of the function and the module from it. `names.py` lists the
names of each module of Liger.
"""

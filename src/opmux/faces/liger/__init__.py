"""`liger_kernel`, provided by opmux: Liger-Kernel's names and signatures over opmux's functions and modules.

A file of this package has everything of one family: autograd Functions, `liger_*` functions and modules. `names.py`
says which module of Liger has which of them.
"""

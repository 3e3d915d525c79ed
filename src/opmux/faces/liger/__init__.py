"""`liger_kernel`, provided by opmux: Liger-Kernel's names and signatures over opmux's functions and modules.

A file of this package has everything of one family: autograd Functions, `liger_*` functions and modules. Liger's
arguments are stated once, by the Function; `function.py` derives the others from it. `names.py` says which module of
Liger has which name.
"""

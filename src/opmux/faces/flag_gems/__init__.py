"""`flag_gems`, provided by opmux: FlagGems' names and signatures over opmux's kernels.

`package.py` is the module `flag_gems`; `names.py` maps FlagGems' modules to the files here.
"""

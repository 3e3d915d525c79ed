"""opmux's `flag_gems`: FlagGems' names and signatures, implemented by opmux's kernels.

`package.py` is the module `flag_gems`; `names.py` maps FlagGems' modules to the files of this package.
"""

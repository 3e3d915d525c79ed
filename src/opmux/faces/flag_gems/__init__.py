"""`flag_gems`, provided by opmux: FlagGems' names and signatures over opmux's kernels.

`package.py` is what `import flag_gems` gives; `names.py` says which module of FlagGems is which file here.
"""

"""Modules for model code, over `opmux.functional`. The public names are those of `opmux.nn`."""

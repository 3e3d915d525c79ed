"""Modules for model code that call `opmux.functional`. The public names are those of `opmux.nn`."""

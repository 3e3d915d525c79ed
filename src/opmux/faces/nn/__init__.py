"""Modules for model code that call `opmux.functional`. `opmux.nn` exports the public names."""

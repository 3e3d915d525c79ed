"""Modules for model code: `import opmux.nn as nn`."""

__all__: list[str] = []

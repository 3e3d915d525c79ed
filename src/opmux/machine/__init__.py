"""The machine: its devices and chips, their vendors, and the ops in vendors' packages.

Imports core, imports.py, settings.py and `tuning`. Start with devices.py; here.py implements core's `Machine`.
"""

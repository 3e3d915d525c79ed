"""This machine: devices, vendors, their ops and tiles, caches and C++ builds. Nothing is probed before core asks."""

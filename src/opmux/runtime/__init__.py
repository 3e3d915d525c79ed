"""This machine: its devices and vendors, their ops and tiles, caches, C++ builds. Nothing is probed before core asks."""

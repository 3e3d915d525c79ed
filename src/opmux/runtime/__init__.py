"""The machine: devices, vendors, their ops and tiles, caches and C++ builds. Devices are probed on first use."""

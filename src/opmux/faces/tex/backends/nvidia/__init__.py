"""The backend `nvidia`: NVIDIA's own extension."""

from .nvidia import NVIDIABackend

__all__ = ["NVIDIABackend"]

from .nvidia import NVIDIABackend

__all__ = ["NVIDIABackend"]

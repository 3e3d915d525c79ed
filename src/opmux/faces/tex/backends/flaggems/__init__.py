"""The backend `flaggems`: our own kernels."""

from .flaggems import FlagGemsBackend

__all__ = ["FlagGemsBackend"]

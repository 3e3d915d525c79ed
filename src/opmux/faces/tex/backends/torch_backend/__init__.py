"""The backend `torch`: the reference implementations."""

from .torch_backend import TorchBackend

__all__ = ["TorchBackend"]

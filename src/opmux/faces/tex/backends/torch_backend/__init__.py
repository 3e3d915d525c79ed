"""The backend `torch`: the references."""

from .torch_backend import TorchBackend

__all__ = ["TorchBackend"]

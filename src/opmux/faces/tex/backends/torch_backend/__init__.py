from .torch_backend import TorchBackend

__all__ = ["TorchBackend"]

"""The backend `torch`: the references in plain PyTorch, on all devices."""

from ...registry import ViewOfImpls, register_backend


@register_backend
class TorchBackend(ViewOfImpls):
    NAME = "torch"
    PRIORITY = 50

    @property
    def vendor(self) -> str:
        return "PyTorch"

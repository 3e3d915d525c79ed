"""The backend `flaggems`: our own kernels, on any chip that Triton or a vendor's folder supports."""

from ...registry import ViewOfImpls, register_backend


@register_backend
class FlagGemsBackend(ViewOfImpls):
    NAME = "flaggems"
    PRIORITY = 150

    @property
    def vendor(self) -> str:
        return "FlagOS"

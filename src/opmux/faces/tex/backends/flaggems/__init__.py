from .flaggems import FlagGemsBackend

__all__ = ["FlagGemsBackend"]

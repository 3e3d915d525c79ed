"""Ops for Hopper: what is exported here comes before the vendor's."""

from .cudnn import attention, attention_bwd

__all__ = ["attention", "attention_bwd"]

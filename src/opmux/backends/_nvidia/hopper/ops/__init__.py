"""Ops for Hopper: the exported functions come before the vendor's."""

from .cudnn import attention, attention_bwd

__all__ = ["attention", "attention_bwd"]

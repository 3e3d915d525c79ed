"""Softmax kernels: `rows` along any dimension, `scaled` for attention logits with a scale and a mask."""

from . import rows as rows
from . import scaled as scaled

"""Activation kernels: `plain` (activations alone, with a bias, or gated) and `scaled` (gates with a row factor)."""

from . import plain as plain
from . import scaled as scaled

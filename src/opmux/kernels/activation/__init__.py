"""Activation kernels: `plain` (alone, with a bias, gated) and `scaled` (with a factor per row)."""

from . import plain as plain
from . import scaled as scaled

"""Activation kernels: `plain` ones, alone, with a bias and gated; `scaled` ones, with a factor per row."""

from . import plain as plain
from . import scaled as scaled

"""What machine this is: devices, vendors, target facts. Core loads it when it first asks; nothing is probed before."""

from ..core import facts
from . import target

facts.set_target_source(target.arch_of, target.accelerators)

"""What machine this is: devices, vendors, target facts. Core loads it when it first asks; nothing is probed before."""

from ..core import facts
from .machine import HERE

facts.set_machine(HERE)

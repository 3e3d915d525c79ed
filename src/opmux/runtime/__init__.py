"""What machine this is: devices, vendors, target facts. Core loads it when it first asks; nothing is probed before."""

"""NVIDIA's chips."""

# The arch folder of a chip, by "major.minor" or major of its compute capability, or by "sm_90".
ARCH_MAP = {"9": "hopper", "8": "ampere"}

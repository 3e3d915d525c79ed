"""Compute capability 10: B200, B300, GB200; and 12: RTX 50, RTX PRO, GB10."""

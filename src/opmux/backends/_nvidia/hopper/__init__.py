"""Compute capability 9: H100, H200, GH200."""

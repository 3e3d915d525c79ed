"""Tiles on Blackwell: sm_120 gives a program 99 KiB of shared memory, sm_100 gives 227 like Hopper."""

from ..heuristics_config_utils import stages_that_fit

HEURISTICS_CONFIGS = {"softmax.cooperative": {"STAGES": stages_that_fit}}

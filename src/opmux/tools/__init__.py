"""The command line `opmux`: listing, explaining, diagnosing, benchmarking, tuning, and a demonstration."""

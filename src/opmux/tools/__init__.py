"""The command line `opmux`: lists, explains, checks, benchmarks and tunes ops, and shows what opmux does."""

"""The command line: what is here, what would run, what is wrong, and a demonstration."""

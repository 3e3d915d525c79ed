"""Declares our ops, one file per group of related ops. The PyTorch function under `@op` is the op's reference."""

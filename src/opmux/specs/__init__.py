"""Declares our ops; each file has a group of related ops. The PyTorch function under `@op` is the op's reference."""

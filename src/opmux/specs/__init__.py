"""The declarations of our ops, one file per family. The decorated PyTorch function is the op's reference."""

"""What each op computes: one file per family. The decorated torch function is the op's reference."""

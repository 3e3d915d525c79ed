"""Replaces parts of `transformers` models by fused functions: `opmux.patch_model` and `opmux.unpatch_model`."""

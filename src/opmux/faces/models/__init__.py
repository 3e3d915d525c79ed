"""Models of `transformers`: `opmux.patch_model` for fused functions, `opmux.register_attention` for attention."""

"""Models of `transformers`: fused functions by `opmux.patch_model`, attention by `opmux.register_attention`."""

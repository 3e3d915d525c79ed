"""`opmux.compare` and `opmux compare`: times a model's step natively and with opmux, and compares the results."""

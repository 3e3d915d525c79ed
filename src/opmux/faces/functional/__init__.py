"""Functions for model code, composed from ops. `opmux.functional` exports the public names."""

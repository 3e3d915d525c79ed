"""Functions for model code, composed from ops. The public names are those of `opmux.functional`."""

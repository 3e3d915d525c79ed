"""ATen's face: `opmux.enable()` puts our kernels under torch's own ops, on the dispatch keys of the chips here."""

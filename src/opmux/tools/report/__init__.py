"""`opmux report`: a page about this machine, about what runs on it and how fast, and about a model."""

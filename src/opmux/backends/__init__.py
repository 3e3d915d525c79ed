"""What a chip does differently: one folder `_<vendor>/` for each vendor, found by name when it is first needed."""

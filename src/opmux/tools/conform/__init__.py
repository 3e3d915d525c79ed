"""`opmux conform`: compares a vendor's implementations with the references, and shows where ops run on its chip."""

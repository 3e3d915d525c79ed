"""`opmux conform`: compares a vendor's implementations with the references, and shows what runs where on its chip."""

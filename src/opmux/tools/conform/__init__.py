"""`opmux conform`: holds a vendor's implementations against the references, and says what runs where on its chip."""

"""Foreign interfaces over the same ops: under which name people call them."""

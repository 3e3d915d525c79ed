"""gfx950: MI350X, MI355X."""

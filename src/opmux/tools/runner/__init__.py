"""Code shared by the commands that check and time ops: processes, clocks, records, pages."""

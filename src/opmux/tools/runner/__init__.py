"""What the commands share that check and time ops: processes, clocks, records, pages."""

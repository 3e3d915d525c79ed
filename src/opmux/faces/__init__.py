"""Under which name people call it: foreign interfaces over the same ops. A face calls the dispatcher, no kernel."""

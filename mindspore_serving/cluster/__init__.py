"""Who starts a worker, and where."""

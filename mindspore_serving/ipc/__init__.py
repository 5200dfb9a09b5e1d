"""Channel between master and workers: typed messages, and shared memory for large payloads."""

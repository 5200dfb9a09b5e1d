"""Processing of a request before the engine, and of its outputs behind it."""

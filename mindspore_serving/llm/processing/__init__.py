"""What is done to a request before the engine and to its outputs behind it."""

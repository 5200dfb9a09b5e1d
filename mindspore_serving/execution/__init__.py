"""The worker process: loads a servable, runs its stages."""

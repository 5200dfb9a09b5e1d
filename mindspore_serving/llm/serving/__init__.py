"""Serving side of a worker: the engine on a thread of its own, requests and events as messages."""

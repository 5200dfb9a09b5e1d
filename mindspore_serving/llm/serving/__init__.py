"""A worker's side: the engine on a thread of its own, requests and events as messages."""

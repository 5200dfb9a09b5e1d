"""The import path of llm-serving's agents, kept for its start scripts."""

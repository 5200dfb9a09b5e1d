"""The prefix cache on disk: blocks of keys and values as files."""

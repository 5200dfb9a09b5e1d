"""State that outlives requests: files, batches, responses and conversations, in a database."""

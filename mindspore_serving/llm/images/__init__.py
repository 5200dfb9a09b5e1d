"""Images in prompts: from requests to pixels, and to vectors in place of token embeddings."""

"""Pictures in prompts: out of requests, to pixels, to vectors in place of embeddings."""

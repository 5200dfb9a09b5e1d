"""GGUF files: weights, configuration, tokenizer and chat template in a single file."""

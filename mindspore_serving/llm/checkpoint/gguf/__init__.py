"""GGUF files: one file has weights, configuration, tokenizer and chat template."""

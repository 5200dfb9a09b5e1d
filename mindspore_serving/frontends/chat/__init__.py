"""What the protocols of language models share: models, messages, tools, fields, errors."""

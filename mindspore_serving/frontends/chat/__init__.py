"""Parts common to the protocols of language models: models, messages, tools, fields, errors."""

"""Language models of other servers: requests are forwarded to an OpenAI-compatible API."""

"""A language model of another server: requests are passed on to an API of OpenAI's form."""

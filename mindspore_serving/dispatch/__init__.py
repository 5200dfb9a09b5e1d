"""The master: which worker gets a request, and what happens when one dies."""

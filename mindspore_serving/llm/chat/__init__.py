"""Conversations: the template that makes a prompt, and tool calls and reasoning in answers."""

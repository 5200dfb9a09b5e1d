"""Chats: messages to prompts by templates, and answers to reasoning, content and tool calls."""

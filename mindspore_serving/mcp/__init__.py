"""MCP servers whose tools models call: their processes and connections, by the official SDK.

Knows no request and no protocol of our clients.
"""

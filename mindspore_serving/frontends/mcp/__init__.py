"""The Model Context Protocol: methods of servables as tools at /mcp, by the official SDK."""

from mindspore_serving.frontends.mcp.routes import PROTOCOL, ROUTES

__all__ = ["PROTOCOL", "ROUTES"]

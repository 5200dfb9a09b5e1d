"""The gRPC server: calls, limits, connections, health and reflection.  Knows no service."""

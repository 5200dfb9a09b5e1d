"""Runtime of two: native from the start, and OpenVINO for larger steps once it is packed."""

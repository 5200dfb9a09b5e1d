"""Live transcription: OpenAI's realtime protocol over a WebSocket."""

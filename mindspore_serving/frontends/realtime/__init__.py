"""Transcription while somebody speaks: OpenAI's realtime protocol over a WebSocket."""

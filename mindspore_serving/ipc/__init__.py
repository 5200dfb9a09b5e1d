"""How our own processes talk: typed messages over a stream, large payloads in shared memory."""

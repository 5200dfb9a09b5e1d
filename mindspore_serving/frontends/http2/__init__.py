"""HTTP/2 (RFC 9113) on the event loop: connections and streams.  Knows no route."""

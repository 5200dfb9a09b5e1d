"""The engine: requests in, steps, pieces of answers out.  No thread, clock or socket."""

"""Open Inference Protocol v2 as pure functions: requests and answers of HTTP and gRPC.

Both become an `InferRequest` with a `TensorBody`, which the master cuts at its instances by views;
values are read and written by the worker (`values`).  No sockets.
"""

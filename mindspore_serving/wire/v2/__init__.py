"""Open Inference Protocol v2 as pure functions: requests and answers of HTTP and gRPC.

Both become an `InferRequest` with a `TensorBody`, which the master splits into instances by views.
The worker reads and writes values (`values`).  No sockets.
"""

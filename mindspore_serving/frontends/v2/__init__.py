"""Open Inference Protocol v2 for every servable, over HTTP and gRPC, with extensions of Triton.

`models` says what is there by the protocol's names, `inference` runs requests of both transports,
`language` those to language models.  KServe's protocol v1 is `v1`.
"""

"""Open Inference Protocol v2 for every servable, over HTTP and gRPC, with extensions of Triton.

`models` finds models by their names in the protocol, `inference` runs requests of both transports,
`language` those to language models.  `v1` is KServe's protocol v1.
"""

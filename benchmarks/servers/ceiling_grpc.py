"""The least a Python gRPC server can do: give the bytes back (grpc.aio, uvloop, one process).

`python ceiling_grpc.py PORT`
"""

import asyncio
import sys

import grpc
import uvloop


async def echo(request, context):
    return request


async def main(port: str) -> None:
    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ceiling", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(sys.argv[1]))

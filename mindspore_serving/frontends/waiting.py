"""The seam for coroutines: submit a request and await its reply.  Knows no protocol."""

import asyncio

from mindspore_serving.core.service import Inference, Reply, Request


async def infer(inference: Inference, request: Request) -> Reply:
    """The one reply to a request that does not stream.  Cancelling the caller cancels the call."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def resolve(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    call = inference.submit(request, resolve)
    try:
        return await future
    except asyncio.CancelledError:
        call.cancel()
        raise

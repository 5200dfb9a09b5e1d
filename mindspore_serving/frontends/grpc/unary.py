"""Methods of one message and one answer, as functions from message to request and back.

Knows no transport: `DirectCall` calls them without a task, other calls by their context.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Inference, Reply, Request
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.grpc.calls import CallGate, abort, add_trailing, trailing
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.spans import fail

Parts: TypeAlias = list[Buffer]  # of a response
Headers: TypeAlias = Callable[[Mapping[str, str]], None]


class UnaryProtocol(Protocol):
    """Messages of a method.  What takes long, or several requests, is awaited in a task."""

    @property
    def passed_on(self) -> type[Exception] | tuple[()]:
        """Errors that a `DirectMethod` raises."""
        ...

    def begin(
        self, body: Buffer, timeout: float, headers: Headers
    ) -> tuple[Request | Awaitable[Parts], Any]:
        """Return the request in a message, or its response, and the state of the call.

        `headers` takes trailing metadata.  Raises ServingError.
        """
        ...

    def answer(self, state: Any, reply: Reply) -> Parts | Awaitable[Parts]:
        """Return the response for a reply without a failure.  Raises ServingError."""
        ...

    def refuse(self, state: Any, error: Exception) -> bytes | ServingError:
        """Return the response for an error, or the error that the status of the call tells of.

        The state is None if the request cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class DirectMethod:
    """A method of one message and one answer; `name` is package.Service/Method.

    A server on our own HTTP/2 opens a `DirectCall`; others call it as a method of grpcio.
    """

    name: str
    protocol: UnaryProtocol
    inference: Inference
    gate: CallGate

    async def __call__(self, _: object, context: Context) -> bytes:
        """Answer a call that has a context."""
        call, state = await self.gate.admit(context, self.name), None
        try:
            headers = partial(add_trailing, context)
            begun, state = self.protocol.begin(call.body, call.timeout, headers)
            if isinstance(begun, Request):
                reply = await infer(self.inference, begun)
                if reply.failure is not None:
                    reply.raise_failure()
                parts = self.protocol.answer(state, reply)
            else:
                parts = begun
            return b"".join(parts if isinstance(parts, list) else await parts)
        except self.protocol.passed_on:
            raise
        except Exception as error:
            response = self.protocol.refuse(state, error)
            if isinstance(response, ServingError):
                await abort(context, response)
            fail(error)
            if isinstance(error, ServingError):
                context.set_trailing_metadata(trailing(error))
            return response
        finally:
            call.leave()

"""Sequences of requests of a client, whose state the server keeps between them."""

import uuid
from typing import TYPE_CHECKING, Any

from mindspore_serving.client.messages import Result
from mindspore_serving.core.sequences import SequenceStep, to_fields, to_step

if TYPE_CHECKING:
    from mindspore_serving.client.client import AsyncClient, Client

Metadata = tuple[tuple[str, str], ...]


class SequenceSteps:
    """Metadata of the requests of a sequence: the first starts it, the last ends it.

    A start that fails has started nothing, so that the next request starts it again.
    """

    def __init__(self, sequence_id: int | str | None) -> None:
        self.id = uuid.uuid4().hex if sequence_id is None else sequence_id
        to_step(self.id)
        self.is_open = False

    def metadata(self, *, is_last: bool) -> Metadata:
        """Return the metadata of the next request."""
        return to_fields(SequenceStep(self.id, not self.is_open, is_last))

    def note(self, result: Result, *, is_last: bool) -> None:
        """Record the result of that request."""
        rows: list[Any] = result if isinstance(result, list) else [result]
        has_failed = any("error" in row for row in rows)
        self.is_open = not is_last and (self.is_open or not has_failed)


class ClientSequence:
    """Sequence of requests, made by `Client.sequence`: a context manager that ends it."""

    def __init__(self, client: "Client", sequence_id: int | str | None) -> None:
        self._client = client
        self._steps = SequenceSteps(sequence_id)

    @property
    def id(self) -> int | str:
        return self._steps.id

    def infer(
        self, instances: object, timeout: float | None = None, *, is_last: bool = False
    ) -> Result:
        """Send the next instance, as `Client.infer` does, and wait for its outputs.

        Several instances are run in their order.  `is_last` ends the sequence after them.
        """
        metadata = self._steps.metadata(is_last=is_last)
        result = self._client.infer_with(instances, timeout, metadata)
        self._steps.note(result, is_last=is_last)
        return result

    def end(self) -> None:
        """End the sequence, so that the server drops its state.  Harmless if it has ended."""
        if self._steps.is_open:
            self.infer([], is_last=True)

    def __enter__(self) -> "ClientSequence":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class AsyncClientSequence:
    """Sequence of requests, made by `AsyncClient.sequence`: the asyncio `ClientSequence`."""

    def __init__(self, client: "AsyncClient", sequence_id: int | str | None) -> None:
        self._client = client
        self._steps = SequenceSteps(sequence_id)

    @property
    def id(self) -> int | str:
        return self._steps.id

    async def infer(
        self, instances: object, timeout: float | None = None, *, is_last: bool = False
    ) -> Result:
        """Send the next instance as `ClientSequence.infer` does."""
        metadata = self._steps.metadata(is_last=is_last)
        result = await self._client.infer_with(instances, timeout, metadata)
        self._steps.note(result, is_last=is_last)
        return result

    async def end(self) -> None:
        """End the sequence as `ClientSequence.end` does."""
        if self._steps.is_open:
            await self.infer([], is_last=True)

    async def __aenter__(self) -> "AsyncClientSequence":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

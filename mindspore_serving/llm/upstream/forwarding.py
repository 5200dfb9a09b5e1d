"""A request on its way over a fleet: attempts until an answer begins, then that answer alone."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from mindspore_serving.core.llm_messages import Chunk, Generate
from mindspore_serving.errors import ServableUnavailable, UpstreamFailed
from mindspore_serving.llm.upstream.balancing import Demand, Ticket
from mindspore_serving.llm.upstream.budget import AnswerBudget
from mindspore_serving.llm.upstream.connection import ReplyLimits, UpstreamFailure
from mindspore_serving.llm.upstream.events import AnswerReader
from mindspore_serving.llm.upstream.exchange import stream_chunks
from mindspore_serving.llm.upstream.fleet import Fleet, Upstream
from mindspore_serving.llm.upstream.options import UpstreamOptions
from mindspore_serving.llm.upstream.requests import to_body

_FIRST_DELAY, _MAX_DELAY = 0.25, 4.0  # seconds between two attempts on one upstream


class Attempt:
    """Request that was sent to one upstream; `first` becomes the first chunks of its answer."""

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        ticket: Ticket,
        reader: AnswerReader,
        chunks: AsyncGenerator[list[Chunk], None],
    ) -> None:
        self.upstream, self.reader = upstream, reader
        self._fleet, self._ticket, self._chunks = fleet, ticket, chunks
        self._problem = ""
        self.first = asyncio.ensure_future(_first(chunks))
        upstream.waiting.add(self._lose)

    def take_first(self) -> list[Chunk]:
        """Return the first chunks, once `first` is done.  Raises UpstreamFailure."""
        self.upstream.waiting.discard(self._lose)
        if self.first.cancelled() and self._problem:
            name = self.upstream.server.origin
            text = f"the upstream {name} was lost before its answer began: {self._problem}"
            raise self._failed(UpstreamFailure(UpstreamFailed(text), may_retry=True))
        try:
            chunks = self.first.result()
        except UpstreamFailure as failure:
            raise self._failed(failure) from None
        self._fleet.succeed(self._ticket)
        return chunks

    async def rest(self) -> AsyncIterator[list[Chunk]]:
        """Iterate over the other chunks.  Raises UpstreamFailure."""
        try:
            async for new in self._chunks:
                yield new
        except UpstreamFailure as failure:
            raise self._failed(failure) from None

    def count(self, chunks: list[Chunk]) -> None:
        """Take the tokens of `chunks` off the load of the upstream."""
        self._ticket.advance(sum(len(chunk.token_ids) for chunk in chunks))

    def _failed(self, failure: UpstreamFailure) -> UpstreamFailure:
        """Record a failure and return it."""
        self._fleet.fail(self.upstream, self._ticket, failure.error)
        return failure

    async def close(self) -> None:
        """End the attempt and close its connection."""
        self.upstream.waiting.discard(self._lose)
        self._fleet.end(self._ticket)
        self.first.cancel()
        await asyncio.gather(self.first, return_exceptions=True)
        await self._chunks.aclose()

    def _lose(self, problem: str) -> None:
        self._problem = problem
        self.first.cancel()


async def _first(chunks: AsyncGenerator[list[Chunk], None]) -> list[Chunk]:
    async for new in chunks:
        return new
    return []


class Forwarding:
    """Request over `fleet`; `make_budget` makes the limits of its answer.

    `reader` is that of the answer.
    """

    def __init__(
        self,
        request: Generate,
        fleet: Fleet,
        options: UpstreamOptions,
        make_budget: Callable[[], AnswerBudget],
    ) -> None:
        self._request, self._fleet, self._options = request, fleet, options
        self._make_budget = make_budget
        self._demand = Demand.of(request)
        self._bodies: dict[str, tuple[str, bytes]] = {}  # by the upstream's name of the model
        self._tried: set[str] = set()
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + options.total_timeout
        self.reader = AnswerReader(request, make_budget())

    async def chunks(self) -> AsyncGenerator[list[Chunk], None]:
        """Iterate over the chunks of the answer.

        A failed attempt is repeated as long as no chunk has been passed on: at once on another
        upstream, else with a doubled delay. Raises ServingError.
        """
        attempt, first = await self._begin()
        try:
            self.reader = attempt.reader
            attempt.count(first)
            yield first
            async for new in attempt.rest():
                attempt.count(new)
                yield new
        except UpstreamFailure as failure:
            raise failure.error from None
        finally:
            await attempt.close()

    async def _begin(self) -> tuple[Attempt, list[Chunk]]:
        """Send the request until an answer begins."""
        retries, delay = self._options.retries, _FIRST_DELAY
        while True:
            try:
                return await self._race()
            except UpstreamFailure as failure:
                has_other = self._fleet.has_other(self._demand, self._tried)
                was_sent = not isinstance(failure.error, ServableUnavailable)
                retries -= was_sent or not has_other
                wait = 0.0 if has_other else delay
                if retries < 0 or self._now() + wait >= self._end or not failure.may_retry:
                    raise failure.error from None
            if wait:
                await asyncio.sleep(wait)
                delay = min(2 * delay, _MAX_DELAY)

    async def _race(self) -> tuple[Attempt, list[Chunk]]:
        """Send the request to an upstream, and after `hedge_after` seconds to another one.

        Returns the attempt that answers first, and its first chunks. Raises UpstreamFailure.
        """
        attempts = [self._send()]
        wait = self._options.hedge_after or None
        try:
            while True:
                waiting = {attempt.first for attempt in attempts}
                await asyncio.wait(waiting, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                done = [attempt for attempt in attempts if attempt.first.done()]
                if not done:
                    wait = None
                    if self._fleet.has_other(self._demand, self._tried):
                        attempts.append(self._send())
                for attempt in done:
                    try:
                        first = attempt.take_first()
                    except UpstreamFailure as failure:
                        if len(attempts) == 1 or not failure.may_retry:
                            raise
                        attempts.remove(attempt)
                        await attempt.close()
                    else:
                        attempts.remove(attempt)
                        return attempt, first
        finally:
            for attempt in attempts:
                await attempt.close()

    def _send(self) -> Attempt:
        """Send the request to the upstream that is best now.  Raises ServingError."""
        upstream = self._fleet.choose(self._demand, self._tried)
        self._tried.add(upstream.member.name)
        model, options = upstream.model, self._options
        if model not in self._bodies:
            self._bodies[model] = to_body(self._request, model, options)
        reader = AnswerReader(self._request, self._make_budget())
        limits = ReplyLimits(
            options.first_timeout,
            options.idle_timeout,
            self._end - self._now(),
            reader.budget.max_bytes,
        )
        path, body = self._bodies[model]
        chunks = stream_chunks(upstream.server, path, body, reader, limits)
        ticket = self._fleet.begin(upstream, self._demand)
        return Attempt(self._fleet, upstream, ticket, reader, chunks)

"""Metering of inference: which models a tenant may use, and how many tokens it has used.

It stands in the master, which sees the requests of all front ends.  Knows no protocol.
"""

import asyncio
from collections.abc import Callable

from mindspore_serving.core.llm_messages import CODEC, Chunk, Finished, Started, decode_events
from mindspore_serving.core.reading_messages import Embedded, Scored
from mindspore_serving.core.service import Call, Inference, Reply, Request, tenant_of_task
from mindspore_serving.errors import Cancelled, NotFound, ServingError, Temporary
from mindspore_serving.frontends.keys import Tenant, TenantTable
from mindspore_serving.frontends.tenants.report import UsageReport, report
from mindspore_serving.frontends.tenants.usage import UsageCounts, UsageKey, UsageTable
from mindspore_serving.metrics.exposition import Page

BYTES_PER_TOKEN = 4  # of texts, about


class MeteredInference:
    """An `Inference` that checks the limits of tenants, and counts what they use of `inner`."""

    def __init__(
        self, inner: Inference, tenants: TenantTable, is_language: Callable[[str], bool]
    ) -> None:
        """Create a meter; `is_language` returns whether a servable is a language model."""
        self._inner = inner
        self._tenants = tenants
        self._is_language = is_language
        self.usage = UsageTable()

    @property
    def is_refusing(self) -> bool:
        return self._inner.is_refusing

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Temporary | None:
        return self._inner.refusal(servable, version, method, timeout)

    def add_metrics(self, page: Page) -> None:
        """Add the usage of tenants, and their refusals, to a page of metrics."""
        refusals = ((tenant.name, tenant.refusals) for tenant in self._tenants.values())
        self.usage.add_metrics(page, refusals)

    def report(self, owner: str | None) -> UsageReport:
        """Return the usage of the tenant `owner`, or of all for None."""
        tenants = (row for row in list(self._tenants.values()) if owner in (None, row.owner))
        return report(self.usage, tenants)

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> Call:
        owner = request.tenant or tenant_of_task.get()
        tenant = self._tenants.get(owner) if owner else None
        if tenant is None:
            return self._inner.submit(request, on_reply)
        call = MeteredCall(tenant, request, on_reply, self.usage)
        if request.codec != CODEC and self._is_language(request.servable):
            call.estimate(request.body)
        try:
            tenant.check_model(request.servable)
            tenant.check_tokens()
        except ServingError as error:
            call.refuse(error.with_traceback(None))
        else:
            call.follow(self._inner.submit(request, call.on_reply))
        return call


class MeteredCall:
    """A request whose tokens are charged to a tenant when it ends, however it ends."""

    __slots__ = ("_call", "_num_bytes", "_is_language", "_on_reply", "_servable", "_tenant",
                 "_usage", "_table")  # fmt: skip

    def __init__(
        self,
        tenant: Tenant,
        request: Request,
        on_reply: Callable[[Reply], None],
        table: UsageTable,
    ) -> None:
        self._tenant: Tenant | None = tenant  # until it is charged
        self._on_reply: Callable[[Reply], None] | None = on_reply
        self._table = table
        self._servable = request.servable
        self._is_language = request.codec == CODEC
        self._usage = UsageCounts(num_requests=1)
        self._call: Call | None = None
        self._num_bytes: int | None = None  # of request and answer, if they are charged

    def estimate(self, body: object) -> None:
        """Charge for bytes, as the method of a language model does not tell its tokens."""
        self._num_bytes = len(body) if isinstance(body, bytes | bytearray | memoryview) else 0

    def follow(self, call: Call) -> None:
        """Cancel `call` when this call is cancelled."""
        self._call = call

    def refuse(self, error: ServingError) -> None:
        """Reply with `error` in the next turn of the loop; nothing is charged."""
        self._tenant = None
        asyncio.get_running_loop().call_soon(self._reply, Reply(failure=error))

    def cancel(self) -> None:
        self._on_reply = None
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._settle(Cancelled())

    def on_reply(self, reply: Reply) -> None:
        """Count the tokens or the instances of a reply, and pass it on."""
        if self._is_language:
            for body in reply.instances:
                self._count(body)
        else:
            self._usage.num_instances += len(reply.instances)
            if self._num_bytes is not None:
                self._num_bytes += sum(map(len, reply.instances))
        if reply.is_last:
            self._call = None
            self._settle(reply.failure)
        self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        if self._on_reply is not None:
            self._on_reply(reply)

    def _count(self, body: bytes | memoryview) -> None:
        usage = self._usage
        for event in decode_events(body):
            if isinstance(event, Started):
                usage.num_prompt_tokens = event.num_prompt_tokens
            elif isinstance(event, Chunk):
                usage.num_generated_tokens += len(event.token_ids)
            elif isinstance(event, Finished):
                usage.num_prompt_tokens = event.num_prompt_tokens
                usage.num_generated_tokens = event.num_generated_tokens
            elif isinstance(event, Embedded | Scored):
                usage.num_prompt_tokens = sum(event.num_prompt_tokens)

    def _settle(self, failure: ServingError | None) -> None:
        tenant, self._tenant = self._tenant, None
        if tenant is None or isinstance(failure, NotFound):  # names of clients are not counted
            return
        usage = self._usage
        usage.num_failed = int(failure is not None)
        tokens = usage.num_prompt_tokens + usage.num_generated_tokens
        weight = tenant.key.weight_of(self._servable)
        if self._num_bytes is not None:
            tokens = -(-self._num_bytes // BYTES_PER_TOKEN)
        elif not self._is_language:
            tokens = usage.num_instances if weight is not None else 0
        tenant.charge(tokens * (1 if weight is None else weight))
        self._table.add(UsageKey(tenant.owner, tenant.name, self._servable), usage)

"""Metering of inference: which models a tenant may use, and how many tokens it has used.

It stands in the master, which sees the requests of all front ends.  Knows no protocol.
"""

import asyncio
from collections.abc import Callable

from mindspore_serving import log
from mindspore_serving.core.llm_messages import CODEC, Chunk, Finished, Started, decode_events
from mindspore_serving.core.reading_messages import Embedded, Scored
from mindspore_serving.core.service import Call, Inference, Reply, Request, tenant_of_task
from mindspore_serving.core.speech_messages import Spoken, Transcribed
from mindspore_serving.errors import Cancelled, Code, NotFound, ServingError, Temporary
from mindspore_serving.frontends.keys import Tenant, TenantTable
from mindspore_serving.frontends.tenants.audit import AuditLog
from mindspore_serving.frontends.tenants.payloads import LoggedAnswer, PayloadLog
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
        self.audit: AuditLog | None = None
        self.payloads: PayloadLog | None = None

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
        if tenant is None and self.audit is None and self.payloads is None:
            return self._inner.submit(request, on_reply)
        call = MeteredCall(tenant, request, on_reply, self)
        if request.codec != CODEC and self._is_language(request.servable):
            call.estimate(request.body)
        try:
            if tenant is not None:
                tenant.check_model(request.servable)
                tenant.check_tokens()
        except ServingError as error:
            call.refuse(error.with_traceback(None))
        else:
            call.follow(self._inner.submit(request, call.on_reply))
        return call


class MeteredCall:
    """A request whose tokens are charged to its tenant when it ends, however it ends.

    It is written to the audit log then, and its answer to the log of payloads, if there are any.
    """

    __slots__ = (
        "_call", "_id", "_is_language", "_is_settled", "_logged", "_meter", "_method",
        "_num_bytes", "_on_reply", "_servable", "_tenant", "_usage",
    )  # fmt: skip

    def __init__(
        self,
        tenant: Tenant | None,
        request: Request,
        on_reply: Callable[[Reply], None],
        meter: MeteredInference,
    ) -> None:
        self._tenant = tenant
        self._on_reply: Callable[[Reply], None] | None = on_reply
        self._meter = meter
        self._servable, self._method = request.servable, request.method
        self._is_language = request.codec == CODEC
        self._usage = UsageCounts(num_requests=1)
        self._call: Call | None = None
        self._num_bytes: int | None = None  # of request and answer, if they are charged
        self._is_settled = False
        self._id = request.id or log.request_id.get()
        self._logged: LoggedAnswer | None = None
        if meter.payloads is not None:
            name = tenant.name if tenant is not None else ""
            self._logged = meter.payloads.begin(request, self._id, name)

    def estimate(self, body: object) -> None:
        """Charge for bytes, as the method of a language model does not tell its tokens."""
        self._num_bytes = len(body) if isinstance(body, bytes | bytearray | memoryview) else 0

    def follow(self, call: Call) -> None:
        """Cancel `call` when this call is cancelled."""
        self._call = call

    def refuse(self, error: ServingError) -> None:
        """Reply with `error` in the next turn of the loop; nothing is charged."""
        self._is_settled = True
        self._audit(error)
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
        if self._logged is not None:
            self._logged.take(reply)
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
            elif isinstance(event, Finished | Transcribed):
                usage.num_prompt_tokens = event.num_prompt_tokens
                usage.num_generated_tokens = event.num_generated_tokens
            elif isinstance(event, Spoken):  # a client that leaves has used them
                usage.num_prompt_tokens += event.num_phonemes
            elif isinstance(event, Embedded | Scored):
                usage.num_prompt_tokens = sum(event.num_prompt_tokens)

    def _settle(self, failure: ServingError | None) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        self._audit(failure)
        tenant, usage = self._tenant, self._usage
        if tenant is None or isinstance(failure, NotFound):  # names of clients are not counted
            return
        usage.num_failed = int(failure is not None)
        tokens = usage.num_prompt_tokens + usage.num_generated_tokens
        weight = tenant.key.weight_of(self._servable)
        if self._num_bytes is not None:
            tokens = -(-self._num_bytes // BYTES_PER_TOKEN)
        elif not self._is_language:
            tokens = usage.num_instances if weight is not None else 0
        tenant.charge(tokens * (1 if weight is None else weight))
        self._meter.usage.add(UsageKey(tenant.owner, tenant.name, self._servable), usage)

    def _audit(self, failure: ServingError | None) -> None:
        if self._meter.audit is not None:
            usage = self._usage
            self._meter.audit.add(
                "inference",
                self._tenant,
                servable=self._servable,
                method=self._method,
                result=Code.OK.name if failure is None else failure.code.name,
                prompt_tokens=usage.num_prompt_tokens or None,
                generated_tokens=usage.num_generated_tokens or None,
                instances=usage.num_instances or None,
                request_id=self._id,
            )

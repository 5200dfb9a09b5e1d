"""Answer of the route `/usage`: what tenants have used, and what is left of their limits."""

from collections.abc import Iterable

import msgspec

from mindspore_serving.frontends.keys import Tenant
from mindspore_serving.frontends.tenants.usage import UsageTable


class ModelUsage(msgspec.Struct, frozen=True):
    """Requests of a tenant to a servable that have ended, since the start of the server."""

    servable: str
    requests: int
    failed: int
    prompt_tokens: int
    generated_tokens: int
    instances: int


class LimitReport(msgspec.Struct, frozen=True):
    """Remainder of a limit, which is whole again after `reset_seconds`."""

    kind: str
    limit: int
    remaining: int
    reset_seconds: float


class KeyUsage(msgspec.Struct, frozen=True):
    """Usage of a tenant."""

    key: str
    in_flight: int
    limits: list[LimitReport]
    servables: list[ModelUsage]


class UsageReport(msgspec.Struct, frozen=True):
    """Usage of the tenant that sends the request, or of all tenants for an operator."""

    keys: list[KeyUsage]


def report(usage: UsageTable, tenants: Iterable[Tenant]) -> UsageReport:
    """Return the usage of `tenants`."""
    return UsageReport([_report(usage, tenant) for tenant in tenants])


def _report(usage: UsageTable, tenant: Tenant) -> KeyUsage:
    return KeyUsage(
        tenant.name,
        tenant.num_running,
        [
            LimitReport(left.kind, left.limit, left.remaining, round(left.reset, 1))
            for left in tenant.allowances()
        ],
        [
            ModelUsage(
                key.servable,
                row.num_requests,
                row.num_failed,
                row.num_prompt_tokens,
                row.num_generated_tokens,
                row.num_instances,
            )
            for key, row in usage.rows(tenant.owner)
        ],
    )

"""The first start of a server's workers: which of its servables have all they need.

Knows supervisors and deployments, no links.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.dispatch.registry import Registry
from mindspore_serving.dispatch.supervisor import WorkerSupervisor
from mindspore_serving.errors import StartError

Deployed: TypeAlias = tuple[Deployment, list[WorkerSupervisor]]


async def start_all(
    deployed: list[Deployed], supervisors: Sequence[WorkerSupervisor], *, is_strict: bool
) -> list[tuple[Deployment, StartError]]:
    """Start all `supervisors`, at once.

    A deployment that one of them cannot start for is taken out of `deployed`, its other workers are
    ended, and it is returned with the reason.  Raises StartError instead if that leaves none, or
    with `is_strict`; another error of a start in any case.
    """
    results = await asyncio.gather(*(s.start() for s in supervisors), return_exceptions=True)
    errors = [one for one in results if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, StartError):
            raise error
    causes = dict(zip(supervisors, results, strict=True))
    failed = [
        (deployment, own, cause)
        for deployment, own in deployed
        if (cause := next((e for s in own if isinstance(e := causes.get(s), StartError)), None))
    ]
    if failed and (is_strict or len(failed) == len(deployed)):
        raise StartError(f"Fail to start workers: {errors[0]}")
    await asyncio.gather(*(one.stop(0.0) for _, own, _ in failed for one in own))
    for deployment, own, _ in failed:
        deployed.remove((deployment, own))
    return [(deployment, cause) for deployment, _, cause in failed]


def num_extra_workers(registry: Registry, deployment: Deployment) -> int:
    """How many workers without a device are to run the Python stages of `deployment`."""
    number = deployment.num_extra_workers
    running = (s for s in registry if s.deployment == deployment and s.workers)
    service = next(running, None)
    if not number or service is None:
        return number
    reports = [method.report for method in service.methods.values()]
    if any(not r.is_only_models for r in reports if not r.name.startswith("@")):
        return number
    log.warning(
        "servable %s: num_parallel_workers is ignored, all methods consist only of models",
        deployment.servable_name,
    )
    return 0

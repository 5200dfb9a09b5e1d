"""Have a started worker load its servable, and explain failures.

It knows no other worker, and not whether this one is still needed.
"""

import os
from collections.abc import Callable

from mindspore_serving import log
from mindspore_serving.cluster.base import Needs, WorkerLocation
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.placement import GroupCredentials, LinkSettings, RankPlacement
from mindspore_serving.core.roles import role_of
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.ipc.messages import ModelReport, Setup, WorkerReady
from mindspore_serving.master.link import Link
from mindspore_serving.process.child import exit_text
from mindspore_serving.servable.declared_llm import declared_ranks, ranks_of
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.tracing.options import TraceOptions

_TAIL = 800  # characters of the worker's log in an error


async def load(link: Link, setup: Setup) -> WorkerReady:
    """Load the servable and return the worker's report.  Raises StartError if the worker failed."""
    link.setup(setup)
    try:
        return await link.loaded
    except ServingError as error:
        link.close()
        link.process.kill()
        status = await link.process.wait()
        if link.has_reported:
            raise
        tail = link.process.log_tail()[-_TAIL:]
        text = f"{error}, {exit_text(status)}{': ' if tail else ''}{tail}"
        raise StartError(text) from error


def needs_of(
    deployment: Deployment, device_id: int | None, patience: float, *, is_first: bool = True
) -> Needs:
    """Return what a worker needs of a machine; it waits for one at most `patience` seconds.

    Ranks that were on more machines before may be placed on fewer, unless the start `is_first`.
    Raises StartError if there are fewer ranks than machines.
    """
    num_ranks, num_stages = _ranks_of(deployment)
    if num_ranks < deployment.rank_machines:
        raise StartError(
            f"rank_machines is {deployment.rank_machines}, but the model has {num_ranks} ranks: "
            "give tensor_parallel or pipeline_parallel as a number, or leave rank_machines out"
        )
    return Needs(
        deployment.servable_name,
        deployment.device_type,
        device_id,
        deployment.node_labels,
        # Agents connect to an address of this machine, and interpreters are paths on it.
        is_local=bool(deployment.gang or deployment.python or deployment.environment),
        placement_timeout=patience,
        python=deployment.python,
        environment=deployment.environment,
        slots=num_ranks,
        machines=deployment.rank_machines,
        num_stages=num_stages,
        takes_fewer=not is_first,
    )


def _ranks_of(deployment: Deployment) -> tuple[int, int]:
    """Return the number of ranks and of stages of a worker's language model.

    They are known from the options, or from the source of servable_config.py.
    """
    root = os.path.join(deployment.servable_directory, deployment.servable_name)
    declared = declared_ranks(os.path.join(root, CONFIG_FILE))
    return max(ranks_of(deployment.llm_options), declared)


def check_slots(name: str, location: WorkerLocation, card: ModelCard) -> None:
    """Warn if the language model has more ranks than the worker takes slots of its machine."""
    if 0 < location.slots < card.num_ranks:
        log.warning(
            "%s: a worker takes %d of its machine's slots, but its language model has %d ranks: "
            "give tensor_parallel and pipeline_parallel of declare_llm as numbers in %s, where "
            "they can be read without running it",
            name, location.slots, card.num_ranks, CONFIG_FILE,
        )  # fmt: skip


def setup_of(
    deployment: Deployment,
    device_id: int | None,
    models: dict[str, ModelReport] | None,
    traces: TraceOptions | None = None,
    *,
    number: int = 0,
    placement: RankPlacement | None = None,
    link: LinkSettings | None = None,
) -> Setup:
    """Create the first message to worker `number`; with `models`, others run the models."""
    return Setup(
        deployment.servable_directory,
        deployment.servable_name,
        deployment.version_number,
        deployment.device_type,
        device_id,
        models is None,
        deployment.dec_key,
        deployment.dec_mode,
        deployment.enable_lite,
        models or {},
        dict(deployment.llm_options),
        deployment.gang,
        deployment.allow_pickle,
        deployment.backend,
        deployment.name,
        traces,
        deployment.with_batch_dim,
        dict(deployment.batch_axis),
        deployment.network_code,
        deployment.cores,
        number,
        dict(deployment.states),
        deployment.run_options,
        placement,
        role_of(deployment.roles, number),
        link,
    )


def link_of(link: Link, make: Callable[[], GroupCredentials]) -> LinkSettings | None:
    """Return how a worker with a role exchanges blocks with those on other machines.

    None if no machine can join.  Kills the worker and raises StartError if `make` fails.
    """
    location = link.location
    if location.server_host is None:
        return None
    try:
        credentials = make()
    except StartError:
        link.close()
        link.process.kill()
        raise
    return LinkSettings(location.node, location.server_host, location.server_host, credentials)

"""Has a started worker load its servable, and says why when that fails.

Knows nothing of other workers, nor whether this one is still wanted.
"""

from mindspore_serving.cluster.base import Needs
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.dispatch.link import Link
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.ipc.messages import ModelReport, Ready, Setup
from mindspore_serving.isolation.spawning import exit_text
from mindspore_serving.tracing.options import TraceOptions

_TAIL = 800  # characters of the worker's log that an error shows


async def load(link: Link, setup: Setup) -> Ready:
    """What the worker can do, once it has loaded.  Raises StartError when the worker has ended."""
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


def needs_of(deployment: Deployment, device_id: int | None, patience: float) -> Needs:
    """What a worker needs of a machine, for which it waits at most `patience` seconds."""
    return Needs(
        deployment.servable_name,
        deployment.device_type,
        device_id,
        deployment.node_labels,
        # Agents connect to an address of this machine, and interpreters are paths of it.
        is_here=bool(deployment.gang or deployment.python or deployment.environment),
        patience=patience,
        python=deployment.python,
        environment=deployment.environment,
        slots=deployment.num_ranks,
    )


def setup_of(
    deployment: Deployment,
    device_id: int | None,
    models: dict[str, ModelReport] | None,
    traces: TraceOptions | None = None,
) -> Setup:
    """The first message to a worker; with `models`, it has others run those."""
    return Setup(
        deployment.servable_directory,
        deployment.servable_name,
        deployment.version,
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
    )

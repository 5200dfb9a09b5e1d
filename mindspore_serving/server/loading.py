"""Loading and unloading servables while the server runs."""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

from mindspore_serving.core.traffic import check_traffic
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import check_bool, check_number, check_servable_name
from mindspore_serving.server import startup
from mindspore_serving.server.config import ServableStartConfig, to_deployments
from mindspore_serving.server.repository import UNLOAD_SECONDS


def load_servable(
    servable: str | ServableStartConfig,
    *,
    reload: bool = False,
    traffic: Mapping[str | int, float] | None = None,
    shadow: Mapping[str | int, float] | None = None,
) -> None:
    """Load or reload a servable while the server runs, without losing a request.

    New workers are started with the current files.  Once they are ready, requests go to them; the
    old workers exit after answering their requests, or after 60 s.

    Args:
        servable: a config as for `start_servables`, or the name of a servable that was started or
            loaded before, even if it has been unloaded since.  A config with `version_number` 0
            then means the newest version now.
        reload: start new workers even if no file and no setting has changed.
        traffic: with a name, weights of the versions that get requests without a version, as
            {1: 90, 2: 10}, until the next load; None for those of the configuration.
        shadow: with a name, percent of the requests that a version gets a copy of, likewise.

    Raises:
        RuntimeError: an argument is invalid, the servable does not exist, or a worker could not
            start; the old workers go on serving then.
    """
    check_bool("reload", reload)
    options = {"sticky": "", "shadow_tolerance": 0}
    checked = check_traffic(SimpleNamespace(traffic=traffic, shadow=shadow, **options))
    arguments = {"traffic": traffic, "shadow": shadow}
    changes = {name: checked[name] for name, value in arguments.items() if value is not None}
    if isinstance(servable, ServableStartConfig):
        if changes:
            raise InvalidInputs("Parameter 'traffic' or 'shadow' is set, expected it in the config")
        config = servable
        if not startup.has_servables():
            startup.start_servables(config)
            return
        source = partial(to_deployments, [config])
        (deployment,) = source()
        startup.run_on_server(lambda serving: serving.repository.add(deployment.name, source))
        return
    name = check_servable_name("servable", servable)
    startup.run_on_server(
        lambda serving: serving.repository.load(name, is_forced=reload, changes=changes)
    )


def unload_servable(name: str, timeout: float = UNLOAD_SECONDS) -> None:
    """Unload all versions of a servable.  The server keeps running, even without servables.

    Args:
        name: the servable's name.  New requests to it are refused at once.
        timeout: seconds within which running requests may finish.

    Raises:
        RuntimeError: an argument is invalid, or the servable is not loaded.
    """
    check_servable_name("name", name)
    seconds = check_number("timeout", timeout)
    startup.run_on_server(lambda serving: serving.repository.unload(name, seconds))

"""Servables that come and go while the server runs."""

from functools import partial

from mindspore_serving.servable.check import check_bool, check_number, check_servable_name
from mindspore_serving.server import startup
from mindspore_serving.server.config import ServableStartConfig, to_deployments
from mindspore_serving.server.repository import UNLOAD_SECONDS


def load_servable(servable: str | ServableStartConfig, *, reload: bool = False) -> None:
    """Serve a servable beside what is served, or anew, without a request being lost: workers with
    what there is now are started, and when they are ready requests go to them; those of before end
    when they have answered what they have, or after 60 s.

    Args:
        servable: a config as for `start_servables`; or the name of a servable that was started or
            loaded by one, also if it was unloaded since.  A config with `version_number` 0 then
            gives the version that is the newest now.
        reload: start new workers also if no file and no setting has changed.

    Raises:
        RuntimeError: an argument is wrong, there is no such servable, or a worker could not start;
            then what was served goes on.
    """
    check_bool("reload", reload)
    if isinstance(servable, ServableStartConfig):
        config = servable
        if not startup.has_servables():
            startup.start_servables(config)
            return
        wanted = partial(to_deployments, [config])
        (deployment,) = wanted()
        startup.run_on_server(lambda serving: serving.repository.add(deployment.name, wanted))
        return
    name = check_servable_name("servable", servable)
    startup.run_on_server(lambda serving: serving.repository.load(name, is_forced=reload))


def unload_servable(name: str, timeout: float = UNLOAD_SECONDS) -> None:
    """Serve all versions of `name` no more.  New requests to it are refused at once; what it has it
    answers, for at most `timeout` seconds.  The server goes on, also without servables.

    Raises RuntimeError: an argument is wrong, or it is not served.
    """
    check_servable_name("name", name)
    seconds = check_number("timeout", timeout)
    startup.run_on_server(lambda serving: serving.repository.unload(name, seconds))

"""Several deployments of one servable, as the operator listed them, made into one per version.

Plain data in and out; of the file system it sees only which version directories exist.
"""

from collections.abc import Iterable
from dataclasses import replace

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.repository import versions


def merge(deployments: Iterable[Deployment]) -> list[Deployment]:
    """One deployment for each version of each servable, in order of first appearance.

    Version 0 is replaced by the newest directory, if there is one.  Of deployments of one version,
    the device ids are united, the largest number of workers is taken, and all else must agree.  The
    device type of a servable is that of its first deployment.  Raises InvalidInputs if deployments
    of one servable contradict each other, or two use one device of type "ascend".
    """
    first: dict[str, Deployment] = {}
    merged: dict[tuple[str, int], Deployment] = {}
    for given in deployments:
        leader = first.setdefault(given.name, given)
        deployment = _follow(leader, given)
        key = (deployment.name, deployment.version)
        merged[key] = _unite(merged[key], deployment) if key in merged else deployment
    _check_ascend_devices(merged.values())
    return list(merged.values())


def _follow(leader: Deployment, deployment: Deployment) -> Deployment:
    """`deployment` with its version known, and what it shares with the first of its servable."""
    name = deployment.servable_name
    if leader.servable_directory != deployment.servable_directory:
        raise InvalidInputs(
            f"The servable directory of servable name {name} is different in multiple "
            f"configurations, servable directory: {leader.servable_directory} and "
            f"{deployment.servable_directory}"
        )
    if leader.servable_name != name:
        raise InvalidInputs(
            f"'{leader.servable_name}' and '{name}' would both be called {leader.name}: give one "
            "an alias (serve: --name)"
        )
    if leader.device_type != deployment.device_type:
        log.warning(
            "the device type of servable %s is %s, as in its first configuration; %s is ignored",
            name,
            leader.device_type,
            deployment.device_type,
        )
    found = versions(deployment.servable_directory, name)
    newest = found[-1] if found else 0
    return replace(deployment, version=deployment.version or newest, device_type=leader.device_type)


def _unite(old: Deployment, new: Deployment) -> Deployment:
    name = new.servable_name
    if (old.dec_key, old.dec_mode) != (new.dec_key, new.dec_mode):
        raise InvalidInputs(
            f"The dec key or dec mode of servable name {name} is different in multiple "
            "configurations."
        )
    merged = replace(
        old,
        device_ids=tuple(dict.fromkeys(old.device_ids + new.device_ids)),
        num_parallel_workers=max(old.num_parallel_workers, new.num_parallel_workers),
    )
    united = ("device_ids", "num_parallel_workers", "alias")
    if merged != replace(new, **{name: getattr(merged, name) for name in united}):
        raise InvalidInputs(
            "The max_batch_delay_ms, preferred_batch_size, retry, restart_policy, max_requests, "
            "max_workers, node_labels, llm_options, allow_pickle, backend, python, environment "
            f"or a timeout of servable name {name} is different in multiple configurations."
        )
    return merged


def _check_ascend_devices(deployments: Iterable[Deployment]) -> None:
    """An Ascend device serves one process; others may be shared."""
    used: set[int] = set()
    for deployment in deployments:
        if deployment.device_type != "ascend":
            continue
        for device_id in deployment.device_ids:
            if device_id in used:
                raise InvalidInputs(
                    f"Ascend 910 device id {device_id} is used repeatedly in servable "
                    f"{deployment.servable_name}"
                )
            used.add(device_id)

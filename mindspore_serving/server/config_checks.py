"""The arguments of `ServableStartConfig`, checked one by one."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.core.deployment import MAX_PREFERRED_SIZE, BatchPolicy, Scaling
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.backend_choice import check_name
from mindspore_serving.servable.bare import file_alias
from mindspore_serving.servable.check import (
    check_bool,
    check_int,
    check_number,
    check_servable_name,
    check_str,
)
from mindspore_serving.server.language_options import check_language_options

RESTART_POLICIES = ("always", "limited", "never")
_DEVICE_TYPES = ("none", "ascend", "gpu", "cpu")


def get_abs_path(path: str) -> str:
    """`path` as an absolute path; a relative one is relative to the directory of the start-up
    script, or to the working directory where there is no script (a notebook, `python -c`)."""
    return os.path.realpath(absolute(path))


def absolute(path: str) -> str:
    """As `get_abs_path`, without resolving links."""
    script = sys.argv[0] if sys.argv else ""
    has_script = hasattr(sys.modules["__main__"], "__file__") and os.path.isfile(script)
    base = os.path.dirname(os.path.realpath(script)) if has_script else os.getcwd()
    return os.path.abspath(os.path.join(base, os.path.expanduser(path)))


def check_batching(max_delay_ms: float, preferred_size: int) -> BatchPolicy:
    return BatchPolicy(
        max_wait=check_number("max_batch_delay_ms", max_delay_ms) / 1000,
        preferred_size=check_int("preferred_batch_size", preferred_size, 0, MAX_PREFERRED_SIZE),
    )


def check_labels(labels: object) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or not all(
        isinstance(text, str) for pair in labels.items() for text in pair
    ):
        raise InvalidInputs(
            f"Parameter 'node_labels' should be a dict of str, but actually {labels!r}"
        )
    return dict(labels)


def check_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidInputs(
            f"Parameter 'llm_options' should be a dict with str keys, but actually {options!r}"
        )
    check_language_options(options)
    return dict(options)


def check_interpreter(python: str, environment: str) -> dict[str, Any]:
    """The fields of a deployment.  A name is looked up in PATH; links are not resolved, as those
    lead out of an environment."""
    name = python and check_str("python", python)
    directory = environment and absolute(check_str("environment", environment))
    return {"python": absolute(name) if os.sep in name else name, "environment": directory}


def check_bare(backend: object, *, allow_pickle: object, with_batch_dim: object) -> dict[str, Any]:
    """The fields of a deployment that are of a model without servable_config.py."""
    return {
        "backend": check_name(backend),
        "allow_pickle": check_bool("allow_pickle", allow_pickle),
        "with_batch_dim": check_bool("with_batch_dim", with_batch_dim),
    }


def check_alias(alias: str, directory: str, servable_name: str) -> str:
    """What clients call it; "" for the name of its directory."""
    name = alias or file_alias(directory, servable_name)
    return check_servable_name("alias", name) if name else ""


def check_device_type(device_type: str | None) -> str:
    if device_type is None:
        return "none"
    name = check_str("device_type", device_type).lower()
    if name not in _DEVICE_TYPES:
        raise InvalidInputs(
            f"Unsupported device type '{device_type}', only support 'Ascend', 'GPU', 'CPU' and "
            "None, case ignored"
        )
    return name


def check_scaling(scaling: Scaling, devices: Sequence[int], num_workers: int) -> Scaling | None:
    check_int("min_workers", scaling.min_workers, 0, 64)
    check_int("max_workers", scaling.max_workers, 0, 64)
    check_int("requests_per_worker", scaling.requests_per_worker, 1)
    check_number("scale_down_delay", scaling.scale_down_delay)
    if not scaling.max_workers:
        return None
    if scaling.min_workers > scaling.max_workers:
        raise InvalidInputs(
            f"Parameter 'min_workers' is {scaling.min_workers}, expected at most 'max_workers', "
            f"{scaling.max_workers}"
        )
    if num_workers:
        raise InvalidInputs(
            f"Parameter 'num_parallel_workers' is {num_workers}, expected 0 with 'max_workers'"
        )
    if devices and scaling.max_workers > len(devices):
        raise InvalidInputs(
            f"Parameter 'max_workers' is {scaling.max_workers}, expected at most one for each of "
            f"{len(devices)} 'device_ids'"
        )
    return scaling


def check_policy(policy: str) -> str:
    if policy not in RESTART_POLICIES:
        raise InvalidInputs(
            f"Parameter 'restart_policy' should be one of {RESTART_POLICIES}, but actually "
            f"{policy!r}"
        )
    return policy

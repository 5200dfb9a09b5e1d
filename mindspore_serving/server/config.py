"""What a start-up script asks for: `ServableStartConfig`, and how configs are merged.

Checks arguments and makes a `Deployment`; sees only which directories exist.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from mindspore_serving.core.deployment import Deployment, Scaling
from mindspore_serving.servable.check import (
    as_int_tuple,
    check_bool,
    check_dec,
    check_int,
    check_number,
    check_servable_name,
    check_str,
)
from mindspore_serving.servable.merging import merge
from mindspore_serving.servable.repository import check_servable
from mindspore_serving.server.config_checks import (
    check_alias,
    check_bare,
    check_batching,
    check_device_type,
    check_interpreter,
    check_labels,
    check_options,
    check_policy,
    check_scaling,
    get_abs_path,
)
from mindspore_serving.server.language_options import check_task_options

__all__ = ["ServableStartConfig", "get_abs_path", "merge_config", "to_deployment"]


def _reads(name: str) -> Any:
    """A property that shows a field of the deployment."""
    return property(attrgetter(f"_deployment.{name}"))


class ServableStartConfig:
    """How to start one version of one servable; given to `start_servables`.

    Args:
        servable_directory: Holds the servable's directory.  May be relative to the start-up script.
        servable_name: The servable's directory in it, which holds servable_config.py and version
            directories such as 1/ with the model files.  Without servable_config.py, a directory
            with one model file, in it or in 1/, is served as it is; so is a model file itself, as
            "net.onnx".
        device_ids: An int, or a tuple or list of different ints >= 0: one worker process for each.
        version_number: The version, or 0 for the newest directory at start.
        device_type: "Ascend", "GPU", "CPU" (in any case), or None for the first that works.
        num_parallel_workers: 0 to 64: as many worker processes in all; those beyond `device_ids`
            run Python stages (and, on CPU, models).  Without `device_ids`, 0 means 1.
        max_workers: Over 0: the number of workers, each with all models, follows that of requests,
            up to so many; `num_parallel_workers` is then 0, and each worker has one of `device_ids`
            if there are any.  0 (default): always as many as the two say.
        min_workers: ... and down to so many; 0 ends all, and a request then waits for a start.
        requests_per_worker: One worker is wanted for so many requests in flight.
        scale_down_delay: Seconds for which fewer workers must have done before one is ended.
        dec_key: The key of an encrypted model: 16, 24 or 32 bytes.
        dec_mode: "AES-GCM" or "AES-CBC".
        max_batch_delay_ms: Milliseconds to wait for a batch.  0 (default) takes whatever is queued.
        preferred_batch_size: With a delay, send a batch of so many instances; 0: the model's size.
        retry: Whether instances that a dying worker had are sent to another one.
        restart_policy: Whether a worker that died is started again: "always" (default; ever later,
            at most every 30 s, if it dies soon each time), "limited" (not after five deaths within
            10 s of their starts) or "never".
        max_requests: The most requests in flight, beyond which more are refused; 0 (default) for
            no limit but the server's.
        heartbeat_timeout: Seconds without a heartbeat after which a worker gets no new work, and
            what waits there goes to others; after three times as many it is ended and replaced.
            0: never.
        stage_timeout: Seconds that a stage may run: the worker is then ended and replaced, and the
            requests that ran fail.  0 (default): any.
        step_timeout: As `stage_timeout`, for a step of a language model.  Default 300.
        node_labels: Run on machines with these labels only (`worker --join ... --labels`).
        alias: What clients call it; if it is "", the name of its directory, or of a model file
            without its ending.
        allow_pickle: Whether a scikit-learn model without servable_config.py may be a pickle, which
            runs any code in it.
        backend: What runs a model without servable_config.py: "mindspore" or "openvino" for MindIR,
            "onnxruntime" or "openvino" for ONNX.  Default: what is installed, in this order.
        with_batch_dim: Whether the first axis of what a model without servable_config.py takes and
            gives counts instances; else each run has one instance.  Default True.
        python: The interpreter of the workers, a path or a name in PATH; it needs msgspec, numpy
            and protobuf beside what the servable imports.  Default: that of the server.
        environment: A directory with a pylock.toml, requirements.lock or requirements.txt: the
            workers run in an environment made of it, once, with `python` as its base.
        llm_options: For a GGUF file or a bare Hugging Face directory (config.json, *.safetensors):
            the options of `EngineConfig`, such as {"quantization": "int8"}, "runtime", or "engine"
            with "engine_options"; of a model that does not generate also those of
            `tasks.options.TaskOptions`.  With engine "openai", and engine_options with the `url` of
            another server, there is no directory: `servable_name` is what clients call its model.

    Everything can be read back, nothing changed.  Raises RuntimeError for a wrong argument.
    """

    __slots__ = ("_deployment",)

    def __init__(  # noqa: PLR0917  (the order is the original's)
        self,
        servable_directory: str,
        servable_name: str,
        device_ids: int | Sequence[int] | None = None,
        version_number: int = 0,
        device_type: str | None = None,
        num_parallel_workers: int = 0,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
        *,
        max_batch_delay_ms: float = 0,
        preferred_batch_size: int = 0,
        retry: bool = True,
        restart_policy: str = "always",
        max_requests: int = 0,
        heartbeat_timeout: float = 10,
        stage_timeout: float = 0,
        step_timeout: float = 300,
        alias: str = "",
        llm_options: Mapping[str, Any] | None = None,
        max_workers: int = 0,
        min_workers: int = 1,
        requests_per_worker: int = 8,
        scale_down_delay: float = 60,
        node_labels: Mapping[str, str] | None = None,
        allow_pickle: bool = False,
        backend: str = "",
        python: str = "",
        environment: str = "",
        with_batch_dim: bool = True,
    ) -> None:
        directory = get_abs_path(check_str("servable_directory", servable_directory))
        num_workers = check_int("num_parallel_workers", num_parallel_workers, 0, 64)
        devices = () if device_ids is None else as_int_tuple("device_ids", device_ids, 0)
        check_dec(dec_key, dec_mode)
        scaling = Scaling(min_workers, max_workers, requests_per_worker, scale_down_delay)
        self._deployment = Deployment(
            servable_directory=directory,
            servable_name=check_servable_name("servable_name", servable_name),
            version=check_int("version_number", version_number, 0),
            device_type=check_device_type(device_type),
            device_ids=devices,
            num_parallel_workers=num_workers or int(not devices),
            scaling=check_scaling(scaling, devices, num_workers),
            dec_key=dec_key,
            dec_mode=dec_mode,
            batching=check_batching(max_batch_delay_ms, preferred_batch_size),
            retry=check_bool("retry", retry),
            restart_policy=check_policy(restart_policy),
            max_requests=check_int("max_requests", max_requests, 0),
            heartbeat_timeout=check_number("heartbeat_timeout", heartbeat_timeout),
            stage_timeout=check_number("stage_timeout", stage_timeout),
            step_timeout=check_number("step_timeout", step_timeout),
            node_labels=check_labels(node_labels),
            alias=check_alias(alias, directory, servable_name),
            llm_options=check_options(llm_options),
            **check_bare(backend, allow_pickle=allow_pickle, with_batch_dim=with_batch_dim),
            **check_interpreter(python, environment),
        )

    def __repr__(self) -> str:
        return (
            f"ServableStartConfig({self.servable_directory!r}, {self.servable_name!r}, "
            f"device_ids={self.device_ids}, version_number={self.version_number})"
        )

    servable_directory: str = _reads("servable_directory")  # absolute
    servable_name: str = _reads("servable_name")
    version_number: int = _reads("version")  # 0 is the newest
    device_type: str = _reads("device_type")  # in lower case: "none", "ascend", "gpu" or "cpu"
    device_ids: tuple[int, ...] = _reads("device_ids")
    num_parallel_workers: int = _reads("num_parallel_workers")
    dec_key: bytes | None = _reads("dec_key")
    dec_mode: str = _reads("dec_mode")
    preferred_batch_size: int = _reads("batching.preferred_size")
    retry: bool = _reads("retry")
    restart_policy: str = _reads("restart_policy")
    max_requests: int = _reads("max_requests")
    heartbeat_timeout: float = _reads("heartbeat_timeout")
    stage_timeout: float = _reads("stage_timeout")
    step_timeout: float = _reads("step_timeout")
    node_labels: Mapping[str, str] = _reads("node_labels")
    alias: str = _reads("alias")
    llm_options: Mapping[str, Any] = _reads("llm_options")
    allow_pickle: bool = _reads("allow_pickle")
    backend: str = _reads("backend")
    with_batch_dim: bool = _reads("with_batch_dim")
    python: str = _reads("python")
    environment: str = _reads("environment")

    @property
    def max_workers(self) -> int:
        return self._deployment.scaling.max_workers if self._deployment.scaling else 0

    @property
    def max_batch_delay_ms(self) -> float:
        return self._deployment.batching.max_wait * 1000


def merge_config(configs: Iterable[ServableStartConfig]) -> list[ServableStartConfig]:
    """One config for each version of each servable: see `servable.merging.merge`.

    Raises InvalidInputs if configs contradict each other, StartError if a servable is not there.
    """
    merged = merge(map(to_deployment, configs))
    for deployment in merged:
        place = (deployment.servable_directory, deployment.servable_name)
        options = deployment.llm_options
        check_servable(*place, options, allow_pickle=deployment.allow_pickle)
        check_task_options(os.path.join(*place), options)
    return [_config_of(deployment) for deployment in merged]


def to_deployment(config: ServableStartConfig, enable_lite: bool = False) -> Deployment:
    """What `config` asks for, as the dispatcher and the launchers take it."""
    return replace(config._deployment, enable_lite=enable_lite)


def _config_of(deployment: Deployment) -> ServableStartConfig:
    config = ServableStartConfig.__new__(ServableStartConfig)
    config._deployment = deployment  # checked when it was first made
    return config

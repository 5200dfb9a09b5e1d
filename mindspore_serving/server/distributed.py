"""`mindspore_serving.server.distributed`: one model over several devices or machines.

A start-up script calls `start_servable`; on each machine another script calls `startup_agents`.
Only declarations and checks of arguments: a servable_config.py that imports this loads no server.
"""

import ipaddress
import os
from collections.abc import Sequence

from mindspore_serving.core.declaration import DistributedSpec
from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import (
    as_int_tuple,
    as_nested_str_tuple,
    check_bool,
    check_dec,
    check_int,
    check_number,
    check_servable_name,
    check_str,
)
from mindspore_serving.servable.method_builder import current
from mindspore_serving.servable.model import Model
from mindspore_serving.server.config import get_abs_path

__all__ = ["declare_servable", "start_servable", "startup_agents"]

_MAX_DEVICES = 8  # of a machine: the last agent_start_port leaves a port for each


def declare_servable(
    rank_size: int,
    stage_size: int,
    with_batch_dim: bool = True,
    without_batch_dim_inputs: int | Sequence[int] | None = None,
    enable_pipeline_infer: bool = False,
) -> Model:
    """Declare, in servable_config.py, that the servable's model is cut over `rank_size` devices.

    Args:
        rank_size: Number of devices, int >= 1.
        stage_size: Number of pipeline stages that they form, int >= 1.
        with_batch_dim: Whether the first dimension of inputs and outputs counts instances.
        without_batch_dim_inputs: Indices of inputs that have no batch dimension all the same.
        enable_pipeline_infer: Whether the stages may work on different batches at once.

    Returns the model; its key is the servable's name.  Raises RuntimeError for a wrong argument,
    a second call, and a servable that has models of `declare_model`.
    """
    declaration = current("declare_servable")
    without: tuple[int, ...] = ()
    if without_batch_dim_inputs is not None:
        without = as_int_tuple("without_batch_dim_inputs", without_batch_dim_inputs, 0)
    spec = DistributedSpec(
        rank_size=check_int("rank_size", rank_size, 1),
        stage_size=check_int("stage_size", stage_size, 1),
        with_batch_dim=check_bool("with_batch_dim", with_batch_dim),
        without_batch_dim_inputs=without,
        enable_pipeline_infer=check_bool("enable_pipeline_infer", enable_pipeline_infer),
    )
    if declaration.distributed is not None:
        raise InvalidInputs(
            "Declare distributed model failed, servable is repeatedly been declared as distributed "
            "servable"
        )
    if declaration.models:
        raise InvalidInputs(
            "Declare distributed model failed, servable has already been declared as local servable"
        )
    declaration.distributed = spec
    return Model(declaration.name)


def start_servable(  # noqa: PLR0917  (the order is the original's)
    servable_directory: str,
    servable_name: str,
    rank_table_json_file: str,
    version_number: int = 1,
    distributed_address: str = "0.0.0.0:6200",
    wait_agents_time_in_seconds: int = 0,
    *,
    heartbeat_timeout: float = 10,
    stage_timeout: float = 0,
) -> None:
    """Start a distributed servable and wait until its agents have joined.

    Afterwards it is as after `server.start_servables`.  When an agent ends or is silent, requests
    in flight fail, all agents end, and they are started again; meanwhile requests are refused.

    Args:
        servable_directory: The directory that holds the servable's; relative to the script.
        servable_name: The servable's name.
        rank_table_json_file: Which device has which rank; relative to the script.
        version_number: The version, int >= 0; 0 means 1.
        distributed_address: Where agents connect to, "ip:port".  Whoever reaches it may join,
            unless SERVING_DISTRIBUTED_TOKEN is set here and for the agents.  For TLS see
            docs/distributed.md.
        wait_agents_time_in_seconds: How long to wait for all agents; 0 is for ever.
        heartbeat_timeout: Seconds without a sign of life after which an agent, or the worker,
            counts as lost.  0: never.
        stage_timeout: Seconds that the model, or another stage, may run: agents and worker are then
            ended and started again, and the requests that ran fail.  0: any.

    Raises RuntimeError for a wrong argument or rank table, an address that cannot be bound, agents
    that could not start or are not there in time, and where servables run already.
    """
    check_str("servable_directory", servable_directory)
    check_servable_name("servable_name", servable_name)
    check_int("version_number", version_number, 0)
    check_str("rank_table_json_file", rank_table_json_file)
    check_str("distributed_address", distributed_address)
    check_int("wait_agents_time_in_seconds", wait_agents_time_in_seconds, 0)
    timeout = check_number("heartbeat_timeout", heartbeat_timeout)
    limit = check_number("stage_timeout", stage_timeout)
    from mindspore_serving.server import distributed_start

    distributed_start.start_worker(
        get_abs_path(servable_directory),
        servable_name,
        version_number or 1,
        get_abs_path(rank_table_json_file),
        GangOptions("", distributed_address, float(wait_agents_time_in_seconds), timeout, limit),
    )


def startup_agents(  # noqa: PLR0917  (the order is the original's)
    distributed_address: str,
    model_files: str | Sequence[str | Sequence[str]],
    group_config_files: str | Sequence[str | Sequence[str]] | None = None,
    agent_start_port: int = 7000,
    agent_ip: str | None = None,
    rank_start: int | None = None,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
) -> None:
    """Start one agent for each device of this machine; each loads its part of the model.

    Returns when all have joined the worker, which may be started up to a minute later.  The process
    stays alive as long as the servable, and keeps the agents running.

    Args:
        distributed_address: The address that `start_servable` listens on.
        model_files: For each device a file, or a tuple or list of sub-graphs' files: .mindir,
            .onnx, .pt2, .pt, or .py with a function or class `model`.
        group_config_files: As many entries, each of the communication groups of one device.
        agent_start_port: 1 to 65528.  Agents open no port; PyTorch's collectives of rank 0 may take
            this one (MASTER_PORT).
        agent_ip: This machine's address in the rank table; found out if not given.
        rank_start: The rank of this machine's first device; goes with `agent_ip`.
        dec_key: The key of encrypted models: 16, 24 or 32 bytes.
        dec_mode: "AES-GCM" or "AES-CBC".

    Raises RuntimeError for a wrong argument, a worker that is not there or refuses, and an agent
    that cannot start; then none is left running.
    """
    check_str("distributed_address", distributed_address)
    check_int("agent_start_port", agent_start_port, 1, 65535 - _MAX_DEVICES + 1)
    models = as_nested_str_tuple("model_files", model_files)
    _check_files("model", models)
    groups: tuple[tuple[str, ...], ...] = ()
    if group_config_files is not None:
        groups = as_nested_str_tuple("group_config_files", group_config_files)
        if len(groups) != len(models):
            raise InvalidInputs(
                f"Parameter 'model_files' and 'group_config_files' differ: Model files count "
                f"{len(models)} does not equal to group config files count {len(groups)}"
            )
        _check_files("group config", groups)
    _check_agent(agent_ip, rank_start)
    check_dec(dec_key, dec_mode)
    from mindspore_serving.distributed.places import AgentOptions
    from mindspore_serving.server import distributed_start

    options = AgentOptions(
        distributed_address,
        model_files=_absolute(models),
        group_files=_absolute(groups),
        start_port=agent_start_port,
        ip=agent_ip,
        rank_start=rank_start,
        dec_key=dec_key,
        dec_mode=dec_mode,
    )
    distributed_start.start_agents(options)


def _absolute(entries: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(get_abs_path, entry)) for entry in entries)


def _check_files(what: str, entries: tuple[tuple[str, ...], ...]) -> None:
    for file in (get_abs_path(file) for entry in entries for file in entry):
        if not os.access(file, os.R_OK):
            raise InvalidInputs(f"Cannot access {what} file '{file}'")


def _check_agent(agent_ip: object, rank_start: object) -> None:
    if (agent_ip is None) != (rank_start is None):
        raise InvalidInputs(
            "Parameter 'agent_ip' and parameter 'rank_start' must have values at the same time, or "
            "both None at the same time."
        )
    if agent_ip is None:
        return
    text = check_str("agent_ip", agent_ip)
    check_int("rank_start", rank_start, 0)
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidInputs(f"Check ip 'agent_ip' valid failed, agent_ip: {text}") from error

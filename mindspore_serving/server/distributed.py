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
    """Declare, in servable_config.py, that the servable's model is split over devices.

    Args:
        rank_size: Number of devices, int >= 1.
        stage_size: Number of pipeline stages that the devices form, int >= 1.
        with_batch_dim: Whether the first dimension of inputs and outputs is the batch dimension.
        without_batch_dim_inputs: Indices of inputs without a batch dimension.
        enable_pipeline_infer: Whether stages may work on different batches at the same time.

    Returns:
        The model; its key is the servable's name.

    Raises:
        RuntimeError: an argument is invalid, this is a second call, or the servable has models of
            `declare_model`.
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

    Afterwards the process stays alive as after `server.start_servables`.  If an agent ends or is
    silent, requests in flight fail and all agents are restarted; meanwhile requests are refused.

    Args:
        servable_directory: Directory that holds the servable's directory; relative to the script.
        servable_name: The servable's name.
        rank_table_json_file: Rank table with the device of each rank; relative to the script.
        version_number: The version, int >= 0; 0 means 1.
        distributed_address: Address on which to listen for agents, "ip:port".  Any program that
            reaches it may join, unless SERVING_DISTRIBUTED_TOKEN is set here and for the agents.
            For TLS see `mindspore-serving docs distributed`.
        wait_agents_time_in_seconds: Timeout of waiting for all agents; 0: no timeout.
        heartbeat_timeout: Seconds without a heartbeat after which an agent, or the worker, counts
            as lost; 0: no timeout.
        stage_timeout: Timeout in seconds of the model, or another stage: agents and worker are then
            restarted, and running requests fail.  0: no timeout.

    Raises:
        RuntimeError: an argument or the rank table is invalid, the address cannot be bound, agents
            did not start or join in time, or servables are running already.
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

    Returns when all have joined the worker, which may start up to a minute later.  The process
    stays alive as long as the servable, and keeps the agents running.

    Args:
        distributed_address: Address on which `start_servable` listens.
        model_files: For each device a file, or a tuple or list of the sub-graphs' files: .mindir,
            .onnx, .pt2, .pt, or .py with a function or class `model`.
        group_config_files: For each device the files of its communication groups.
        agent_start_port: 1 to 65528.  Agents open no port; PyTorch's collectives of rank 0 may use
            this one (MASTER_PORT).
        agent_ip: This machine's address in the rank table; None to detect it.
        rank_start: Rank of this machine's first device; only with `agent_ip`.
        dec_key: Key of encrypted models: 16, 24 or 32 bytes.
        dec_mode: "AES-GCM" or "AES-CBC".

    Raises:
        RuntimeError: an argument is invalid, the worker does not answer or refuses, or an agent
            cannot start; no agent is left running then.
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
    from mindspore_serving.distributed.local_ranks import AgentOptions
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


def _check_files(kind: str, entries: tuple[tuple[str, ...], ...]) -> None:
    for file in (get_abs_path(file) for entry in entries for file in entry):
        if not os.access(file, os.R_OK):
            raise InvalidInputs(f"Cannot access {kind} file '{file}'")


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

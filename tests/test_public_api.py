"""The public paths: which names there are, and how each is called.

The arguments are those of MindSpore Serving 2.0.2, in its order and with its defaults; what is new
stands behind the star, so that no positional call of an old script means something else.
"""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import mindspore_serving
from mindspore_serving import client, log, server
from mindspore_serving.server import register

SERVER = "mindspore_serving.server"
SIGNATURES = {
    f"{SERVER}.start_servables": "(servable_configs, enable_lite=False)",
    f"{SERVER}.start_grpc_server": (
        "(address, max_msg_mb_size=100, ssl_config=None, *, api_keys=(), limits=None, "
        "allow_loading=False, client_shared_memory=False, front_ends=1)"
    ),
    f"{SERVER}.start_restful_server": (
        "(address, max_msg_mb_size=100, ssl_config=None, *, use_status_codes=False, "
        "api_keys=(), llm_serving_form='r21', limits=None, allowed_hosts=(), allow_origins=(), "
        "language_limits=None, max_n=16, allow_priority=False, allow_chat_template=False, "
        "allow_loading=False, client_shared_memory=False, front_ends=1, vllm_metrics=False, "
        "lora_directories=(), pull_prefixes=(), state_directory='', "
        "mcp_config='', audit_log='', usage_log='', payload_log='', payload_rate=1.0, "
        "payload_redact=(), limits_store='')"
    ),
    f"{SERVER}.stop": "()",
    f"{SERVER}.ServableStartConfig": (
        "(servable_directory, servable_name, device_ids=None, version_number=0, device_type=None,"
        " num_parallel_workers=0, dec_key=None, dec_mode='AES-GCM', *, max_batch_delay_ms=0, "
        "preferred_batch_size=0, retry=True, restart_policy='always', max_requests=0, "
        "max_queue_seconds=0, priority_levels=0, default_priority=0, "
        "level_queue_ms=None, level_queue_sizes=None, cache_mb=0, cache_seconds=600, "
        "cache_per_key=False, cache_store='', cache_store_key='', cache_store_mb=1024, "
        "cache_store_timeout=0.1, "
        "heartbeat_timeout=10, stage_timeout=0, step_timeout=300, alias='', "
        "llm_options=None, rank_machines=1, cores='', model_threads=0, roles=None, resources=None, "
        "resource_counts=None, max_workers=0, "
        "min_workers=1, requests_per_worker=8, "
        "scale_down_delay=60, node_labels=None, allow_pickle=False, backend='', precision='', "
        "python='', "
        "environment='', with_batch_dim=None, batch_axis=None, states=None, "
        "max_sequences=1024, max_sequence_bytes=268435456, sequence_idle_seconds=60, "
        "sequence_handover_seconds=60, "
        "keep_sequences=False, traffic=None, sticky='', shadow=None, shadow_tolerance=0, "
        "network='', weights='', arguments=None, inputs=None, mode='')"
    ),
    f"{SERVER}.SSLConfig": "(certificate, private_key, custom_ca=None, verify_client=False)",
    f"{SERVER}.master.context.set_max_enqueued_requests": "(max_enqueued_requests)",
    f"{SERVER}.master.context.set_shutdown_delay": "(seconds)",
    f"{SERVER}.master.context.set_shutdown_timeout": "(seconds)",
    f"{SERVER}.master.context.set_max_loaded": "(number)",
    f"{SERVER}.register.declare_model": (
        "(model_file, model_format, with_batch_dim=True, options=None, "
        "without_batch_dim_inputs=None, context=None, config_file=None, *, backend=None, "
        "allow_pickle=False, batch_axis=None, states=None, weights='', arguments=None, "
        "inputs=None, mode='')"
    ),
    f"{SERVER}.register.declare_state": "(name, shape, dtype='float32', initial=0)",
    f"{SERVER}.register.Model": "(model_key)",
    f"{SERVER}.register.Model.call": "(self, *args, subgraph=0)",
    f"{SERVER}.register.method": "(name, *, version=0, streams=False)",
    f"{SERVER}.register.register_method": "(output_names, *, retry=True, example=None, cache=None)",
    f"{SERVER}.register.add_stage": "(stage, *args, outputs_count, batch_size=None, tag=None)",
    f"{SERVER}.register.Context": "(**kwargs)",
    f"{SERVER}.register.Context.append_device_info": "(self, device_info)",
    f"{SERVER}.register.CPUDeviceInfo": "(**kwargs)",
    f"{SERVER}.register.GPUDeviceInfo": "(**kwargs)",
    f"{SERVER}.register.AscendDeviceInfo": "(**kwargs)",
    f"{SERVER}.register.declare_servable": (
        "(servable_file, model_format, with_batch_dim=True, options=None, "
        "without_batch_dim_inputs=None)"
    ),
    f"{SERVER}.register.call_preprocess": "(preprocess_fun, *args)",
    f"{SERVER}.register.call_preprocess_pipeline": "(preprocess_fun, *args)",
    f"{SERVER}.register.call_postprocess": "(postprocess_fun, *args)",
    f"{SERVER}.load_servable": "(servable, *, reload=False, traffic=None, shadow=None)",
    f"{SERVER}.unload_servable": "(name, timeout=60.0)",
    f"{SERVER}.start_ray_machines": (
        "(slots, num_machines=0, *, address='auto', device_type='CPU', servables=None)"
    ),
    f"{SERVER}.start_node_server": (
        "(address, ssl_config=None, *, token_file=None, insecure=False, local_slots=None)"
    ),
    f"{SERVER}.register.call_postprocess_pipeline": "(postprocess_fun, *args)",
    f"{SERVER}.register.call_servable": "(*args, subgraph=0)",
    f"{SERVER}.register.register_pipeline": "(output_names)",
    f"{SERVER}.register.PipelineServable": "(servable_name, method, version_number=0)",
    f"{SERVER}.register.PipelineServable.run": "(self, *args)",
    f"{SERVER}.distributed.declare_servable": (
        "(rank_size, stage_size, with_batch_dim=True, without_batch_dim_inputs=None, "
        "enable_pipeline_infer=False)"
    ),
    f"{SERVER}.distributed.start_servable": (
        "(servable_directory, servable_name, rank_table_json_file, version_number=1, "
        "distributed_address='0.0.0.0:6200', wait_agents_time_in_seconds=0, *, "
        "heartbeat_timeout=10, stage_timeout=0)"
    ),
    f"{SERVER}.distributed.startup_agents": (
        "(distributed_address, model_files, group_config_files=None, agent_start_port=7000, "
        "agent_ip=None, rank_start=None, dec_key=None, dec_mode='AES-GCM')"
    ),
    "mindspore_serving.client.Client": (
        "(address, servable_name, method_name, version_number=0, ssl_config=None, *, timeout=None, "
        "api_key=None)"
    ),
    "mindspore_serving.client.Client.infer": "(self, instances, timeout=None)",
    "mindspore_serving.client.Client.infer_async": "(self, instances, timeout=None)",
    "mindspore_serving.client.AsyncClient": (
        "(address, servable_name, method_name, version_number=0, ssl_config=None, *, timeout=None, "
        "api_key=None)"
    ),
    "mindspore_serving.client.AsyncClient.infer": "(self, instances, timeout=None)",
    "mindspore_serving.client.SSLConfig": "(certificate=None, private_key=None, custom_ca=None)",
    "mindspore_serving.log.info": "(msg, *args)",
    "mindspore_serving.log.debug": "(msg, *args, exc_info=False)",
    "mindspore_serving.log.warning": "(msg, *args)",
    "mindspore_serving.log.get_level": "()",
    "mindspore_serving.log.get_log_config": "()",
    # Of 1.1 to 1.4; `ip` was "0.0.0.0" where it is None now.
    "mindspore_serving.master.start_grpc_server": (
        "(ip=None, grpc_port=5500, max_msg_mb_size=100, ssl_config=None)"
    ),
    "mindspore_serving.master.start_restful_server": (
        "(ip=None, restful_port=5900, max_msg_mb_size=100, ssl_config=None)"
    ),
    "mindspore_serving.master.start_master_server": "(ip='127.0.0.1', master_port=6100)",
    "mindspore_serving.master.stop": "()",
    "mindspore_serving.master.context.set_max_enqueued_requests": "(max_enqueued_requests)",
    "mindspore_serving.worker.start_servable_in_master": (
        "(servable_directory, servable_name, version_number=0, device_type=None, device_id=0)"
    ),
    "mindspore_serving.worker.start_servable": (
        "(servable_directory, servable_name, version_number=0, device_type=None, device_id=0, "
        "master_ip='0.0.0.0', master_port=6100, worker_ip='0.0.0.0', worker_port=6200)"
    ),
    "mindspore_serving.worker.stop": "()",
    "mindspore_serving.worker.distributed.declare_distributed_servable": (
        "(rank_size, stage_size, with_batch_dim=True, without_batch_dim_inputs=None)"
    ),
    "mindspore_serving.worker.distributed.startup_worker_agents": (
        "(worker_ip, worker_port, model_files, group_config_files=None, agent_start_port=7000, "
        "agent_ip=None, rank_start=None)"
    ),
}


def find(path: str) -> Any:
    """What a script gets by importing `path`, as far as it is a module, and by dots from there."""
    names = path.split(".")
    found = importlib.import_module(names[0])
    for index, name in enumerate(names[1:], 1):
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(".".join(names[: index + 1]))
    return found


def signature(path: str) -> str:
    """Without annotations; of a class, how it is made."""
    found = inspect.signature(find(path))
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("path", SIGNATURES)
def test_the_public_api_has_the_documented_signatures(path: str) -> None:
    assert signature(path) == SIGNATURES[path]


def test_the_names_of_the_server_are_complete() -> None:
    assert set(server.__all__) >= {
        *("start_servables", "start_grpc_server", "start_restful_server", "stop"),
        "start_node_server",
        "start_ray_machines",
        *("load_servable", "unload_servable"),
        *("ServableStartConfig", "SSLConfig"),
        *register.__all__,
    }
    distributed = ("declare_servable", "start_servable", "startup_agents")
    modules = ("register", "distributed", "master", "worker", "common")
    for name in (*server.__all__, *distributed, *modules):
        assert getattr(server, name) is not None


def test_a_star_import_of_the_server_works() -> None:
    names: dict[str, Any] = {}
    exec("from mindspore_serving.server import *", names)
    assert set(server.__all__) <= set(names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = server.no_such_name


def test_the_names_of_the_client_are_these() -> None:
    assert sorted(client.__all__) == [
        "AsyncClient",
        "Client",
        "ClientGrpcAsyncError",
        "ClientGrpcAsyncResult",
        "MindsporeInferenceClient",
        "SSLConfig",
    ]


def test_merging_configurations_has_its_old_place(tmp_path: Path) -> None:
    from mindspore_serving.server._servable_local import ServableStartConfig, merge_config

    assert ServableStartConfig is server.ServableStartConfig
    (tmp_path / "add").mkdir()
    (tmp_path / "add" / "servable_config.py").touch()
    one, other = (ServableStartConfig(str(tmp_path), "add", device_ids=i) for i in (0, 1))
    (merged,) = merge_config([one, other])
    assert merged.device_ids == (0, 1)


def test_modules_of_the_register_have_their_old_names() -> None:
    assert register.model.Model is register.Model
    assert register.method.add_stage is register.add_stage
    assert register.model.Model("net.mindir").model_key == "net.mindir"


def test_every_error_is_a_runtime_error() -> None:
    from mindspore_serving import errors

    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    raised = [kind for kind in kinds if issubclass(kind, Exception)]
    assert len(raised) > 5
    assert all(issubclass(kind, RuntimeError) for kind in raised)


def test_the_version_is_a_version() -> None:
    from packaging.version import Version

    assert Version(mindspore_serving.__version__) >= Version("3.0.0.dev0")


def test_the_log_has_levels_by_name() -> None:
    assert log.get_level() in ("0", "1", "2", "3", "4")

"""The public API, resolved on first use: `server.register` loads no server in a worker."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mindspore_serving import old_paths

if TYPE_CHECKING:
    from types import ModuleType

    from mindspore_serving.core.language_limits import LanguageLimits
    from mindspore_serving.core.server_limits import ServerLimits
    from mindspore_serving.server import distributed, register
    from mindspore_serving.server.adapters import load_lora, unload_lora
    from mindspore_serving.server.config import ServableStartConfig
    from mindspore_serving.server.distributed import (
        declare_servable,
        start_servable,
        startup_agents,
    )
    from mindspore_serving.server.loading import load_servable, unload_servable
    from mindspore_serving.server.nodes import start_node_server, start_ray_machines
    from mindspore_serving.server.register import (
        AscendDeviceInfo,
        Context,
        CPUDeviceInfo,
        GPUDeviceInfo,
        HFModel,
        LanguageModel,
        Model,
        ServableMethod,
        add_stage,
        declare_hf_model,
        declare_llm,
        declare_model,
        method,
        register_method,
    )
    from mindspore_serving.server.ssl_config import SSLConfig
    from mindspore_serving.server.startup import (
        start_grpc_server,
        start_restful_server,
        start_servables,
        stop,
    )
    from mindspore_serving.server.tracing import start_tracing

    master: ModuleType

__path__.append(old_paths.directory("server"))  # master, worker and common of older versions
_MODULES = ("register", "distributed", "master", "worker", "common")
_DEFINING_MODULES = (
    "adapters",
    "config",
    "distributed",
    "loading",
    "nodes",
    "register",
    "startup",
    "tracing",
)  # of the other names

__all__ = [
    "AscendDeviceInfo",
    "CPUDeviceInfo",
    "Context",
    "GPUDeviceInfo",
    "HFModel",
    "LanguageLimits",
    "LanguageModel",
    "Model",
    "SSLConfig",
    "ServableMethod",
    "ServableStartConfig",
    "ServerLimits",
    "add_stage",
    "declare_hf_model",
    "declare_llm",
    "declare_model",
    "declare_servable",
    "distributed",
    "load_lora",
    "load_servable",
    "method",
    "register",
    "register_method",
    "start_grpc_server",
    "start_node_server",
    "start_ray_machines",
    "start_restful_server",
    "start_servable",
    "start_servables",
    "start_tracing",
    "startup_agents",
    "stop",
    "unload_lora",
    "unload_servable",
    "master",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        modules = (import_module(f"{__name__}.{module}") for module in _DEFINING_MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})

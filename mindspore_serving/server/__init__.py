"""The public API.  Names are resolved on first use, so that a worker that imports
`server.register` loads no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindspore_serving.core.server_limits import ServerLimits
    from mindspore_serving.server import distributed, master, register
    from mindspore_serving.server.config import ServableStartConfig, SSLConfig
    from mindspore_serving.server.distributed import (
        declare_servable,
        start_servable,
        startup_agents,
    )
    from mindspore_serving.server.register import (
        AscendDeviceInfo,
        Context,
        CPUDeviceInfo,
        GPUDeviceInfo,
        LanguageModel,
        Model,
        add_stage,
        declare_llm,
        declare_model,
        register_method,
    )
    from mindspore_serving.server.startup import (
        start_grpc_server,
        start_restful_server,
        start_servables,
        stop,
    )

_STARTUP = ("start_servables", "start_grpc_server", "start_restful_server", "stop")
_CONFIG = ("ServableStartConfig", "SSLConfig")
_REGISTER = (
    "declare_model",
    "declare_llm",
    "LanguageModel",
    "Model",
    "AscendDeviceInfo",
    "CPUDeviceInfo",
    "GPUDeviceInfo",
    "Context",
    "register_method",
    "add_stage",
)
_DISTRIBUTED = ("start_servable", "startup_agents", "declare_servable")
_MODULES = ("register", "distributed", "master", "worker", "common")
_HOME = {
    "ServerLimits": "mindspore_serving.core.server_limits",
    **dict.fromkeys(_STARTUP, "startup"),
    **dict.fromkeys(_CONFIG, "config"),
    **dict.fromkeys(_REGISTER, "register"),
    **dict.fromkeys(_DISTRIBUTED, "distributed"),
}

__all__ = [
    "AscendDeviceInfo",
    "CPUDeviceInfo",
    "Context",
    "GPUDeviceInfo",
    "LanguageModel",
    "Model",
    "SSLConfig",
    "ServableStartConfig",
    "ServerLimits",
    "add_stage",
    "declare_llm",
    "declare_model",
    "declare_servable",
    "distributed",
    "register",
    "register_method",
    "start_grpc_server",
    "start_restful_server",
    "start_servable",
    "start_servables",
    "startup_agents",
    "stop",
    "master",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        home = _HOME[name]
        return getattr(import_module(home if "." in home else f"{__name__}.{home}"), name)
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})

"""Plugins with which vLLM computes on Ascend: how each is recognised and started.

Tables of facts about other packages; imports none of them.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from mindspore_serving import extras, log
from mindspore_serving.errors import StartError, did_you_mean


@dataclass(frozen=True, slots=True)
class VllmPlugin:
    """A plugin of vLLM.

    Args:
        name: its name in package registries.
        package: what Python imports.
        module: the module that starts its server.
        arguments: the words of the command line before the path of the model.
        vllm: the version of vLLM that it belongs to; "": that of its own version.
    """

    name: str
    package: str
    module: str
    arguments: tuple[str, ...]
    vllm: str = ""


PLUGINS = (
    VllmPlugin("vllm-ascend", "vllm_ascend", "vllm.entrypoints.cli.main", ("serve",)),
    VllmPlugin(
        "vllm-mindspore",
        "vllm_mindspore",
        "vllm_mindspore.entrypoints",  # it changes vLLM, so it must be imported before
        ("vllm.entrypoints.openai.api_server", "--model"),
        "0.11.0",
    ),
)
ASCEND, MINDSPORE = (plugin.name for plugin in PLUGINS)


@dataclass(frozen=True, slots=True)
class PluginVariable:
    """An environment variable, or all with a prefix (a name that ends with *).

    Args:
        name: its name.
        meaning: what it sets.
        plugins: the plugins that read it.
        accepts: its values; (): any.
    """

    name: str
    meaning: str
    plugins: tuple[str, ...] = (ASCEND, MINDSPORE)
    accepts: tuple[str, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether the row is about the variable `name`."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


VARIABLES = (
    PluginVariable("ASCEND_RT_VISIBLE_DEVICES", "devices, by number, as 0,1"),
    PluginVariable("ASCEND_*", "paths of CANN, which its set_env.sh sets, and its log"),
    PluginVariable("ATB_*", "paths and options of ATB, which NNAL's set_env.sh sets"),
    PluginVariable("HCCL_*", "connections of ranks, as HCCL_IF_IP and HCCL_SOCKET_IFNAME"),
    PluginVariable("LCCL_*", "collectives inside a machine", (MINDSPORE,)),
    PluginVariable("GLOO_SOCKET_IFNAME", "network interface of collectives on the CPU"),
    PluginVariable("TP_SOCKET_IFNAME", "network interface of tensor parallel ranks"),
    PluginVariable("RAY_*", "ranks on several machines"),
    PluginVariable("VLLM_ASCEND_*", "optimisations of vllm-ascend", (ASCEND,)),
    PluginVariable("PYTORCH_NPU_ALLOC_CONF", "memory allocator of torch-npu", (ASCEND,)),
    PluginVariable("TASK_QUEUE_ENABLE", "launch of operators by torch-npu", (ASCEND,)),
    PluginVariable(
        "VLLM_MS_MODEL_BACKEND",
        "where models of vllm-mindspore come from",
        (MINDSPORE,),
        ("MindFormers", "Native", "MindOne"),
    ),
    PluginVariable("MS_*", "runtime of MindSpore", (MINDSPORE,)),
    PluginVariable("CUSTOM_MATMUL_SHUFFLE", "order of sums in matrix products", (MINDSPORE,)),
    PluginVariable("VLLM_*", "vLLM itself"),
)
"""Environment variables that plugins get of the server; the first row that matches counts."""


def find_plugin(*, is_ascend: bool) -> VllmPlugin | None:
    """Return the plugin that this interpreter has; None: vLLM is for another device.

    Raises StartError if there are both, if there is none and the device `is_ascend`, or if vLLM
    itself is missing.
    """
    installed = [plugin for plugin in PLUGINS if find_spec(plugin.package) is not None]
    known = " or ".join(plugin.name for plugin in PLUGINS)
    if len(installed) > 1:
        raise StartError(
            f"the interpreter {sys.executable!r} has both vllm-ascend and vllm-mindspore, which "
            "replace each other's torch: uninstall one, or name another interpreter by --python"
        )
    if not installed and is_ascend:
        raise StartError(
            f"device_type is Ascend, but the interpreter {sys.executable!r} has no {known}: "
            "install one of them there, or name another interpreter by --python"
        )
    if installed and find_spec("vllm") is None:
        raise StartError(
            f"the interpreter {sys.executable!r} has {installed[0].name} without vllm: install the "
            "version of vllm that belongs to it"
        )
    return installed[0] if installed else None


def check_variables(plugin: VllmPlugin, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables of `environment` that the plugin reads, as NAME=VALUE.

    Logs a warning for those of the other plugin. Raises StartError for a value that is not
    accepted. Keys are not returned.
    """
    passed = []
    for name, value in sorted(environment.items()):
        row = next((row for row in VARIABLES if row.matches(name)), None)
        if row is None or name.endswith("_KEY"):
            continue
        if plugin.name not in row.plugins:
            log.warning("%s is set, but %s does not read it", name, plugin.name)
            continue
        if row.accepts and value not in row.accepts:
            expected = f"{', '.join(row.accepts)}{did_you_mean(value, row.accepts)}"
            raise StartError(f"{name} is {value!r}, expected one of {expected}")
        passed.append(f"{name}={value}")
    return passed


def check_version(plugin: VllmPlugin) -> None:
    """Log a warning if vLLM is of another version than the plugin belongs to."""
    version = extras.installed(plugin.name)
    expected = plugin.vllm or ".".join(version.split(".")[:3]).partition("rc")[0]
    actual = extras.installed("vllm")
    if actual and not f"{actual}+".replace("rc", "+").startswith(f"{expected}+"):
        log.warning("%s %s belongs to vllm %s, not %s", plugin.name, version, expected, actual)


def describe(plugin: VllmPlugin) -> str:
    """Return the versions of the plugin and of the packages that it needs, as installed."""
    names = ("vllm", "torch", "torch-npu", "mindspore", "msadapter", "mindformers")
    versions = ((name, extras.installed(name)) for name in names)
    shown = ", ".join(f"{name} {version}" for name, version in versions if version)
    return f"{plugin.name} {extras.installed(plugin.name) or '(no version)'} ({shown})"

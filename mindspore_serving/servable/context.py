"""Options of models per type of device: `Context` and the device descriptions.

Tables of options and their values, checked in one place; `Context.to_options` returns a mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import (
    check_bool,
    check_int,
    check_int_tuple,
    check_str,
    warn_deprecated,
)

_PRECISION: Mapping[str, tuple[str, ...]] = {"precision_mode": ("origin", "fp16")}
_SWITCH = ("true", "false")
_ASCEND: Mapping[str, tuple[str, ...]] = {  # no values: any text
    "insert_op_cfg_path": (),
    "input_format": ("ND", "NCHW", "NHWC", "CHWN", "NC1HWC0", "NHWC1C0"),
    "input_shape": (),
    "output_type": ("FP32", "FP16", "UINT8"),
    "precision_mode": (
        "force_fp16",
        "allow_fp32_to_fp16",
        "must_keep_origin_dtype",
        "allow_mix_precision",
        "allow_mix_precision_fp16",
        "allow_mix_precision_bf16",
        "force_fp32",
        "allow_fp32_to_bf16",
    ),
    "op_precision_mode": (),
    "matmul_allow_hf32": _SWITCH,
    "conv_allow_hf32": _SWITCH,
    "op_compile": _SWITCH,
    "aoe_tune_mode": ("online", "offline"),
    "aoe_job_type": ("1", "2"),
    "op_select_impl_mode": ("high_performance", "high_precision"),
    "fusion_switch_config_path": (),
    "buffer_optimize_mode": (
        "l1_optimize",
        "l2_optimize",
        "off_optimize",
        "l1_and_l2_optimize",
    ),
}


class _DeviceInfo:
    """Options of one type of device, as texts: `context_map` has them and "device_type"."""

    _device_type: ClassVar[str]
    _accepted: ClassVar[Mapping[str, tuple[str, ...]]]
    _noun: ClassVar[str] = "option"

    def __init__(self, **kwargs: str | bool) -> None:
        self.context_map: dict[str, str] = {"device_type": self._device_type}
        for name, value in kwargs.items():
            self.context_map[name] = self._checked(name, value)

    def _checked(self, name: str, value: object) -> str:
        if name not in self._accepted:
            raise InvalidInputs(
                f"Set {self._device_type} device info failed, unsupported {self._noun} {name}, "
                f"accepted: {', '.join(self._accepted)}"
            )
        accepted = self._accepted[name]
        if accepted == _SWITCH and isinstance(value, bool):
            value = str(value).lower()
        text = check_str(name, value)
        if accepted and text not in accepted:
            choices = ", ".join(f"'{choice}'" for choice in accepted)
            raise InvalidInputs(
                f"{self._device_type.capitalize()} device info '{name}' can only be {choices}. "
                f"given '{text}'"
            )
        return text


class CPUDeviceInfo(_DeviceInfo):
    """Options for a CPU.  `precision_mode`: "origin" (default) or "fp16"."""

    _device_type = "cpu"
    _accepted = _PRECISION


class GPUDeviceInfo(_DeviceInfo):
    """Options for a GPU.  `precision_mode`: "origin" (default) or "fp16"."""

    _device_type = "gpu"
    _accepted = _PRECISION


class AscendDeviceInfo(_DeviceInfo):
    """Options for an Ascend device, texts (or bools of "true" and "false"), all optional.

    `precision_mode`, `op_select_impl_mode`.  Of MindSpore: `op_precision_mode` (an .ini file),
    `matmul_allow_hf32`, `conv_allow_hf32`, `op_compile`, `aoe_tune_mode`, `aoe_job_type`.  Of
    MindSpore Lite, which passes them to ACL: `insert_op_cfg_path` (an AIPP file), `input_format`,
    `input_shape`, `output_type`, `fusion_switch_config_path`, `buffer_optimize_mode`.
    A value that is not accepted raises RuntimeError with the list of those that are.
    """

    _device_type = "ascend"
    _accepted = _ASCEND
    _noun = "parameter"


@dataclass(slots=True)
class ModelContext:
    """Options of a `Context`; -1 is unset, `enable_parallel` is 0 or 1 when set."""

    thread_num: int = -1
    thread_affinity_core_list: list[int] = field(default_factory=list)
    enable_parallel: int = -1
    device_list: list[dict[str, str]] = field(default_factory=list)


class Context:
    """Options to run a model, an argument of `declare_model`.

    `thread_num` (int >= 1): threads of the runtime. `thread_affinity_core_list` (tuple or list of
    distinct ints >= 0): the cores to which they are bound. `enable_parallel` (bool): run
    independent operators concurrently. Options per type of device are added by
    `append_device_info`.

        context = Context(thread_num=2)
        context.append_device_info(GPUDeviceInfo(precision_mode="fp16"))

    Raises RuntimeError for an unknown option or a wrong value.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.model_context = ModelContext()
        for name, value in kwargs.items():
            self._set(name, value)

    def _set(self, name: str, value: object) -> None:
        if name == "thread_num":
            self.model_context.thread_num = check_int(name, value, 1)
        elif name == "thread_affinity_core_list":
            self.model_context.thread_affinity_core_list = list(check_int_tuple(name, value, 0))
        elif name == "enable_parallel":
            self.model_context.enable_parallel = int(check_bool(name, value))
        else:
            raise InvalidInputs(
                f"Set context failed, unsupported option {name}, accepted: thread_num, "
                "thread_affinity_core_list, enable_parallel"
            )

    def append_device_info(self, device_info: _DeviceInfo) -> None:
        """Add the options of one type of device, each type at most once."""
        if not isinstance(device_info, _DeviceInfo):
            raise InvalidInputs(
                "Parameter 'device_info' should instance of CPUDeviceInfo, GPUDeviceInfo, or "
                f"AscendDeviceInfo, but actually {type(device_info)}"
            )
        device_type = device_info.context_map["device_type"]
        if any(device["device_type"] == device_type for device in self.model_context.device_list):
            raise InvalidInputs(f"Device info of type {device_type} has already been appended")
        self.model_context.device_list.append(device_info.context_map)

    def to_options(self) -> dict[str, Any]:
        """Return the options that are set, for `DeclaredModel.options`.

        "thread_num": int; "thread_affinity_core_list": tuple of int; "enable_parallel": bool;
        "device_list": tuple of dicts of str, each with "device_type" "cpu", "gpu" or "ascend".
        """
        context, options = self.model_context, dict[str, Any]()
        if context.thread_num > 0:
            options["thread_num"] = context.thread_num
        if context.thread_affinity_core_list:
            options["thread_affinity_core_list"] = tuple(context.thread_affinity_core_list)
        if context.enable_parallel >= 0:
            options["enable_parallel"] = bool(context.enable_parallel)
        if context.device_list:
            options["device_list"] = tuple(dict(device) for device in context.device_list)
        return options


class _Options:
    """Deprecated form of a `Context` with one device; it is in `context`."""

    _device: ClassVar[type[_DeviceInfo]]

    def __init__(self, **kwargs: str | bool) -> None:
        warn_deprecated(type(self).__name__, "1.6.0", self._device.__name__)
        self.context = Context()
        self.context.append_device_info(self._device(**kwargs))


class AclOptions(_Options):
    """Deprecated: use a `Context` with an `AscendDeviceInfo`, which has the same options."""

    _device = AscendDeviceInfo


class GpuOptions(_Options):
    """Deprecated: use a `Context` with a `GPUDeviceInfo`, which has the same options."""

    _device = GPUDeviceInfo

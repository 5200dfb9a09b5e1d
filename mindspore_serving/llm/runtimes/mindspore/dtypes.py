"""Dtypes of weights, results and cache on a device: bfloat16 where its SoC has it, else float16."""

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import has_bfloat16

NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
AUTO = "auto"


def choose_dtype(config: EngineConfig, soc: str = "") -> str:
    """Return MindSpore's name of the dtype on `soc`, "" for a CPU, which computes in float32.

    Keys and values have the same dtype.  Raises StartError for one that the device lacks.
    """
    accepted: tuple[str, ...] = ("f32",)
    if soc:
        accepted = ("bf16", "f16") if has_bfloat16(soc) else ("f16",)
    name = accepted[0] if config.dtype == AUTO else config.dtype
    for option, value in (("dtype", name), ("kv_cache_dtype", config.kv_cache_dtype)):
        if value not in (AUTO, *accepted):
            names = ", ".join((AUTO, *accepted[:-1]))
            raise StartError(
                f"{option} is {value!r}, the mindspore runtime accepts {names} and "
                f"{accepted[-1]} on {soc or 'a CPU'}; leave {option} out"
            )
    if config.kv_cache_dtype not in (AUTO, name):
        raise StartError(
            f"kv_cache_dtype is {config.kv_cache_dtype!r} and dtype {name!r}, but the mindspore "
            "runtime has one for both; leave kv_cache_dtype out"
        )
    if name == "f16":
        log.warning(
            "%s computes in float16, in which large activations overflow: answers that end with "
            "an error about NaN come from it%s", soc,
            "; dtype bf16 has no such limit" if len(accepted) > 1 else "",
        )  # fmt: skip
    return NAMES[name]

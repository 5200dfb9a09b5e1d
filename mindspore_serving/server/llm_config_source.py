"""Reading of llm-serving's configuration files, yaml or serving_config.py, as blocks of keys.

Python is parsed, never run: only assignments of literal values count.
"""

from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidInputs, StartError, reason
from mindspore_serving.servable.literals import read_assignments

Block: TypeAlias = dict[str, Any]
Blocks: TypeAlias = dict[str, Any]


def read_blocks(path: Path) -> Blocks:
    """Read a configuration file.

    Raises StartError if it cannot be read, InvalidInputs if its content is invalid.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {reason(error)}") from error
    if path.suffix == ".py":
        return _to_blocks(read_assignments(text))
    return _read_yaml(text)


def _read_yaml(text: str) -> Blocks:
    from mindspore_serving.core.yaml_text import load

    blocks = load(text, "this is no yaml")
    if not isinstance(blocks, dict):
        raise InvalidInputs(f"the file holds {type(blocks).__name__}, expected blocks of keys")
    return blocks


def _to_blocks(names: dict[str, Any]) -> Blocks:
    base, agent = names.get("Baseconfig", {}), names.get("AgentConfig", {})
    if not isinstance(base, dict) or not isinstance(agent, dict):
        raise InvalidInputs("Baseconfig and AgentConfig are no EasyDict({...})")
    renamed = ("batch_size", "dyn_batch_size")
    model = {key: value for key, value in base.items() if key not in renamed}
    batches = base.get("dyn_batch_size") or base.get("batch_size")
    paging = base.get("PageAttentionConfig") or names.get("PageAttentionConfig")
    blocks: Blocks = {
        "model_path": {
            key: agent.get(key, names.get(f"{key}_path", names.get(key)))
            for key in ("prefill_model", "decode_model", "argmax_model", "topk_model")
        },
        "model_config": {
            **model,
            "model_name": names.get("ModelName"),
            "decode_batch_size": batches or None,
            "page_attention": bool(base.get("page_attention") or paging),
        },
        "serving_config": {
            "server_ip": names.get("SERVER_APP_HOST"),
            "server_port": names.get("SERVER_APP_PORT"),
            "agent_ip": names.get("AgentIP"),
            "agent_ports": agent.get("AgentPorts"),
        },
    }
    return {**blocks, "pa_config": paging} if paging else blocks

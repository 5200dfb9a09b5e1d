"""A model's directory, opened: its engine, its tokenizer, its chat template, and what it is.

Used by the offline interface and by the workers of a server alike.
"""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mindspore_serving.core.completion import ModelCard
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.chat import ChatTemplate
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import Engine
from mindspore_serving.llm.reasoning_formats import find_reasoning_format
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.tokenizer import Tokenizer, read_json, stated_eos_ids
from mindspore_serving.llm.tool_formats import find_tool_format


@dataclass(frozen=True, slots=True)
class Opened:
    """A language model, loaded.  Without tokenizer.json there is no tokenizer."""

    directory: Path
    runtime: str
    config: EngineConfig
    engine: Engine
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None

    def card(self) -> ModelCard:
        """What the model is, for front ends."""
        engine, runner, config = self.engine, self.engine.runner, self.config
        template = self.chat_template.source if self.chat_template else ""
        names = read_json(self.directory / "config.json").get("architectures") or ["unknown"]
        hidden_size = getattr(runner, "hidden_size", 0)
        return ModelCard(
            architecture=str(names[0]),
            runtime=self.runtime,
            dtype=config.dtype,
            quantization=config.quantization or "",
            max_model_len=engine.max_model_len,
            vocab_size=runner.vocab_size,
            can_generate=True,
            can_embed=hasattr(runner, "embed"),
            embedding_size=hidden_size,
            has_chat_template=self.chat_template is not None,
            tool_format=_temporary(find_tool_format, template),
            reasoning_format=_temporary(find_reasoning_format, template),
            adapters=tuple(config.adapters),
            eos_ids=self.tokenizer.eos_ids if self.tokenizer else (),
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_waiting=config.max_num_waiting,
            created=int(time.time()),
            summary=self.describe(),
        )

    def describe(self) -> str:
        """One line: what was chosen, and what it can hold."""
        runner, config = self.engine.runner, self.config
        capacity = runner.num_blocks * runner.block_size
        longest = self.engine.max_model_len
        return (
            f"{self.directory.name or 'model'}: runtime {self.runtime}, weights "
            f"{config.quantization or 'as stored'}; cache of {capacity:,} tokens "
            f"({runner.num_blocks:,} blocks of {runner.block_size}), {capacity / longest:.1f} "
            f"sequences of {longest:,}; at most {config.max_num_seqs} sequences and "
            f"{config.max_num_batched_tokens} tokens in a step"
        )


def open_model(path: str | Path, runtime: str, config: EngineConfig) -> Opened:
    """Load the model in the directory `path`.  Raises StartError or InvalidInputs saying what
    cannot be used."""
    directory = Path(path)
    if not directory.is_dir():
        raise StartError(f"path is {str(path)!r}, expected a model's directory")
    tokenizer = None
    if (directory / "tokenizer.json").is_file():
        tokenizer = Tokenizer.open(directory)
    special_tokens = tokenizer.special_tokens if tokenizer else None
    chat_template = ChatTemplate.open(directory, special_tokens)
    eos_ids = tokenizer.eos_ids if tokenizer else stated_eos_ids(directory)
    runner = open_runner(directory, runtime, config)
    engine = Engine(runner, tokenizer, config, eos_ids)
    return Opened(directory, runtime, config, engine, tokenizer, chat_template)


def make_config(options: dict[str, Any]) -> EngineConfig:
    """The options as a config.  Raises InvalidInputs naming one that does not exist."""
    known = [option.name for option in fields(EngineConfig)]
    for name in options:
        if name not in known:
            raise InvalidInputs(f"{name!r} is no option, expected one of {', '.join(known)}")
    return EngineConfig(**options)


def _temporary(f: Any, t: str) -> str:
    try:
        return f(t)
    except NotImplementedError:
        return ""

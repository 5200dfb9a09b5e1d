"""Loading of a model's directory: its engine, tokenizer, chat template, and what it is.

Used by the offline interface and by the workers of a server alike.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from mindspore_serving.core.default_sampling import sampling_fields
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import StartError
from mindspore_serving.file_check import why_no_model
from mindspore_serving.llm.catalog import AUTO, COMBINED, OPENVINO, OURS, RUNTIMES
from mindspore_serving.llm.chat.reasoning_formats import find_reasoning_format
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import GENERIC, find_tool_format
from mindspore_serving.llm.chat.transcription_formats import (
    TranscriptionFormat,
    find_transcription_format,
)
from mindspore_serving.llm.checkpoint.embedding_files import read_embedding_options
from mindspore_serving.llm.checkpoint.gguf.configuration import types_of
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf, is_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import choose_projector, is_projector
from mindspore_serving.llm.checkpoint.mindformers.settings import directory_of, text_directory
from mindspore_serving.llm.checkpoint.model_files import (
    find_config,
    read_eos_ids,
    read_recommended,
)
from mindspore_serving.llm.checkpoint.quantized.methods import describe, read_config
from mindspore_serving.llm.config import LOW_MEMORY, EngineConfig
from mindspore_serving.llm.descriptions.families.seq2seq import MULTILINGUAL
from mindspore_serving.llm.engine.dual_encoder import DualEncoder
from mindspore_serving.llm.engine.encoder import Encoder, EncoderEngine
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.labels import Labels
from mindspore_serving.llm.engine.last_token_pooler import open_last_token_pooler
from mindspore_serving.llm.engine.stored_blocks import StoredBlocks
from mindspore_serving.llm.engines import open_engine
from mindspore_serving.llm.engines.base import AnyEngine, EngineModel
from mindspore_serving.llm.images.opening import open_media
from mindspore_serving.llm.images.reader import ImageReader
from mindspore_serving.llm.images.sound_reader import SoundReader
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.models import is_encoder
from mindspore_serving.llm.models.bodies import generator_of
from mindspore_serving.llm.models.dual import find_dual
from mindspore_serving.llm.models.seq2seq import is_seq2seq
from mindspore_serving.llm.options import check_engine
from mindspore_serving.llm.progress import called_while_compiling
from mindspore_serving.llm.runtimes import open_seq2seq
from mindspore_serving.llm.runtimes.default import ONLY_COMBINED, choose_runtime, log_default
from mindspore_serving.llm.runtimes.draft import open_runners
from mindspore_serving.llm.runtimes.pages import map_large_allocations, trim
from mindspore_serving.llm.step import Runner, StoringRunner
from mindspore_serving.llm.storage.stores import open_levels
from mindspore_serving.llm.tokenization.languages import find_languages
from mindspore_serving.llm.tokenization.tokenizer import TOKENIZER_FILES, Tokenizer, has_tokenizer

Texts = dict[str, Any]  # fields of `OpenedModel` for which no engine is needed


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A loaded model.  Without tokenizer.json there is no tokenizer."""

    directory: Path
    runtime: str
    config: EngineConfig
    engine: AnyEngine
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    recommended: dict[str, Any]  # sampling parameters, by the model's files
    images: ImageReader | None = None
    sounds: SoundReader | None = None
    tower: Tower | None = None

    def card(self) -> ModelCard:
        """Return what front ends need to know of the model."""
        engine, config = self.engine, self.config
        template = self.chat_template.source if self.chat_template else ""
        names = find_config(self.directory).get("architectures") or ["unknown"]
        return ModelCard(
            architecture=str(names[0]),
            runtime=self.runtime,
            dtype=config.dtype,
            quantization=config.quantization or "",
            max_model_len=engine.max_model_len,
            max_prompt_len=getattr(engine, "max_prompt_len", 0),
            languages=tuple(find_languages(self.tokenizer) if names[0] in MULTILINGUAL else ()),
            vocab_size=engine.vocab_size,
            can_generate=engine.can_generate and not self.is_body,
            can_transcribe=self.transcription_format is not None,
            embedding_size=engine.embedding_size,
            has_chat_template=self.chat_template is not None,
            tool_format=self.tool_format,
            unmarked_calls=config.unmarked_calls,
            system_message=config.system_message,
            reasoning_format=find_reasoning_format(template),
            adapters=tuple(config.adapters),
            adapter_paths=tuple(map(str, config.adapters.values())),
            eos_ids=self.tokenizer.eos_ids if self.tokenizer else (),
            num_blocks=engine.num_blocks,
            block_size=engine.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_waiting=config.max_num_waiting,
            created=int(time.time()),
            takes_images=self.takes_images,
            takes_sounds=self.sounds is not None,
            reads_files=self.tokenizer is not None,
            has_tokenizer=self.tokenizer is not None,
            num_ranks=config.num_ranks,
            **sampling_fields(self.recommended, config, getattr(engine, "max_beams", 1)),
            **self._reading(),
            summary=self.describe() + self._tool_summary(),
            memory=engine.memory.describe() if engine.memory else "",
        )

    def find_adapter(self, name: str) -> int:
        """Return the number of the LoRA adapter `name`, 0 for "".  Raises InvalidField."""
        return self.engine.adapters.find(name)

    def _reading(self) -> dict[str, Any]:
        """Return the fields of the card for scores or vectors of texts."""
        if self.labels is not None:
            return {
                "can_score": True,
                "labels": self.labels.names,
                "problem": self.labels.problem,
                "reads_instructions": self.config.ranking,
            }
        if not self.engine.embedding_size or not self.is_embedder:
            return {}
        config = find_config(self.directory)
        options = read_embedding_options(self.directory, config, self.engine.embedding_size)
        return {
            "can_embed": True,
            "pooling": "+".join(self.engine.pooler.modes if self.engine.pooler else ()),
            "prompts": tuple(options.prompts.items()),
            "default_prompt": options.default_prompt,
            "dimensions": options.dimensions,
            "any_dimensions": options.any_dimensions or self.config.matryoshka,
        }

    @property
    def takes_images(self) -> bool:
        """True if prompts may contain images, or be images to embed."""
        is_dual = find_dual(find_config(self.directory)) is not None
        return self.images is not None or (is_dual and self.config.max_images > 0)

    @property
    def transcription_format(self) -> TranscriptionFormat | None:
        """Requests and answers of a transcription, None if the model is not made for that."""
        names = find_config(self.directory).get("architectures") or [""]
        return None if self.sounds is None else find_transcription_format(str(names[0]))

    @property
    def labels(self) -> Labels | None:
        """Labels of a classifier."""
        pooler = self.engine.pooler
        return None if pooler is None else pooler.labels

    @property
    def is_embedder(self) -> bool:
        """True if the model is made to embed texts, or the operator has asked it to."""
        is_made = (
            not self.engine.can_generate
            or (self.directory / "modules.json").is_file()
            or self.is_body
        )
        return is_made or self.config.embeddings

    @property
    def is_body(self) -> bool:
        """True if it has the layers of a model that generates, without the output layer."""
        return generator_of(find_config(self.directory)) != ""

    @property
    def tool_format(self) -> str:
        """Format of tool calls: the chat template's, or the generic one if it has none."""
        if self.chat_template is None:
            return ""
        name = find_tool_format(self.chat_template.source)
        return name or (GENERIC if self.config.generic_tools else "")

    def _tool_summary(self) -> str:
        return "; tools in the generic format" if self.tool_format == GENERIC else ""

    def why_no_handoff(self) -> str:
        """Return why no other worker can compute prompts for the model; "" if one can."""
        runner = getattr(self.engine, "runner", None)
        if not self.engine.can_generate:
            return "the model generates no text"
        if runner is None or self.config.num_ranks > 1 or not hasattr(runner, "block_bytes"):
            return f"blocks of runtime {self.runtime!r}{_ranks(self.config)} stay in its memory"
        if runner.num_slots and not (getattr(runner, "state_bytes", 0) and runner.block_bytes):
            return "the model has states and no keys and values, which stay in the worker's memory"
        if not self.config.enable_prefix_caching:
            return "enable_prefix_caching is False"
        return ""

    def describe(self) -> str:
        """Describe in a line what was loaded, and the capacity of its cache."""
        runtime = f"{self.runtime}{_ranks(self.config)}"
        name = self.directory.name or "model"
        if self.runtime not in RUNTIMES:
            return f"{name}: engine {runtime}; {self.engine.describe()}"
        draft = f"; draft model {Path(self.config.draft).name}" if self.config.draft else ""
        draft += "; prediction head" if self.config.mtp else ""
        return f"{name}: runtime {runtime}; {self.engine.describe(self._weights())}{draft}"

    def _weights(self) -> str:
        """Describe how weights are stored, and what the runtime makes of them."""
        if is_gguf(self.directory):
            stored, has_kernels = f"{types_of(open_gguf(self.directory))} of GGUF", True
        else:
            stored, has_kernels = describe(read_config(self.directory))
        if not stored:
            return "as stored"
        runtime = RUNTIMES[self.runtime]
        keeps = runtime.keeps_integers or self.config.device == runtime.keeps_integers_on
        if has_kernels and keeps:
            return f"{stored}, integers kept"
        return f"{stored}, widened to floats, as runtime {self.runtime} has no kernels for it"


def _ranks(config: EngineConfig) -> str:
    stages, ranks = config.pipeline_parallel, config.tensor_parallel
    if stages > 1:
        return f" over {stages} stages" + (f" of {ranks} ranks" if ranks > 1 else "")
    return f" over {ranks} ranks" if ranks > 1 else ""


def open_model(
    path: str | Path,
    runtime: str,
    config: EngineConfig,
    engine: str = OURS,
    engine_options: Mapping[str, Any] | None = None,
) -> OpenedModel:
    """Load the model in the directory or the GGUF file `path`, into ours or another `engine`.

    Raises StartError or InvalidInputs.
    """
    options = engine_options or {}
    check_engine(config, engine, options)
    if engine == OURS:
        return open_ours(path, runtime, config)[0]
    directory = _find_directory(path)
    texts = _read_texts(directory, config)
    tokenizer = texts["tokenizer"]
    model = EngineModel(directory, tokenizer, _eos_ids(directory, tokenizer))
    opened = open_engine(engine, model, config, options)
    return OpenedModel(runtime=engine, config=config, engine=opened, **texts)


def open_ours(
    path: str | Path, runtime: str, config: EngineConfig
) -> tuple[OpenedModel, Engine | EncoderEngine]:
    """Load the model in `path` into our engine; return the model and the engine.

    Raises StartError or InvalidInputs.
    """
    directory, named = _find_directory(path), runtime
    choose_projector(directory, config.mmproj)
    if config.memory == LOW_MEMORY:
        map_large_allocations()
    with called_while_compiling(partial(_read_texts, directory, config)) as read:
        try:
            runtime = choose_runtime(directory, named, config)
            media = open_media(directory, runtime, config, lambda: read()["tokenizer"])
            engine, runtime = _open_default(directory, named, runtime, config, read)
            texts = read()
        except StartError:
            read()  # an error in the files of texts is told first
            raise
    opened = OpenedModel(runtime=runtime, config=config, engine=engine, **media, **texts)
    trim()  # of a large vocabulary, reading leaves 50 MB
    return opened, engine


def _find_directory(path: str | Path) -> Path:
    """Return the directory or the GGUF file of the model `path`.  Raises StartError."""
    directory = find_gguf(Path(path)) or directory_of(Path(path))
    if not directory.is_dir() and not is_gguf(directory):
        why = why_no_model(path)
        expected = f"which {why}" if why else "expected a model's directory or a GGUF file"
        raise StartError(f"path is {str(path)!r}, {expected}")
    if is_gguf(directory) and is_projector(directory):
        raise StartError(
            f"{directory} is a vision tower: give the path of its language model, beside which it "
            "is used, or which has it as option mmproj"
        )
    return directory


_early: dict[Path, Tokenizer] = {}  # read before the model is loaded


def read_tokenizer_early(path: Path) -> None:
    """Read the tokenizer of the model in a GGUF file, for loading it later in this process."""
    _early[path.resolve()] = Tokenizer.open(path)


def _read_texts(directory: Path, config: EngineConfig) -> Texts:
    """Return the fields of `OpenedModel` for which no engine is needed.  Raises StartError."""
    texts = text_directory(directory, TOKENIZER_FILES)
    tokenizer = _early.pop(texts.resolve(), None)
    if tokenizer is None and has_tokenizer(texts):
        tokenizer = Tokenizer.open(texts)
    special_tokens = tokenizer.special_tokens if tokenizer else None
    return {
        "directory": directory,
        "tokenizer": tokenizer,
        "chat_template": ChatTemplate.open(texts, special_tokens),
        "recommended": read_recommended(directory) if config.generation_config == "auto" else {},
    }


def _eos_ids(directory: Path, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    return tokenizer.eos_ids if tokenizer else read_eos_ids(directory)


def _open_default(
    directory: Path, named: str, runtime: str, config: EngineConfig, read: Callable[[], Texts]
) -> tuple[Engine | EncoderEngine, str]:
    """Open the engine; return it with its runtime: OPENVINO if COMBINED refuses the model."""
    try:
        return _open_engine(directory, runtime, config, read), runtime
    except StartError as error:
        if named != AUTO or runtime != COMBINED or any(map(config.is_set, ONLY_COMBINED)):
            raise
        log_default(directory, str(error))
    return _open_engine(directory, OPENVINO, config, read), OPENVINO


def _open_engine(
    directory: Path, runtime: str, config: EngineConfig, read: Callable[[], Texts]
) -> Engine | EncoderEngine:
    fields = find_config(directory)
    if find_dual(fields) is not None:
        towers = DualEncoder.open_towers(directory, config, runtime, read()["tokenizer"])
        return EncoderEngine(towers)
    if is_encoder(fields):
        return EncoderEngine(Encoder.open(directory, config, runtime))
    if is_seq2seq(fields):
        tokenizer = _tokenizer_for(runner := open_seq2seq(directory, runtime, config), read)
        config = replace(config, enable_prefix_caching=False, num_speculative_tokens=0)
        return Engine(runner, tokenizer, config, _eos_ids(directory, tokenizer))
    early = None if config.draft is None else read()["tokenizer"]
    runner, draft = open_runners(directory, runtime, config, early)
    tokenizer = _tokenizer_for(runner, read)
    engine = Engine(runner, tokenizer, config, _eos_ids(directory, tokenizer), draft=draft)
    try:
        engine.embedder.pooler = open_last_token_pooler(directory, engine.runner, config, tokenizer)
        if config.prefix_cache_dir or config.prefix_cache_store:
            storing = cast(StoringRunner, engine.runner)
            levels, states = open_levels(directory, runtime, config, storing), engine.cache.states
            engine.keep_blocks(StoredBlocks(storing, engine.pool, levels, states=states))
    except BaseException:
        engine.close()
        raise
    return engine


def _tokenizer_for(runner: Runner, read: Callable[[], Texts]) -> Tokenizer | None:
    """Return the tokenizer; close `runner` if it cannot be read."""
    try:
        return cast(Tokenizer | None, read()["tokenizer"])
    except BaseException:
        runner.close()
        raise

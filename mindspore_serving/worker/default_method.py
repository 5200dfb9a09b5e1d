"""Default method of a Hugging Face model whose directory has no servable_config.py."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore_serving import file_check
from mindspore_serving.core.declaration import Declaration, LanguageSpec
from mindspore_serving.core.tasks import TASK_OPTIONS, ZERO_SHOT, TaskSpec, task_of
from mindspore_serving.llm.catalog import AUTO, ENCODER_RUNTIMES, OURS
from mindspore_serving.llm.chat.transcription_formats import find_transcription_format
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import OPTIONS
from mindspore_serving.llm.descriptions.families.seq2seq import SEQ2SEQ
from mindspore_serving.llm.engine.labels import count_labels
from mindspore_serving.llm.models import ARCHITECTURES, is_classifier_config, is_encoder
from mindspore_serving.llm.models.bodies import generator_of
from mindspore_serving.llm.models.dual import find_dual
from mindspore_serving.llm.speech.settings import is_speech
from mindspore_serving.servable.hf_model import add_task_method
from mindspore_serving.servable.language import DEFAULT_RUNTIME, add_generate, add_transcribe


def add_default_method(declaration: Declaration, spec: LanguageSpec) -> None:
    """Add the method that the model's config.json implies to `declaration`, which has none.

    A model that generates gets `generate`, a model of speech `transcribe`, one that does both gets
    both, a model of a task `predict`.  An encoder that the language protocols can embed or rank
    with stays a language model as well.
    """
    directory = Path(spec.path)
    if is_speech(directory):
        add_transcribe(declaration)
        return
    if file_check.find_voice(directory):
        return  # it has the requests of front ends alone
    config = find_config(directory)
    if find_dual(config) is not None:
        options = {
            key: value
            for key, value in spec.options.items()
            if key in OPTIONS or key not in TASK_OPTIONS
        }
        declaration.language = replace(spec, options=options)
        if spec.options.get("max_images", True):
            add_task_method(declaration, TaskSpec(spec.path, ZERO_SHOT, "", spec.options))
        return
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    task = task_of(name)
    if not task or name in (*ARCHITECTURES, *SEQ2SEQ) or _is_reader_body(config, spec):
        add_generate(declaration)
        is_ours = spec.engine == OURS and spec.options.get("max_audios", True)
        if is_ours and find_transcription_format(name) is not None:
            add_transcribe(declaration)
        return
    runtime = "" if spec.runtime == DEFAULT_RUNTIME else spec.runtime
    if is_encoder(config) and spec.runtime in (AUTO, *ENCODER_RUNTIMES):
        if not (directory / "tokenizer.json").is_file():
            add_generate(declaration)  # clients embed token ids
            return
        options = {key: value for key, value in spec.options.items() if key not in TASK_OPTIONS}
        declaration.language = replace(spec, options=options)
        if task != "text-classification" and not _fills_masks(directory, task):
            task = "feature-extraction"
    else:
        declaration.language = None
    add_task_method(declaration, TaskSpec(spec.path, task, runtime, spec.options))


def _is_reader_body(config: Mapping[str, Any], spec: LanguageSpec) -> bool:
    """Return whether the model is the body of a generating model, used to embed or to rank."""
    if not generator_of(config):
        return False
    if not is_classifier_config(config):
        return True
    return count_labels(config) == 1 or bool(spec.options.get("ranking"))


def _fills_masks(directory: Path, task: str) -> bool:
    """Return whether a model with a mask head is for fill-mask.

    A directory of sentence-transformers is for embeddings, whatever its architecture.
    """
    return task == "fill-mask" and not (directory / "modules.json").exists()

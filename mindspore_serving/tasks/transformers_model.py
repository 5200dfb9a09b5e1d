"""Models by the transformers library on PyTorch: families that are not among our own, and images.

The library is imported when a model is opened.  It gets safetensors from the directory, and neither
runs code of it nor loads any from elsewhere.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import words
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.catalog import TRANSFORMERS
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling, recommended_max_length
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import ARCHITECTURES
from mindspore_serving.llm.options import check_runtime
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput

CLASSES = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "feature-extraction": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
}
LONGEST = 512  # tokens, where config.json does not say


def open_model(directory: Path, task: str, config: EngineConfig) -> Any:
    """The library's model, ready to compute in float32.  Raises StartError: no library, weights
    that are pickled, an architecture that it does not have, an option that it does not take.
    """
    _check(read_json(directory / CONFIG), config)
    transformers, torch = import_libraries()
    from mindspore_serving.llm.runtimes.torch.opening import open_device

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    transformers.logging.disable_progress_bar()
    try:
        model, loaded = getattr(transformers, CLASSES[task]).from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",  # a name in config.json may be of code elsewhere
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"transformers cannot load {directory} for {task}: {words(error)}"
        ) from error
    missing = sorted(loaded["missing_keys"])
    if missing and task != "feature-extraction":  # whose pooler, which is not used, may be missing
        raise StartError(f"{directory} has no tensor {missing[0]!r}, which its model needs")
    return model.eval().to(open_device(config.device))


def import_libraries() -> tuple[Any, Any]:
    """transformers and torch.  Raises StartError where they are not installed."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "this model")) from error
    return transformers, torch


def compute(model: Any, inputs: Mapping[str, Any], output: str) -> Vectors:
    """One pass: its output of that name, float32.  Raises ServingError with the library's words."""
    import torch

    try:
        with torch.inference_mode():
            found = model(
                **{name: torch.as_tensor(x, device=model.device) for name, x in inputs.items()}
            )
            array: Vectors = found[output].float().cpu().numpy()
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
        raise ServingError(f"a pass of the model failed: {words(error)}") from error
    return array


def _check(given: Mapping[str, Any], config: EngineConfig) -> None:
    name = (given.get("architectures") or [""])[0]
    if name in ARCHITECTURES:
        raise StartError(f"{name} generates text; declare it with declare_llm")
    if given.get("quantization_config"):
        raise StartError(f"{name} is quantised; take the model's float checkpoint")
    check_runtime(config, TRANSFORMERS, (TRANSFORMERS,))


class TransformersTextModel:
    """A `TextModel`."""

    def __init__(self, directory: Path, task: str, model: Any, max_length: int) -> None:
        self.max_length = max_length
        self.num_types = max(getattr(model.config, "type_vocab_size", 0) or 0, 1)
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self._model = model
        self._has_types = "token_type_ids" in inspect.signature(model.forward).parameters
        self._padding = _find_token(model, "pad")
        has_head = task != "feature-extraction"
        self._output = "logits" if has_head else "last_hidden_state"
        tokens = [self._padding or 0, self._padding or 0, _find_token(model, "eos") or 0]
        (row,) = self.run([TokenizedInput(tokens, [0] * 3, [], [])], [[0]])
        self.num_outputs = row.shape[-1] if has_head else 0
        self.pooling = Pooling() if has_head else read_pooling(directory, row.shape[-1])

    @classmethod
    def open(cls, directory: Path, task: str, config: EngineConfig) -> "TransformersTextModel":
        """Raises StartError."""
        model = open_model(directory, task, config)
        most = _count_positions(model)
        wanted = config.max_model_len or recommended_max_length(directory) or most
        if (config.max_model_len or 0) > most:
            raise StartError(f"max_model_len is {wanted}, but the model has {most} positions")
        try:
            return cls(directory, task, model, min(wanted, most))
        except ServingError as error:
            raise StartError(f"{directory} cannot be used for {task}: {error}") from error

    def run(self, texts: Sequence[TokenizedInput], places: Sequence[list[int]]) -> list[Vectors]:
        if self._padding is None and len(texts) > 1:
            alone = [self.run([text], [one]) for text, one in zip(texts, places, strict=True)]
            return [rows for (rows,) in alone]
        shape = (len(texts), max(len(text.ids) for text in texts))
        ids = np.full(shape, self._padding or 0, np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, text in enumerate(texts):
            count = len(text.ids)
            ids[row, :count], types[row, :count], mask[row, :count] = text.ids, text.types, 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._has_types:
            inputs["token_type_ids"] = types
        found = compute(self._model, inputs, self._output)
        if found.ndim == 2:  # of a text, not of its tokens
            return [row[None] for row in found]
        return [rows[wanted] for rows, wanted in zip(found, places, strict=True)]

    def close(self) -> None:
        self._model = None


def _count_positions(model: Any) -> int:
    """Some models begin to count behind the row of the padding token."""
    most: int = getattr(model.config, "max_position_embeddings", None) or LONGEST
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return most - int(padding) - 1
    return most


def _find_token(model: Any, name: str) -> int | None:
    found = getattr(model.config, f"{name}_token_id", None)
    return found if isinstance(found, int) else None

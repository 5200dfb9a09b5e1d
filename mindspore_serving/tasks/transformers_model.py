"""Models of the transformers library on PyTorch: images, and text families without built-in code.

The library is imported when a model is opened.  It reads safetensors of the directory; it neither
runs code from there nor downloads any.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.core.tasks import UNIVERSAL
from mindspore_serving.errors import ServingError, StageFailed, StartError
from mindspore_serving.llm.catalog import TRANSFORMERS
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling, recommended_max_length
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import ARCHITECTURES
from mindspore_serving.llm.options import check_runtime
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput

CLASSES = {  # of tasks, and of architectures of these that have another
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "feature-extraction": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
    "depth-estimation": "AutoModelForDepthEstimation",
    "image-segmentation": "AutoModelForSemanticSegmentation",
    "zero-shot-object-detection": "AutoModelForZeroShotObjectDetection",
    **dict.fromkeys(UNIVERSAL, "AutoModelForUniversalSegmentation"),
}
DEFAULT_POSITIONS = 512  # tokens, if config.json does not say


def open_model(directory: Path, task: str, config: EngineConfig) -> Any:
    """Load a model with the library, ready to compute in float32.

    Raises StartError: the library is missing, weights are pickled, the architecture is unknown, or
    an option is not supported.
    """
    architecture = _check(read_json(directory / CONFIG), config)
    transformers, torch = import_libraries()
    from mindspore_serving.llm.runtimes.torch.opening import attention_of, open_device

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    transformers.logging.disable_progress_bar()
    try:
        settings = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        model, loaded = getattr(
            transformers, CLASSES.get(architecture, CLASSES[task])
        ).from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            config=settings,
            # "eager" misreads masks of Grounding DINO's text model; its other parts lack "sdpa".
            attn_implementation=attention_of(settings, "eager", text_config="sdpa"),
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no error classes of its own
        raise StartError(
            f"transformers cannot load {directory} for {task}: {error_text(error)}"
        ) from error
    missing = sorted(loaded["missing_keys"])
    if missing and task != "feature-extraction":  # whose pooler is not used and may be missing
        raise StartError(f"{directory} has no tensor {missing[0]!r}, which its model needs")
    return model.eval().to(open_device(config.device))


def import_libraries() -> tuple[Any, Any]:
    """Import transformers and torch.  Raises StartError if they are not installed."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "this model")) from error
    return transformers, torch


def compute(model: Any, inputs: Mapping[str, Any], output: str) -> Vectors:
    """Run one pass and return its output `output` as float32.  Raises StageFailed."""
    array: Vectors = apply_model(model, inputs)[output].float().cpu().numpy()
    return array


def apply_model(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Run one pass and return the library's outputs.  Raises StageFailed."""
    import torch

    try:
        with torch.inference_mode():
            return model(
                **{name: torch.as_tensor(x, device=model.device) for name, x in inputs.items()}
            )
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
        raise StageFailed(f"a pass of the model failed: {error_text(error)}") from error


def _check(fields: Mapping[str, Any], config: EngineConfig) -> str:
    """Return the architecture.  Raises StartError for a model or an option without support."""
    name: str = (fields.get("architectures") or [""])[0]
    if name in ARCHITECTURES:
        raise StartError(f"{name} generates text; declare it with declare_llm")
    if fields.get("quantization_config"):
        raise StartError(f"{name} is quantised; take the model's float checkpoint")
    check_runtime(config, TRANSFORMERS, (TRANSFORMERS,))
    return name


class TransformersTextModel:
    """`TextModel` of the transformers library."""

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
        """Open the model.  Raises StartError."""
        model = open_model(directory, task, config)
        num_positions = _count_positions(model)
        length = config.max_model_len or recommended_max_length(directory) or num_positions
        if (config.max_model_len or 0) > num_positions:
            raise StartError(
                f"max_model_len is {length}, but the model has {num_positions} positions"
            )
        try:
            return cls(directory, task, model, min(length, num_positions))
        except ServingError as error:
            raise StartError(f"{directory} cannot be used for {task}: {error}") from error

    def run(self, texts: Sequence[TokenizedInput], positions: Sequence[list[int]]) -> list[Vectors]:
        if self._padding is None and len(texts) > 1:
            pairs = zip(texts, positions, strict=True)
            outputs = [self.run([text], [indices]) for text, indices in pairs]
            return [rows for (rows,) in outputs]
        shape = (len(texts), max(len(text.ids) for text in texts))
        ids = np.full(shape, self._padding or 0, np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, text in enumerate(texts):
            count = len(text.ids)
            ids[row, :count], types[row, :count], mask[row, :count] = text.ids, text.types, 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._has_types:
            inputs["token_type_ids"] = types
        array = compute(self._model, inputs, self._output)
        if array.ndim == 2:  # one row per text, not per token
            return [row[None] for row in array]
        return [rows[indices] for rows, indices in zip(array, positions, strict=True)]

    def close(self) -> None:
        self._model = None


def _count_positions(model: Any) -> int:
    """Return the number of positions; some models begin to count after the padding token's row."""
    count: int = getattr(model.config, "max_position_embeddings", None) or DEFAULT_POSITIONS
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return count - int(padding) - 1
    return count


def _find_token(model: Any, name: str) -> int | None:
    token = getattr(model.config, f"{name}_token_id", None)
    return token if isinstance(token, int) else None

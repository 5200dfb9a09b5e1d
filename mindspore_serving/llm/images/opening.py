"""Opening of the readers and towers for images and sounds of a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import RUNTIMES
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import why_without_images
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.images.sound_formats import find_sound_format
from mindspore_serving.llm.images.sound_reader import open_sound_reader
from mindspore_serving.llm.images.torch_tower import check_libraries
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

ReadTokenizer: TypeAlias = Callable[[], Tokenizer | None]


def open_media(
    directory: Path, runtime: str, config: EngineConfig, read_tokenizer: ReadTokenizer
) -> dict[str, Any]:
    """Return `images`, `sounds` and `tower` of a model that takes images or sounds; else nothing.

    Raises StartError.
    """
    fields = find_config(directory)
    sees = config.max_images > 0 and find_prompt_format(fields) is not None
    hears = config.max_audios > 0 and find_sound_format(fields) is not None
    switches = [*(["max_images=0"] if sees else []), *(["max_audios=0"] if hears else [])]
    text_only = f"{' and '.join(switches)} serves it for texts only"
    if switches and runtime in RUNTIMES and not RUNTIMES[runtime].takes_images:
        able = ", ".join(name for name, row in RUNTIMES.items() if row.takes_images)
        kind = "images" if sees else "sounds"
        raise StartError(
            f"runtime {runtime!r} takes no {kind}, expected one of {able}; {text_only}"
        )
    if (
        not sees
        and is_gguf(directory)
        and config.max_images
        and (why := why_without_images(directory))
    ):
        log.warning("%s: the model is served without images: %s", directory.name, why)
    if not switches:
        return {}
    tokenizer = read_tokenizer()
    try:
        sounds = open_sound_reader(directory, tokenizer, config) if hears else None
    except StartError as error:
        raise StartError(f"{error}; max_audios=0 serves it without sounds") from error
    if sees:
        try:
            check_libraries(fields.get("model_type", ""))
        except StartError as error:
            raise StartError(f"{error}; max_images=0 serves it without images") from error
    try:
        images = open_reader(directory, tokenizer, config) if sees else None
        if images is None and sounds is None:
            return {}
        tower = Tower.open(directory, config, runtime)
    except StartError as error:
        raise StartError(f"{error}; {text_only}") from error
    return {"images": images, "sounds": sounds, "tower": tower}

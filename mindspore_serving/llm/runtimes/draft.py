"""Opening a model together with its draft model: a smaller one with the same tokenizer, whose
guesses the other verifies.
"""

from dataclasses import replace
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf, is_gguf
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.quantized.methods import quantization_of, read_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Runner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer, has_tokenizer

_SHOWN = 3  # tokens that differ, in an error


def open_runners(
    directory: Path, runtime: str, config: EngineConfig, tokenizer: Tokenizer | None
) -> tuple[Runner, Runner | None]:
    """The model in `directory`, ready to run, and its draft model if `config` has one.

    Raises StartError as `open_runner`, or if the two do not go together.
    """
    if config.draft is None:
        return open_runner(directory, runtime, config), None
    draft = find_gguf(Path(config.draft)) or Path(config.draft)
    if not draft.is_dir() and not is_gguf(draft):
        raise StartError(f"draft is {str(draft)!r}, expected a model's directory or a GGUF file")
    specs = _specs(directory, draft)
    _check_vocabularies(draft, tokenizer, specs)
    own, other = _divided(config, draft, specs)
    runner = open_runner(directory, runtime, own)
    try:
        return runner, _open_draft(draft, runtime, other, runner)
    except BaseException:
        runner.close()
        raise


def _open_draft(draft: Path, runtime: str, config: EngineConfig, large: Runner) -> Runner:
    try:
        runner = open_runner(draft, runtime, config)
    except StartError as error:
        raise StartError(f"draft {str(draft)!r}: {error}") from error
    if runner.block_size != large.block_size:
        sizes = f"{runner.block_size} tokens, and those of the model {large.block_size}"
        runner.close()
        raise StartError(f"draft {str(draft)!r} has cache blocks of {sizes}, expected the same")
    return runner


def _specs(directory: Path, draft: Path) -> tuple[ModelSpec, ModelSpec]:
    """Of the model and its draft.  Raises StartError for one that cannot verify, or guess."""
    large, small = (load_definition(find_config(path))[0] for path in (directory, draft))
    for name, spec in (("the model", large), ("draft", small)):
        if spec.state is not None:
            raise StartError(
                f"draft is {str(draft)!r}, but {name} ({spec.architecture}) has layers with a "
                "state, which a wrong guess would spoil; leave draft out"
            )
    return large, small


def _check_vocabularies(
    draft: Path, tokenizer: Tokenizer | None, specs: tuple[ModelSpec, ModelSpec]
) -> None:
    """Raises StartError unless both models have the same tokens."""
    if tokenizer is None or not has_tokenizer(draft):
        sizes = tuple(spec.vocab_size for spec in specs)
        if sizes[0] != sizes[1]:
            raise StartError(
                f"draft {str(draft)!r} has {sizes[1]} tokens and the model {sizes[0]}, and one of "
                "them has no tokenizer to compare: expected a draft with the same tokenizer"
            )
        return
    own, others = tokenizer.vocabulary(), Tokenizer.open(draft).vocabulary()
    if own == others:
        return
    wrong = sorted(dict(own.items() ^ others.items()))
    shown = ", ".join(
        f"{token!r} (model: {own.get(token)}, draft: {others.get(token)})"
        for token in wrong[:_SHOWN]
    )
    raise StartError(
        f"draft {str(draft)!r} has another tokenizer: {len(wrong)} tokens differ, as {shown}; "
        "expected a smaller model of the same family"
    )


def _divided(
    config: EngineConfig, draft: Path, specs: tuple[ModelSpec, ModelSpec]
) -> tuple[EngineConfig, EngineConfig]:
    """The options of the model and those of its draft, so that the caches of both hold as many
    tokens.
    """
    large, small = specs
    longest = config.max_model_len or large.max_position_embeddings
    is_quantised = is_gguf(draft) or quantization_of(read_config(draft))
    plain = replace(
        config,
        draft=None,
        adapters={},
        max_loras=0,
        max_images=0,
        prefix_cache_dir=None,
        deterministic=False,  # a guess need not be the same to the bit
        max_model_len=min(longest, small.max_position_embeddings),
        quantization=None if is_quantised else config.quantization,
    )
    if config.kv_cache_memory is None:
        return config, plain
    sizes = [len(spec.attention_layers) * spec.kv_size for spec in specs]
    taken = config.kv_cache_memory * sizes[1] // sum(sizes)
    own = replace(config, kv_cache_memory=max(1, config.kv_cache_memory - taken))
    return own, replace(plain, kv_cache_memory=max(1, taken))

"""Checks of options of engines that depend on each other.  Imports nothing heavy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore_serving.errors import InvalidInputs

MAX_RANKS = 64
LEVELS = ("prefix_cache_dir", "prefix_cache_store")


def check_together(config: Any) -> None:
    """Raise InvalidInputs for options of an `EngineConfig` that exclude each other."""
    check_prefix_cache(
        {name: getattr(config, name) for name in LEVELS},
        pins_prompts=bool(config.pinned_prompts), is_on=config.enable_prefix_caching,
    )  # fmt: skip
    check_adapters(config.adapters, config.max_loras)
    check_draft(config.draft, config.num_speculative_tokens, config.num_ranks, has_head=config.mtp)
    check_projector(config.mmproj, config.max_images)
    check_steps(config.max_num_batched_tokens, config.max_num_seqs)
    check_grid(config.tensor_parallel, config.pipeline_parallel, config.pipeline_groups)
    check_experts(config.expert_counts, config.expert_replicas, is_on=config.expert_parallel)
    check_ngrams(config.min_ngram, config.max_ngram)


def check_prefix_cache(
    levels: Mapping[str, str | None], *, pins_prompts: bool, is_on: bool
) -> None:
    """Raise InvalidInputs for an option of the prefix cache that another option excludes.

    `levels` are the values of the options in `LEVELS`; `is_on` is `enable_prefix_caching`.
    """
    if pins_prompts and not is_on:
        raise InvalidInputs("pinned_prompts is set, which needs enable_prefix_caching")
    for name, value in levels.items():
        if not value:
            continue
        setting = f"{name} is {str(value)!r}" if name == LEVELS[0] else f"{name} is set"
        if not is_on:
            raise InvalidInputs(f"{setting}, which needs enable_prefix_caching")
        if name == LEVELS[1] and not value.partition("://")[2]:
            raise InvalidInputs(
                "prefix_cache_store is no URL, expected one as rediss://HOST:6379/0, "
                "file:///DIRECTORY or s3://BUCKET/PREFIX"
            )


def check_adapters(adapters: Any, max_loras: int) -> None:
    """Raise InvalidInputs unless `adapters` are directories by name that `max_loras` allows."""
    if not isinstance(adapters, Mapping):
        raise InvalidInputs(f"adapters is {adapters!r}, expected name -> directory")
    if 0 < max_loras < len(adapters):
        raise InvalidInputs(
            f"max_loras is {max_loras}, expected at least {len(adapters)}, the number of adapters"
        )


def check_projector(projector: str | None, max_images: int) -> None:
    """Raise InvalidInputs for an empty path of a vision tower, or for one that no image needs."""
    if projector == "":
        raise InvalidInputs("mmproj is '', expected the path of a GGUF file; leave it out for none")
    if projector is not None and not max_images:
        raise InvalidInputs(
            f"mmproj is {projector!r}, which excludes max_images=0: leave out either"
        )


def check_steps(num_tokens: int, num_sequences: int) -> None:
    """Raise InvalidInputs if a step cannot compute a token of every sequence."""
    if num_tokens < num_sequences:
        raise InvalidInputs(
            f"max_num_batched_tokens is {num_tokens}, expected at least "
            f"max_num_seqs={num_sequences}: every sequence computes a token in a step"
        )


def check_grid(tensor_parallel: int, pipeline_parallel: int, groups: int | None) -> None:
    """Raise InvalidInputs for more than `MAX_RANKS` ranks, or `groups` for no stages."""
    if groups is not None and pipeline_parallel == 1:
        raise InvalidInputs(
            f"pipeline_groups is {groups}, but pipeline_parallel is 1: give both, or leave it out"
        )
    if tensor_parallel * pipeline_parallel > MAX_RANKS:
        raise InvalidInputs(
            f"tensor_parallel is {tensor_parallel} and pipeline_parallel "
            f"{pipeline_parallel}, expected at most {MAX_RANKS} ranks together"
        )


def check_experts(counts: str, replicas: int, *, is_on: bool) -> None:
    """Raise InvalidInputs for options that need `expert_parallel`, which `is_on`, or each other."""
    if counts and not is_on:
        raise InvalidInputs(f"expert_counts is {counts!r}, which needs expert_parallel=True")
    if replicas and not counts:
        raise InvalidInputs(
            f"expert_replicas is {replicas}, which needs expert_counts, the file that tells which "
            "experts are the hottest"
        )


def check_ngrams(minimum: int, maximum: int) -> None:
    """Raise InvalidInputs for a range of lengths that is empty."""
    if maximum < minimum:
        raise InvalidInputs(f"max_ngram is {maximum}, expected at least min_ngram={minimum}")


def check_draft(
    draft: Any, num_speculative_tokens: int | None, num_ranks: int, *, has_head: bool
) -> None:
    """Raise InvalidInputs for a `draft` or a prediction head that another option excludes."""
    if draft is None and not has_head:
        return
    if draft is not None and not (isinstance(draft, str | Path) and str(draft)):
        raise InvalidInputs(f"draft is {draft!r}, expected a directory or a GGUF file")
    setting = "mtp is True" if has_head else f"draft is {str(draft)!r}"
    reasons = {
        "draft, which proposes tokens as well": has_head and draft is not None,
        "num_speculative_tokens=0, which allows no drafts": num_speculative_tokens == 0,
        "tensor_parallel or pipeline_parallel, whose ranks share one model": num_ranks > 1,
    }
    for reason, applies in reasons.items():
        if applies:
            raise InvalidInputs(f"{setting}, which excludes {reason}: leave out either")

"""A loaded language model in numbers and names."""

import msgspec

UPSTREAM = "openai"
"""The engine of a language model that another server has: there is no directory of it."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded language model, as front ends and people see it.

    `tool_format` and `reasoning_format` name rows of `llm.chat`'s tables, "" if the chat template
    shows none; the tool format "generic" is that of models whose template has none.
    `unmarked_calls` if what a model writes without the markers of its format may be a call.
    `sampling` are fields of SamplingParams, as the model's authors recommend.

    `labels` are those of a classifier, in the order of its outputs; `problem` says what its logits
    are, as problem_type in config.json; `reads_instructions` if it judges documents by a text.

    `pooling` is how states become a vector.  `prompts` are instructions that are put in front of
    texts to embed, by name; `default_prompt` is the one that is taken if a request names none.
    `dimensions` are how many numbers of a vector a request may have; `any_dimensions` if any.
    """

    architecture: str
    runtime: str
    dtype: str
    quantization: str
    max_model_len: int
    vocab_size: int
    can_generate: bool
    can_embed: bool = False
    embedding_size: int
    has_chat_template: bool
    tool_format: str
    reasoning_format: str
    adapters: tuple[str, ...]  # names of LoRA adapters
    eos_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int | None
    created: int  # seconds since 1970: when it was loaded
    sampling: tuple[tuple[str, int | float], ...] = ()
    adapter_paths: tuple[str, ...] = ()  # their directories
    can_score: bool = False
    labels: tuple[str, ...] = ()
    problem: str = ""
    reads_instructions: bool = False
    pooling: str = ""
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str = ""
    dimensions: tuple[int, ...] = ()
    any_dimensions: bool = False
    takes_images: bool = False  # prompts may have images
    unmarked_calls: bool = False
    num_ranks: int = 1  # processes over which a worker cuts it
    summary: str = ""  # one line for people: what was chosen, and what it can hold

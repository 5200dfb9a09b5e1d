"""Description of a loaded language model."""

import msgspec

UPSTREAM = "openai"
"""Engine of a language model of another server, which has no directory here."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a loaded language model, for front ends and people.

    `tool_format` and `reasoning_format` name rows of `llm.chat`'s tables, "" if the chat template
    has none; the tool format "generic" is that of models whose template has no tools. With
    `unmarked_calls`, output without the markers of the format may be a tool call. `sampling` are
    the sampling parameters of requests that leave them out, with their `sampling_source`: "model",
    "server" or "operator"; none for an upstream. Its `sampling_cuts` do not apply to requests that
    set both `temperature` and `top_p`. `default_max_tokens` is the operator's limit of
    such answers.

    `labels` are those of a classifier, in the order of its outputs; `problem` is problem_type in
    config.json, which tells what its logits are; `reads_instructions` if it judges documents by an
    instruction.

    `pooling` is how states become a vector. `prompts` are instructions for texts to embed, by name,
    of which `default_prompt` is the default. `dimensions` are the sizes of vectors that a request
    may choose; `any_dimensions` if all are possible.
    """

    architecture: str
    runtime: str
    dtype: str
    quantization: str
    max_model_len: int
    max_prompt_len: int = 0  # of an encoder that reads the prompts; 0: there is none
    vocab_size: int
    can_generate: bool
    can_embed: bool = False
    can_transcribe: bool = False  # transcribes speech
    can_speak: bool = False  # synthesizes speech
    voices: tuple[str, ...] = ()  # that speak
    languages: tuple[str, ...] = ()  # of speech or of translations, by code
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
    sampling: tuple[tuple[str, bool | int | float], ...] = ()
    sampling_source: str = ""
    sampling_cuts: tuple[str, ...] = ()
    default_max_tokens: int | None = None
    thinking_token_budget: int | None = None  # of requests that have none
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
    takes_images: bool = False  # prompts may contain images
    takes_sounds: bool = False  # and sounds
    reads_files: bool = False  # messages may contain PDF files and texts
    has_tokenizer: bool = True  # else prompts and completions are token ids
    unmarked_calls: bool = False
    system_message: str = ""  # of conversations that have none
    num_ranks: int = 1  # processes of a worker that share the model
    summary: str = ""  # a line for people: dtype, cache and other choices
    memory: str = ""  # the same: how much memory the cache may take, why, and how to change it

    @property
    def embeds_chats(self) -> bool:
        """True if texts and images are embedded as conversations, by the chat template."""
        return self.can_embed and self.takes_images and self.has_chat_template

    @property
    def longest_prompt(self) -> int:
        """Maximum number of tokens of a prompt, with room for one of the answer."""
        return min(self.max_prompt_len or self.max_model_len, self.max_model_len - 1)

    @property
    def defaults(self) -> dict[str, bool | int | float]:
        """Sampling parameters of requests that leave them out, as a new dict."""
        limit = self.default_max_tokens
        return dict(self.sampling) | ({} if limit is None else {"max_tokens": limit})

"""Request of a worker that decodes to one that computes prompts, and the events that answer it."""

import msgspec


class PromptVectors(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Images and sounds of a prompt: vectors in place of the embeddings of its tokens.

    Arrays are bytes of little-endian numbers.  `positions` are int64; `digests` are those of the
    images, which have `counts` positions each; `vectors` are float32, [positions, width];
    `rope_positions` are int32, [tokens, 3], empty where they are those of the tokens.
    """

    positions: bytes
    digests: list[bytes]
    counts: list[int]
    vectors: bytes
    rope_positions: bytes = b""
    is_bidirectional: bool = False
    fill_id: int | None = None


class Prefill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="prefill"):
    """Request of a worker that decodes to one that computes prompts.

    The blocks of `prompt`, all of which are full, are written to the memory `path`, whose file is
    called `name`, but for the `num_cached` first ones; behind them the state, if layers have one.
    From a machine other than `machine` they are sent to `host` ("" for the server's machine) and
    `port`; 0 accepts none.  Blocks are of `model`, and of the LoRA adapter `adapter` if its
    contents have the key `adapter_key`.  `images` are those among the tokens.
    """

    prompt: list[int]
    path: str
    name: str
    machine: str = ""
    host: str = ""
    port: int = 0
    model: str = ""
    adapter: str = ""
    adapter_key: str = ""
    num_cached: int = 0
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    images: PromptVectors | None = None


class BlocksWritten(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Number of blocks of a `Prefill` that have been written, in all, with pieces of the state.

    The worker had the `num_cached` first blocks of the prompt before.  `seconds` have passed since
    it got the request; a block takes it `block_seconds` to compute, 0 if that is not known.
    """

    count: int
    num_cached: int = 0
    seconds: float = 0.0
    block_seconds: float = 0.0

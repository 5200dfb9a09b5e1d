"""A prompt that this worker computes for another one, which decodes."""

from collections.abc import Sequence
from typing import Any

from mindspore_serving.core.llm_messages import BlocksWritten, Event, Prefill
from mindspore_serving.core.sampling_params import Generated, SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.handoff import full_blocks
from mindspore_serving.llm.serving.generation import Command
from mindspore_serving.llm.storage.block_memory import BlockMemory


class PrefillEvents:
    """Makes events of the blocks of a prompt as they are written."""

    def __init__(self, request_id: str, request: Prefill) -> None:
        self.request_ids = (request_id,)
        self.is_done = False
        self._request = request

    def prepare(self, request: Prefill, *_: Any) -> list[tuple[str, Command]]:
        """Return the command to the engine, which computes the prompt and a token behind it."""
        request_id = self.request_ids[0]

        def add(engine: Any) -> None:
            try:
                memory = BlockMemory.open(request.path, request.name, engine.runner.block_bytes)
            except OSError as error:
                raise ServingError(f"the memory for the prompt is gone: {error}") from error
            try:
                engine.add(
                    request_id,
                    request.prompt,
                    SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
                    cache_salt=request.cache_salt,
                    priority=request.priority,
                    tenant=request.tenant,
                )
                digests = full_blocks(engine, request.prompt, request.cache_salt)
            except BaseException:
                memory.close()
                raise
            engine.exports.begin(request_id, digests[request.num_cached :], memory)

        return [(request_id, add)]

    def take(self, request_id: str, output: Any) -> Sequence[Event]:
        """Return the events that `output` makes."""
        if isinstance(output, BlocksWritten):
            return [output]
        self.is_done = isinstance(output, Generated) and output.finish_reason is not None
        return []

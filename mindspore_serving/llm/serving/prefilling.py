"""A prompt that this worker computes for another one, which decodes."""

from collections.abc import Sequence
from typing import Any

from mindspore_serving.core.llm_messages import Event
from mindspore_serving.core.prefill_messages import BlocksWritten, Prefill
from mindspore_serving.core.sampling_params import FinishReason, Generated, SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.handoff import BlocksSent, full_blocks
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.serving.engine_loop import Loop
from mindspore_serving.llm.serving.generation import Command
from mindspore_serving.llm.storage.block_links import BlockLinks
from mindspore_serving.llm.storage.block_memory import BlockMemory, BlockWriter


class PrefillEvents:
    """Makes events of the blocks of a prompt as they are written.

    `links` are those to workers on other machines; None if there are none.
    """

    def __init__(
        self, request_id: str, request: Prefill, loop: Loop[Any], links: BlockLinks | None
    ) -> None:
        self.request_ids = (request_id,)
        self._request, self._loop, self._links = request, loop, links
        self._is_computed = self._is_sent = False

    @property
    def is_done(self) -> bool:
        """True if the prompt is computed and its blocks are where they were to go, or it failed."""
        return self._is_computed and self._is_sent

    def prepare(self, request: Prefill, *_: Any) -> list[tuple[str, Command]]:
        """Return the command to the engine, which computes the prompt and a token behind it."""
        request_id = self.request_ids[0]

        def add(engine: Any) -> None:
            try:
                writer = self._open_writer(engine.runner.block_bytes)
            except OSError as error:
                raise ServingError(f"the blocks of the prompt cannot be sent: {error}") from error
            try:
                adapter = _find_adapter(engine, request)
                images = PromptImages.received(request.images) if request.images else None
                engine.add(
                    request_id,
                    request.prompt,
                    SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
                    cache_salt=request.cache_salt,
                    priority=request.priority,
                    tenant=request.tenant,
                    adapter=adapter,
                    images=images,
                )
                salt = request.cache_salt
                digests = full_blocks(engine, request.prompt, salt, adapter, images)
            except BaseException:
                writer.close()
                raise
            engine.exports.begin(request_id, digests, writer, request.num_cached)

        return [(request_id, add)]

    def take(self, request_id: str, output: Any) -> Sequence[Event]:
        """Return the events that `output` makes."""
        if isinstance(output, BlocksWritten):
            return [output]
        self._is_sent = self._is_sent or isinstance(output, BlocksSent)
        if isinstance(output, Generated) and output.finish_reason is not None:
            self._is_computed = True
            self._is_sent = self._is_sent or output.finish_reason is FinishReason.ERROR
        return []

    def _open_writer(self, block_bytes: int) -> BlockWriter:
        request, request_id = self._request, self.request_ids[0]
        if self._links is None:
            return BlockMemory.open(request.path, request.name, block_bytes)

        def on_change() -> None:
            self._loop.post(request_id, lambda engine: engine.exports.advance(request_id))

        return self._links.open_writer(request, block_bytes, on_change)


def _find_adapter(engine: Any, request: Prefill) -> int:
    """Return the number of the adapter of a request, 0 for none.  Raises ServingError."""
    if not request.adapter:
        return 0
    number: int = engine.adapters.find(request.adapter)
    if engine.adapters.key_of(request.adapter) != request.adapter_key:
        raise ServingError(f"this worker has another adapter {request.adapter!r}")
    return number

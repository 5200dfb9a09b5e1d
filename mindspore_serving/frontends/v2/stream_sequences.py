"""Sequences of a stream: a request that names none belongs to that of its stream and model."""

import uuid
from dataclasses import replace

from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.service import Inference, Reply, Request
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.v2.request import InferRequest


class StreamSequences:
    """Sequences that begin with the first request to a model, and end with the stream."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._id = f"stream {uuid.uuid4().hex}"
        self._open: dict[str, V2Model] = {}  # by name of the model

    def bind(self, model: V2Model, request: InferRequest) -> InferRequest:
        """Return a request with the step of this stream, if its model has a state."""
        if not model.signature.has_state or request.parameters.get("sequence_id"):
            return request
        is_start = model.name not in self._open
        self._open[model.name] = model
        return replace(request, stream_step=SequenceStep(self._id, is_start))

    def failed(self, model: V2Model, request: InferRequest) -> None:
        """Handle the failure of a request: the next one begins what it has not begun."""
        if request.stream_step is not None and request.stream_step.is_start:
            self._open.pop(model.name, None)

    def end(self) -> None:
        """End the sequences that are open."""
        step = SequenceStep(self._id, is_end=True)
        for model in self._open.values():
            target = model.servable, model.method, model.requested
            self._inference.submit(Request(*target, "ms_proto", b"", sequence=step), _ignore)
        self._open.clear()


def _ignore(reply: Reply) -> None:
    """Take the reply to the end of a sequence, which may have failed to begin."""

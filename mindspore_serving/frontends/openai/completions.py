"""POST /v1/completions."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.generation import MAX_SEQUENCES
from mindspore_serving.core.llm_messages import Chunk, Finished, Generate, PromptScored
from mindspore_serving.frontends.disconnect import Owned, while_there
from mindspore_serving.frontends.language import LanguageModel, RefusedError, Stream
from mindspore_serving.frontends.openai import sampling
from mindspore_serving.frontends.openai.completion_choices import (
    Echo,
    Showing,
    best,
    to_choice,
    to_echo,
)
from mindspore_serving.frontends.openai.completion_stream import (
    CompletionChunks,
    stream_completions,
)
from mindspore_serving.frontends.openai.endpoint import timeout_of
from mindspore_serving.frontends.openai.envelope import (
    Head,
    find_generator,
    make_head,
    to_usage,
)
from mindspore_serving.frontends.openai.errors import WrongField, to_wrong_field
from mindspore_serving.frontends.openai.logprobs import MAX_COMPLETION
from mindspore_serving.frontends.openai.merging import begin_all
from mindspore_serving.frontends.openai.prompts import to_prompts
from mindspore_serving.frontends.openai.requests import (
    CompletionRequest,
    has_usage,
    refuse_unsupported,
)
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream

DEFAULT_MAX_TOKENS = 16


async def answer(site: Site, request: Request, asked: CompletionRequest) -> Response:
    """The answer to one or several prompts: one object, or a stream of chunks."""
    model = find_generator(site.models, asked.model)
    wants_usage = has_usage(asked)
    asks, showing = to_asks(asked, model)
    head, timeout = make_head("cmpl", model), timeout_of(request)
    with ExitStack() as stack:
        streams = [stack.enter_context(model.generate(ask, timeout)) for ask in asks]
        try:
            begun = await while_there(request, begin_all(streams))
        except RefusedError as error:
            raise to_wrong_field(error, "prompt", sampling.grammar_param(asked)) from None
        echoes = [
            to_echo(ask.prompt or "", one, showing) for ask, one in zip(asks, begun, strict=True)
        ]
        if asked.stream:
            chunks = CompletionChunks(head, showing, echoes, has_usage=wants_usage)
            return EventStream(Owned(stream_completions(streams, chunks), stack.pop_all()))
        whole = await while_there(request, _collect(streams, echoes, head, showing))
    return Response(msgspec.json.encode(whole), media_type="application/json")


def to_asks(asked: CompletionRequest, model: LanguageModel) -> tuple[list[Generate], Showing]:
    """What to ask the model for each prompt, and what to show of it.  Raises InvalidInputs."""
    refuse_unsupported(asked)
    showing, best_of = _showing(asked), _best_of(asked)
    has_tokens = showing.has_logprobs or best_of > showing.n
    params = sampling.to_params(
        asked,
        model.card,
        max_tokens=_max_tokens(asked, showing),
        n=best_of,
        logprobs=(asked.logprobs or 0) if has_tokens else None,
        prompt_logprobs=asked.logprobs if showing.echo else None,
    )
    truncate = sampling.to_truncate(asked)
    grammar = sampling.to_grammar(asked)
    return [
        Generate(
            prompt=prompt,
            params=params,
            grammar=grammar,
            truncate=truncate,
            add_special=asked.add_special_tokens is not False,
            is_stream=bool(asked.stream),
            has_tokens=has_tokens,
            has_prompt_tokens=showing.echo and (isinstance(prompt, list) or truncate is not None),
            must_fit=bool(asked.max_tokens),
            adapter=model.adapter,
            cache_salt=asked.cache_salt or "",
            priority=asked.priority or 0,
        )
        for prompt in to_prompts(asked.prompt, model.card)
    ], showing


def _showing(asked: CompletionRequest) -> Showing:
    count = asked.logprobs
    if count is not None and not 0 <= count <= MAX_COMPLETION:
        raise WrongField("logprobs", f"logprobs is {count}, expected 0 to {MAX_COMPLETION}")
    return Showing(
        n=1 if asked.n is None else asked.n,
        echo=bool(asked.echo),
        has_logprobs=count is not None,
        shows_special=asked.skip_special_tokens is False,
        has_answer=asked.max_tokens != 0,
    )


def _best_of(asked: CompletionRequest) -> int:
    n = 1 if asked.n is None else asked.n
    if asked.best_of is None:
        return n
    if not n <= asked.best_of <= MAX_SEQUENCES:
        raise WrongField(
            "best_of", f"best_of is {asked.best_of}, expected n={n} to {MAX_SEQUENCES}"
        )
    if asked.stream and asked.best_of > n:
        raise WrongField(
            "best_of",
            f"best_of is {asked.best_of} and n is {n}: a stream cannot choose among answers, "
            "expected both the same",
        )
    return asked.best_of


def _max_tokens(asked: CompletionRequest, showing: Showing) -> int:
    """An echo alone needs one token too: what asks for none never reaches the model's scores."""
    count = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    if count < 0 or (count == 0 and not showing.echo):
        raise WrongField(
            "max_tokens", f"max_tokens is {count}, expected at least 1, or 0 with echo: true"
        )
    return max(1, count)


async def _collect(
    streams: Sequence[Stream], echoes: Sequence[Echo], head: Head, showing: Showing
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    ended: list[Finished] = []
    for stream, echo in zip(streams, echoes, strict=True):  # all are under way together
        pieces = []
        async for event in stream:
            if isinstance(event, Chunk):
                pieces.append(event)
            elif isinstance(event, PromptScored):
                echo.tokens += event.tokens
            elif isinstance(event, Finished):
                ended.append(event)
        for piece in best(pieces, showing.n):
            choices.append(to_choice(len(choices), piece, echo, showing))
    return {
        **head.to_object("text_completion"),
        "choices": choices,
        "usage": to_usage(ended, has_answer=showing.has_answer),
    }

"""POST /v1/completions."""

from collections.abc import Sequence
from contextlib import ExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    PromptScored,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import capped_header, field_of_length
from mindspore_serving.frontends.chat.models import Generation, ServedModel, find_generator
from mindspore_serving.frontends.chat.prompts import to_prompts
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.answers import ChunkHead, CompletionChoice, OpenAICompletion
from mindspore_serving.frontends.openai.completion_choices import (
    CompletionChunks,
    CompletionResponseOptions,
    Echo,
    begin_all,
    best,
    stream_completions,
    to_choice,
    to_echo,
)
from mindspore_serving.frontends.openai.envelope import make_head, to_usage
from mindspore_serving.frontends.openai.fields import COMPLETIONS
from mindspore_serving.frontends.openai.requests import CompletionRequest, has_usage
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream


async def answer(state: AppState, http: Request, body: CompletionRequest) -> Response:
    """Answer one or several prompts with one object, or with a stream of chunks."""
    model = find_generator(state.models, body.model)
    wants_usage = has_usage(body)
    requests, options = to_requests(body, model), _response_options(body)
    head = make_head("cmpl", "text_completion", model)
    request_options = request_options_of(http)
    with ExitStack() as stack:
        with renaming_fields("prompt", COMPLETIONS, body):
            generations = [
                stack.enter_context(model.generate(request, request_options))
                for request in requests
            ]
            started = await while_connected(http, begin_all(generations))
        echoes = [
            to_echo(request.prompt or "", event, options)
            for request, event in zip(requests, started, strict=True)
        ]
        headers = capped_header(field_of_length(COMPLETIONS, body), *started)
        if body.stream:
            chunks = CompletionChunks(head, options, echoes, has_usage=wants_usage)
            events = stream_completions(generations, chunks)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)
        completion = await while_connected(http, _collect(generations, echoes, head, options))
    return to_json(completion, headers=headers)


def to_requests(body: CompletionRequest, model: ServedModel) -> list[Generate]:
    """Translate the body to one request to the model for each prompt.

    Raises InvalidField.
    """
    COMPLETIONS.refuse(body)
    params = COMPLETIONS.params(body, model.card, model.card.defaults)
    options = COMPLETIONS.options(body, model.card)
    is_cut = "truncate" in options
    return [
        Generate(
            prompt=prompt,
            suffix=body.suffix or None,
            params=params,
            add_special=body.add_special_tokens is not False,
            is_stream=bool(body.stream),
            has_tokens=params.logprobs is not None or bool(body.return_token_ids),
            has_prompt_tokens=bool(body.return_token_ids)
            or (bool(body.echo) and (isinstance(prompt, list) or is_cut)),
            adapter=model.adapter,
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
            **options,
        )
        for prompt in to_prompts(body.prompt, model.card)
    ]


def _response_options(body: CompletionRequest) -> CompletionResponseOptions:
    return CompletionResponseOptions(
        n=1 if body.n is None else body.n,
        echo=bool(body.echo),
        has_logprobs=body.logprobs is not None,
        shows_special=body.skip_special_tokens is False,
        has_answer=body.max_tokens != 0,
        is_cut=body.truncate_prompt_tokens is not None,
        has_ids=bool(body.return_token_ids),
        num_prompt_logprobs=body.prompt_logprobs,
    )


async def _collect(
    generations: Sequence[Generation],
    echoes: Sequence[Echo],
    head: ChunkHead,
    options: CompletionResponseOptions,
) -> OpenAICompletion:
    """Return the complete answers of `generations`, which have begun."""
    choices: list[CompletionChoice] = []
    finished: list[Finished] = []
    for generation, echo in zip(generations, echoes, strict=True):  # all run concurrently
        chunks = []
        async for event in generation:
            if isinstance(event, Chunk):
                chunks.append(event)
            elif isinstance(event, PromptScored):
                echo.tokens += event.tokens
            elif isinstance(event, Finished):
                finished.append(event)
        for chunk in best(chunks, options.n):
            choices.append(to_choice(len(choices), chunk, echo, options))
    usage = to_usage(finished, has_answer=options.has_answer)
    return OpenAICompletion(**msgspec.structs.asdict(head), choices=choices, usage=usage)

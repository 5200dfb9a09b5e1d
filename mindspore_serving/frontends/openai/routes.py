"""Routes of OpenAI's protocol, and vLLM's additional ones."""

from functools import partial

from mindspore_serving.core.speech_messages import SOUND_FORMATS
from mindspore_serving.frontends.chat.errors import Error, to_response
from mindspore_serving.frontends.chat.tools import find_unread as find_unread_tools
from mindspore_serving.frontends.forms import FORM
from mindspore_serving.frontends.openai import (
    adapters,
    answers,
    chat,
    completions,
    embeddings,
    models,
    realtime,
    requests,
    responses,
    scores,
    speech,
    state_routes,
    stored_responses,
    tokens,
    transcriptions,
)
from mindspore_serving.frontends.openai.compacting import FIELDS as COMPACTING
from mindspore_serving.frontends.openai.compacting import compact
from mindspore_serving.frontends.openai.fields import CHAT, COMPLETIONS, EMBEDDINGS
from mindspore_serving.frontends.openai.response_fields import RESPONSES, find_unread
from mindspore_serving.frontends.openai.response_requests import CompactRequest, ResponseRequest
from mindspore_serving.frontends.openai.stored_responses import BASE, COMPACT, COUNT
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    MODEL,
    STRING,
    TEXT,
    Body,
    ModelReady,
)
from mindspore_serving.frontends.routes import (
    EMBEDDING,
    GENERATING,
    LANGUAGE,
    HttpProtocol,
    HttpRoute,
)

PROTOCOL = HttpProtocol(
    "openai",
    to_response,
    title="OpenAI",
    about="OpenAI's protocol, for language models.",
    errors={JSON: Error},
)
_HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
_RESPONSE = {"model": MODEL, "input": "Hello", "max_output_tokens": 8}
_STORED = f"{BASE}/{{name}}"
_SOUND = {"type": "string", "format": "binary"}
_RATES = "Score how well texts fit a query, with a reranker"
_LABELS = "Classify texts"

_route = partial(HttpRoute, protocol=PROTOCOL, needs=LANGUAGE)
_post = partial(_route, "POST", decodes=True)


def _generating() -> tuple[HttpRoute, ...]:
    return (
        _post(
            "/v1/chat/completions",
            chat.answer,
            "Answer a chat; with `stream`, as events",
            {JSON: answers.ChatCompletion, EVENTS: EVENT},
            body=Body(requests.OpenAIChatRequest, {requests.OpenAIChatRequest: CHAT}, _HELLO),
            find_ignored=partial(find_unread_tools, "/v1/chat/completions"),
            refused_early=GENERATING,
        ),
        _post(
            "/v1/completions",
            completions.answer,
            "Continue a text; with `stream`, as events",
            {JSON: answers.OpenAICompletion, EVENTS: EVENT},
            body=Body(
                requests.CompletionRequest,
                {requests.CompletionRequest: COMPLETIONS},
                {"model": MODEL, "prompt": "Hello", "max_tokens": 8},
            ),
            refused_early=GENERATING,
        ),
        _post(
            BASE,
            responses.answer,
            "Create a response; with `stream`, as events",
            {JSON: answers.OpenAIResponse, EVENTS: EVENT},
            body=Body(ResponseRequest, {ResponseRequest: RESPONSES}, _RESPONSE),
            find_ignored=find_unread,
            refused_early=GENERATING,
        ),
        _post(
            COUNT,
            responses.count,
            "Count the tokens of a response's input",
            {JSON: answers.InputTokens},
            body=Body(ResponseRequest, {ResponseRequest: RESPONSES}, _RESPONSE),
        ),
        _post(
            COMPACT,
            compact,
            "Shorten a conversation to the users' messages and a summary",
            {JSON: answers.Compacted},
            body=Body(CompactRequest, {CompactRequest: COMPACTING}),
        ),
    )


def _stored() -> tuple[HttpRoute, ...]:
    stored = partial(_route, path=_STORED, applies=stored_responses.is_stored_response)
    return (
        stored(
            "GET",
            handler=stored_responses.get_stored,
            summary="Get a stored response",
            answers={JSON: answers.OpenAIResponse},
            query=("stream", "starting_after"),
        ),
        stored(
            "DELETE",
            summary="Delete a stored response",
            answers={JSON: answers.Deleted},
            handler=stored_responses.delete,
        ),
        stored("POST", summary="Always 404: no such route", handler=stored_responses.refuse_post),
        _route(
            "POST",
            f"{_STORED}/cancel",
            stored_responses.cancel,
            "Cancel a response that runs in the background",
            {JSON: answers.OpenAIResponse},
        ),
        _route(
            "GET",
            f"{_STORED}/input_items",
            stored_responses.list_items,
            "List the input items of a stored response",
            {JSON: answers.InputItems},
            query=("after", "limit", "order"),
        ),
    )


def _reading() -> tuple[HttpRoute, ...]:
    example = {"model": MODEL, "input": "Hello"}
    score = partial(
        _post,
        summary=_RATES,
        answers={JSON: scores.ScoreAnswer},
        body=Body(scores.ScoreRequest, {scores.ScoreRequest: scores.FIELDS}),
        handler=scores.score_texts,
    )
    classify = partial(
        _post,
        summary=_LABELS,
        answers={JSON: scores.ClassifyAnswer},
        body=Body(scores.ClassifyRequest, {scores.ClassifyRequest: scores.FIELDS}),
        handler=scores.classify,
    )
    return (
        _post(
            "/v1/embeddings",
            embeddings.answer,
            "Embed texts",
            {JSON: answers.OpenAIEmbeddings},
            body=Body(
                embeddings.EmbeddingRequest, {embeddings.EmbeddingRequest: EMBEDDINGS}, example
            ),
            refused_early=EMBEDDING,
        ),
        score("/v1/score"),
        score("/score"),
        classify("/v1/classify"),
        classify("/classify"),
    )


def _hearing() -> tuple[HttpRoute, ...]:
    texts = {TEXT: STRING, "text/vtt": STRING}
    written = (transcriptions.AudioText, transcriptions.VerboseAudioText)
    route = partial(_route, "POST")
    return (
        route(
            transcriptions.TRANSCRIPTIONS,
            transcriptions.transcribe,
            "Transcribe a recording; with `stream`, as events",
            {JSON: written, **texts, EVENTS: EVENT},
            body=Body(transcriptions.TranscriptionForm, media=FORM),
        ),
        route(
            transcriptions.TRANSLATIONS,
            transcriptions.translate,
            "Translate a recording to English text",
            {JSON: written, **texts},
            body=Body(transcriptions.TranslationForm, media=FORM),
        ),
        _route(
            "GET",
            realtime.REALTIME,
            realtime.transcribe_live,
            "Transcribe live speech, by a WebSocket",
            other_answers={"101": {}, "426": {JSON: Error}},
            query=("intent", "model"),
            is_websocket=True,
        ),
    )


def _speaking() -> tuple[HttpRoute, ...]:
    sounds = dict.fromkeys(SOUND_FORMATS.values(), _SOUND)
    return (
        _post(
            speech.SPEECH,
            speech.speak,
            "Synthesize speech; with `stream_format` sse, as events",
            {**sounds, EVENTS: EVENT},
            body=Body(
                speech.SpeakRequest,
                {speech.SpeakRequest: speech.FIELDS},
                {"model": MODEL, "input": "Hello", "response_format": "wav"},
            ),
        ),
        _route(
            "GET",
            speech.VOICES,
            speech.list_voices,
            "List the voices of a model that synthesizes speech",
            {JSON: speech.VoiceList},
            query=("model",),
        ),
    )


def _about_models() -> tuple[HttpRoute, ...]:
    return (
        _route(
            "GET",
            "/v1/models",
            lambda state, _: answers.OpenAIModels(
                data=[*map(models.to_model, state.models.listed())]
            ),
            "List the language models",
            {JSON: answers.OpenAIModels},
        ),
        _route(
            "GET",
            "/v1/models/{name:path}",
            lambda state, http: models.to_model(
                state.models.find(http.path_params["name"], is_exact=True)
            ),
            "Get a language model; other servables answer as in protocol v1",
            {JSON: (answers.OpenAIModel, ModelReady)},
            other_answers={"503": {JSON: (Error, ModelReady)}},
            applies=models.names_model,
        ),
        _post(
            "/v1/load_lora_adapter",
            adapters.load,
            "Load a LoRA adapter; `load_inplace` replaces one of the same name",
            {TEXT: STRING},
            body=Body(adapters.LoadRequest),
        ),
        _post(
            "/v1/unload_lora_adapter",
            adapters.unload,
            "Unload a LoRA adapter",
            {TEXT: STRING},
            body=Body(adapters.UnloadRequest),
        ),
    )


def _about_tokens() -> tuple[HttpRoute, ...]:
    return (
        # Comes after TGI's route of the same path, which documents both and passes on other bodies.
        _post(
            "/tokenize",
            tokens.tokenize,
            body=Body(requests.TokenizeRequest),
            find_ignored=partial(find_unread_tools, "/tokenize"),
        ),
        _route(
            "GET",
            "/tokenizer_info",
            tokens.info,
            "Get the tokenizer's tokenizer_config.json",
            {JSON: {"type": "object", "required": ["tokenizer_class"]}},
            query=("model",),
        ),
        _post(
            "/detokenize",
            tokens.detokenize,
            "Convert token ids to text",
            {JSON: answers.OpenAIPrompt},
            body=Body(requests.DetokenizeRequest, example={"model": MODEL, "tokens": [1, 2]}),
        ),
    )


ROUTES = (
    *_generating(),
    *_stored(),
    *_reading(),
    *_hearing(),
    *_speaking(),
    *_about_models(),
    *_about_tokens(),
    *state_routes.rows(_route),
    *state_routes.conversation_rows(_route),
)

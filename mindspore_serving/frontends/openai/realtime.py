"""GET /v1/realtime: a WebSocket for the text of speech while it is spoken."""

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.aio import on_thread
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.hearing import find_transcriber
from mindspore_serving.frontends.http.head import UPGRADE, subprotocols_of
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.realtime.detector import load_model
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.websocket.answer import (
    UPGRADE_REQUIRED,
    NoWebSocket,
    WebSocketAnswer,
)

REALTIME = "/v1/realtime"
_INTENT = "transcription"
_BETA, _BETA_PROTOCOL = "realtime=v1", b"openai-beta.realtime-v1"


def ask_for_upgrade(error: NoWebSocket) -> Response:
    """Return the answer to a client that offers no WebSocket."""
    body = to_failure(error).to_object()
    return to_json(body, UPGRADE_REQUIRED, headers=error.headers)


async def transcribe_live(state: AppState, http: Request) -> Response:
    """Switch to a session that transcribes speech."""
    limits, max_body = state.models.server_limits, state.models.limits.max_body
    max_message = min(state.max_body, max_body)
    try:
        answer = WebSocketAnswer(http, limits, max_message=max_message, subprotocols=("realtime",))
    except NoWebSocket as error:
        return ask_for_upgrade(error)
    from mindspore_serving.frontends.realtime import session

    intent, model = http.query_params.get("intent", _INTENT), http.query_params.get("model")
    if intent != _INTENT:
        raise InvalidField("intent", f"is {intent!r:.40}, expected {_INTENT!r}")
    find_transcriber(state.models, model)
    is_beta = http.headers.get("openai-beta") == _BETA
    answer.serve = session.TranscriptionSession(
        state.models,
        request_options_of(http),
        http.scope["extensions"][UPGRADE],
        await on_thread(session.THREAD, load_model),
        model=model,
        seconds=limits.request_timeout,
        is_beta=is_beta or _BETA_PROTOCOL in subprotocols_of(http.scope),
    ).serve
    return answer

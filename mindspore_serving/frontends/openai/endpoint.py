"""The routes of OpenAI's protocol, which answer errors in its form."""

from starlette.responses import Response

from mindspore_serving.frontends.chat.endpoint import Endpoints
from mindspore_serving.frontends.chat.errors import to_failure


def _to_response(error: Exception) -> Response:
    return to_failure(error).to_response()


_ENDPOINTS = Endpoints(_to_response)
get, post, route = _ENDPOINTS.get, _ENDPOINTS.post, _ENDPOINTS.route

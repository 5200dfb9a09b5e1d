"""GET /serving/...: how busy the model is, and what it is, as server-sent events of one message."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving import __version__
from mindspore_serving.errors import NotFound
from mindspore_serving.frontends.language import ServedModel
from mindspore_serving.frontends.llm_serving.frames import SSE, message
from mindspore_serving.frontends.llm_serving.requests import to_detail
from mindspore_serving.frontends.site import Site


def status_routes(site: Site) -> list[BaseRoute]:
    async def batch_size(_: Request) -> Response:
        return _message(max(1, _engine_total(site, "num_running")))

    async def request_numbers(_: Request) -> Response:
        return _message(_num_waiting(site))

    async def model_info(_: Request) -> Response:
        try:
            model = site.models.find(None)
        except NotFound as error:
            return to_detail(404, str(error))
        found = msgspec.json.encode(_describe(model, _num_waiting(site)))
        return Response(b"data: %b\r\n\r\n" % found, headers=SSE)

    return [
        Route("/serving/get_bs", batch_size, methods=["GET"]),
        Route("/serving/get_request_numbers", request_numbers, methods=["GET"]),
        Route("/serving/get_serverd_model_info", model_info, methods=["GET"]),
    ]


def _describe(model: ServedModel, num_waiting: int) -> dict[str, Any]:
    """The meanings are the original's, where two of the names mean something else."""
    card = model.card
    return {
        "docker_label": "",
        "max_batch_total_tokens": card.max_model_len * card.max_num_seqs,
        "max_concurrent_requests": num_waiting,
        "max_input_length": card.max_model_len,
        "max_total_tokens": card.max_num_seqs,
        "model_device_type": card.runtime,
        "model_dtype": card.dtype,
        "model_id": model.name,
        "model_pipeline_tag": "text-generation",
        "version": __version__,
    }


def _num_waiting(site: Site) -> int:
    """Requests that wait for a worker, and in workers for room."""
    waiting = sum(one.get("requests", {}).get("waiting", 0) for one in _models(site))
    return int(waiting) + _engine_total(site, "num_waiting")


def _engine_total(site: Site, name: str) -> int:
    return int(sum(one.get("engine", {}).get(name, 0) for one in _models(site)))


def _models(site: Site) -> list[dict[str, Any]]:
    return [one for one in site.control.observe() if "model" in one]


def _message(number: int) -> Response:
    return Response(message(b"%d" % number), headers=SSE)

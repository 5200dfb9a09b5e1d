"""What the server shows of itself at /metrics."""

from mindspore_serving import __version__
from mindspore_serving.frontends.access import Responses
from mindspore_serving.frontends.protocols import Mounted
from mindspore_serving.master.master import Master
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.server.renewal import Renewal
from mindspore_serving.server.repository import ModelRepository


def gather(
    master: Master,
    responses: Responses,
    followed: tuple[Renewal, ModelRepository],
    mounted: Mounted,
    *,
    has_vllm: bool,
) -> Page:
    """All numbers, as they are now."""
    page = Page()
    page.add("serving_build_info", 1, __version__)
    for (protocol, code), count in responses.counts.items():
        page.add("serving_responses_total", count, protocol, str(code))
    for one in followed:
        one.add_metrics(page)
    master.add_metrics(page, has_vllm=has_vllm)
    mounted.add_metrics(page)
    return page

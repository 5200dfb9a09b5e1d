"""Division of a machine's memory among the caches of its language models.

Each worker knows how much memory its machine has, and gets the number of workers to share it with.
"""

from collections import Counter
from collections.abc import Mapping

from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import ServableService


def share_memory(services: Mapping[Link, ServableService]) -> None:
    """Tell each worker with a cache how many of its machine have one; `services` are ready."""
    links = [link for link, service in services.items() if service.card and service.card.memory]
    counts = Counter(link.location.node for link in links)
    for link in links:
        link.share_memory(counts[link.location.node])

"""Four replicas of a language model.

    python -m benchmarks.servers.replicas DIRECTORY PORT ROUTING

With ROUTING "fewest" a request goes to the replica with the fewest open ones, as it does by default
where no replica has the beginning of its prompt.
"""

import sys
import threading
from pathlib import Path

from mindspore_serving import server
from mindspore_serving.master import streamed

CACHE = 96 << 20  # bytes of each replica


def main(directory: str, port: str, routing: str) -> None:
    if routing == "fewest":
        streamed.OVERLOADED, streamed.SPARE = 0.0, -1
    place = Path(directory).resolve()
    config = server.ServableStartConfig(
        str(place.parent),
        place.name,
        device_ids=(0, 1, 2, 3),
        device_type="cpu",
        llm_options={"num_threads": 1, "kv_cache_memory": CACHE},
    )
    server.start_servables(config)
    server.start_restful_server(f"127.0.0.1:{port}")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:4])

"""MindSpore Serving: `python -m benchmarks.servers.ours SERVABLE HTTP GRPC [FRONT_ENDS]`."""

import os
import sys
import threading
from pathlib import Path

from mindspore_serving import server

SERVABLES = Path(__file__).resolve().parents[1] / "servables"


def main(servable: str, http_port: str, grpc_port: str, number: str = "1") -> None:
    config = server.ServableStartConfig(str(SERVABLES), servable, num_parallel_workers=1)
    if "TRACE_URL" in os.environ:
        server.start_tracing(os.environ["TRACE_URL"], float(os.environ["TRACE_RATIO"]))
    server.start_servables(config)
    front_ends = int(number)
    server.start_grpc_server(f"127.0.0.1:{grpc_port}", front_ends=front_ends)
    server.start_restful_server(
        f"127.0.0.1:{http_port}", client_shared_memory=True, front_ends=front_ends
    )
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:5])

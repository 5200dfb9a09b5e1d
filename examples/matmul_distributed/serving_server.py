"""Serve matmul over gRPC and REST when all agents have joined: run serving_agent.py as well."""

import os
from pathlib import Path

from mindspore_serving import server
from mindspore_serving.server import distributed

HERE = Path(__file__).resolve().parent
GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")
AGENTS = "127.0.0.1:" + os.environ.get("SERVING_AGENT_PORT", "6200")


def main() -> None:
    distributed.start_servable(
        servable_directory=str(HERE),
        servable_name="matmul",
        rank_table_json_file="rank_table_8pcs.json",
        version_number=1,
        distributed_address=AGENTS,
    )
    server.start_grpc_server(GRPC)
    server.start_restful_server(HTTP)


if __name__ == "__main__":
    main()

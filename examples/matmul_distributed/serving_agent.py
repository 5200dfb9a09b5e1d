"""Start the eight agents of this machine; before or after serving_server.py."""

import os

from mindspore_serving.server import distributed

AGENTS = "127.0.0.1:" + os.environ.get("SERVING_AGENT_PORT", "6200")


def main() -> None:
    model_files = [f"model/device{rank}/matmul.mindir" for rank in range(8)]
    distributed.startup_agents(
        distributed_address=AGENTS,
        model_files=model_files,
        agent_start_port=7000,
        agent_ip=None,
        rank_start=None,
    )


if __name__ == "__main__":
    main()

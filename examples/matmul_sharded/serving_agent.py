"""Start the four agents of this machine; before or after serving_server.py."""

import os

from mindspore_serving.server import distributed

AGENTS = "127.0.0.1:" + os.environ.get("SERVING_AGENT_PORT", "6200")
TORCH_PORT = int(os.environ.get("SERVING_TORCH_PORT", "7000"))  # where the ranks of PyTorch meet


def main() -> None:
    distributed.startup_agents(AGENTS, ["rank.py"] * 4, agent_start_port=TORCH_PORT)


if __name__ == "__main__":
    main()

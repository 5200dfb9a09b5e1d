"""`python -m mindspore_serving.server.processes`: a front end, started by the master.

The kernel ends it with the master.
"""

import argparse
import gc
import os
import signal
import socket

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    from mindspore_serving.aio import new_loop
    from mindspore_serving.isolation.lifeline import end_with
    from mindspore_serving.server.processes.front_end import FrontEnd
    from mindspore_serving.server.processes.pipe import Ends

    parser = argparse.ArgumentParser(prog="python -m mindspore_serving.server.processes")
    parser.add_argument("--number", help="shown in process lists only")
    names = ("CHANNEL", "CONNECTIONS", "WRITES", "READS", "LIFELINE")
    parser.add_argument("--descriptors", required=True, type=int, nargs=5, metavar=names)
    channel, connections, writes, reads, lifeline = parser.parse_args().descriptors
    end_with(lifeline)
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the master, which then tells us
        signal.signal(number, signal.SIG_IGN)
    gc.set_threshold(50_000, 20, 20)
    ends = Ends(socket.socket(fileno=channel), writes, reads)

    async def serve() -> None:
        await FrontEnd(ends, socket.socket(fileno=connections)).ended

    new_loop().run_until_complete(serve())


if __name__ == "__main__":
    main()

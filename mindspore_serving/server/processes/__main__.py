"""`python -m mindspore_serving.server.processes`: a front end, started by the master.

The kernel kills it when the master ends.
"""

import argparse
import gc
import socket


def main() -> None:
    """Run a front end until the master stops it."""
    from mindspore_serving.aio import new_loop
    from mindspore_serving.process.channel import connect
    from mindspore_serving.process.entry import enter
    from mindspore_serving.server.processes.front_end import FrontEnd
    from mindspore_serving.server.processes.pipe import Ends

    parser = argparse.ArgumentParser(prog="python -m mindspore_serving.server.processes")
    parser.add_argument("--number", help="shown in process lists only")
    names = ("CONNECTIONS", "WRITES", "READS")
    parser.add_argument("--descriptors", required=True, type=int, nargs=3, metavar=names)
    arguments = enter(parser, ignores_signals=True)  # the master gets them, and sends `Exit`
    connections, writes, reads = arguments.descriptors
    gc.set_threshold(50_000, 20, 20)
    ends = Ends(connect(arguments.channel), writes, reads)

    async def serve() -> None:
        await FrontEnd(ends, socket.socket(fileno=connections)).ended

    new_loop().run_until_complete(serve())


if __name__ == "__main__":
    main()

"""`python -m mindspore_serving.distributed`: the process of an agent, started by a script.

The kernel kills it with its descendants when the script ends; it exits by itself with the worker.
"""

import argparse
import signal
import sys

from mindspore_serving import log
from mindspore_serving.distributed import agent, messages
from mindspore_serving.distributed.connecting import Stopped
from mindspore_serving.distributed.messages import AgentSetup
from mindspore_serving.errors import ServingError, printable
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter, remove_current_directory_from_path
from mindspore_serving.process.vocabulary import Failed, Ready, hello


def main() -> int:
    """Run an agent; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m mindspore_serving.distributed")
    parser.add_argument("--name", help="shown in process lists only")
    arguments = enter(parser)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script, which stops agents
    script: BlockingChannel[AgentSetup] = BlockingChannel(connect(arguments.channel), AgentSetup)
    try:
        script.send(hello(messages))
        setup = script.receive_next()
        models = agent.load(setup)
        connection = agent.join(setup, models)
    except Stopped:
        return 0  # which `AgentMember` knows
    except Exception as error:
        if not isinstance(error, ServingError):
            log.error("an agent could not start", exc_info=True)
        script.send(Failed(printable(str(error)) or repr(error)))
        return 1
    script.send(Ready())
    agent.serve(connection, models)
    return 0


if __name__ == "__main__":
    remove_current_directory_from_path()
    sys.exit(main())

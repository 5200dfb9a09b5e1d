"""A self-test process without a device, in which chosen primitives differ, crash and hang."""

import argparse
import os
import signal
import time
from contextlib import closing

from mindspore_serving.llm.runtimes.mindspore.primitives.messages import CaseChecked, DeviceOpened
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--device", "--filling", "--names"):
        parser.add_argument(name)
    arguments = enter(parser)
    with closing(BlockingChannel(connect(arguments.channel), Failed)) as channel:
        if "argmax" in arguments.names:
            channel.send(Failed("device 0 is busy"))
            return
        channel.send(DeviceOpened("ascend910b", "2.10.0", "bfloat16"))
        for name in arguments.names.split(","):
            if name == "rope":
                os.kill(os.getpid(), signal.SIGSEGV)
            if name == "top_k":
                time.sleep(600)
            problem = "output 0 differs by 0.5 of its largest" if name == "matmul" else ""
            channel.send(CaseChecked(name, 0.5 if problem else 0.0, 0.02, 0.1, problem))


if __name__ == "__main__":
    main()

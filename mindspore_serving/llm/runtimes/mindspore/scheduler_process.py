"""The process by which MindSpore's ranks find each other; it ends when its parent does."""

import argparse

from mindspore_serving.llm.runtimes.mindir.library import CPU, use_device
from mindspore_serving.process.entry import enter


def main() -> None:
    """Run the scheduler, whose address the environment has."""
    enter(argparse.ArgumentParser(), ignores_signals=True, has_channel=False)
    use_device(CPU)
    from mindspore.communication import init

    init()


if __name__ == "__main__":
    main()

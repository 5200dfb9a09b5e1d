"""`python -m mindspore_serving` is the command `mindspore-serving`."""

import sys

from mindspore_serving.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""mosec, adding one, in batches of up to 32 gathered for at most 1 ms.

`python mosec_add_one.py PORT`
"""

import sys

import mosec
import numpy as np


class AddOne(mosec.Worker):
    def forward(self, data):
        xs = np.asarray([request["x"] for request in data], np.float32)
        return [{"y": y} for y in (xs + 1).tolist()]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1]]  # mosec reads them itself
    server = mosec.Server()
    server.append_worker(AddOne, num=1, max_batch_size=32, max_wait_time=1)
    server.run()

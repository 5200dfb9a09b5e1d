"""LitServe, adding one, in batches of up to 32 gathered for at most 1 ms.

One worker and its faster queue: `python litserve_add_one.py PORT`.
"""

import sys

import litserve
import numpy as np


class AddOne(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return np.asarray(request["x"], np.float32)

    def predict(self, x):
        return x + 1

    def encode_response(self, output):
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = AddOne(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )

"""The same least work as ceiling_asgi, as an RSGI application under granian, one worker.

`python ceiling_rsgi.py PORT`
"""

import sys

import msgspec
from granian import Granian
from granian.constants import Interfaces, Loops


class Inputs(msgspec.Struct):
    x: list[float]


class Body(msgspec.Struct):
    instances: Inputs


decode = msgspec.json.Decoder(Body).decode
encode = msgspec.json.Encoder().encode
HEADERS = [("content-type", "application/json")]


async def app(scope, protocol):
    body = await protocol()
    reply = encode({"instances": [{"y": [x + 1 for x in decode(body).instances.x]}]})
    protocol.response_bytes(200, HEADERS, reply)


if __name__ == "__main__":
    Granian(
        f"{__file__}:app",
        address="127.0.0.1",
        port=int(sys.argv[1]),
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        workers=1,
        websockets=False,
        log_access=False,
    ).serve()

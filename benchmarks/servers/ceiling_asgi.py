"""The least an ASGI application can do: decode JSON, add one, encode; under uvicorn, one process.

`python ceiling_asgi.py PORT`; it shows what is left to win over a bare HTTP server.
"""

import sys

import msgspec
import uvicorn


class Inputs(msgspec.Struct):
    x: list[float]


class Body(msgspec.Struct):
    instances: Inputs


decode = msgspec.json.Decoder(Body).decode
encode = msgspec.json.Encoder().encode


async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    reply = encode({"instances": [{"y": [x + 1 for x in decode(body).instances.x]}]})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(reply)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )

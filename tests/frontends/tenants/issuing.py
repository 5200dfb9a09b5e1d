"""An identity provider of tests: an HTTP server of its public keys, and tokens that it signs."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "serving"


class Provider:
    """A provider with one key, which `rotate` replaces."""

    def __init__(self) -> None:
        provider = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.num_fetches += 1
                status, body = provider.answer()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.num_fetches = self.num_keys = 0
        self.rows: list[dict[str, Any]] = []
        self.is_down = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"
        self.name = "https://login.example.org"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.rotate()

    def answer(self) -> tuple[int, bytes]:
        return (500, b"") if self.is_down else (200, json.dumps({"keys": self.rows}).encode())

    def rotate(self, algorithm: str = "ES256") -> None:
        """Replace the key."""
        self.num_keys += 1
        self.algorithm, self.key_id = algorithm, f"key-{self.num_keys}"
        if algorithm == "RS256":
            self.key: Any = rsa.generate_private_key(65537, 2048)
        else:
            self.key = ec.generate_private_key(ec.SECP256R1())
        kind: Any = jwt.get_algorithm_by_name(algorithm)
        row = kind.to_jwk(self.key.public_key(), as_dict=True)
        self.rows = [{**row, "kid": self.key_id, "alg": algorithm, "use": "sig"}]

    def sign(self, subject: str = "anna", **claims: Any) -> str:
        """Return a token; a claim that is None is left out."""
        now = int(time.time())
        standard = {"iss": self.name, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600}
        content = {
            name: value for name, value in {**standard, **claims}.items() if value is not None
        }
        return jwt.encode(content, self.key, self.algorithm, {"kid": self.key_id})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

"""The optional secret that a worker shares with its agents: proved, never sent.

SERVING_DISTRIBUTED_TOKEN is the secret, SERVING_DISTRIBUTED_TOKEN_FILE a file with it.  Without
either it is empty: whoever reaches the port may join.
"""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from mindspore_serving.errors import StartError

VARIABLE, FILE_VARIABLE = "SERVING_DISTRIBUTED_TOKEN", "SERVING_DISTRIBUTED_TOKEN_FILE"
NONCE = 32  # bytes that the worker has each peer prove its secret on


def read_token(environment: Mapping[str, str]) -> bytes:
    """The secret; b"" if there is none.  Raises StartError if its file cannot be read."""
    if path := environment.get(FILE_VARIABLE):
        try:
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise StartError(f"The file of {FILE_VARIABLE} cannot be read: {error}") from error
        if not token:
            raise StartError(f"The file of {FILE_VARIABLE}, '{path}', is empty")
        return token
    return environment.get(VARIABLE, "").encode()


def prove(token: bytes, nonce: bytes) -> bytes:
    """What only a holder of `token` can answer to `nonce`."""
    return hmac.new(b"mindspore-serving agent " + token, nonce, hashlib.sha256).digest()


def is_proof(proof: bytes, token: bytes, nonce: bytes) -> bool:
    return hmac.compare_digest(proof, prove(token, nonce))

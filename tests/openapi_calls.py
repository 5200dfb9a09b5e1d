"""Has schemathesis send what a server's /openapi.json describes: no answer may be a 500, or outside
the document.

    python -m tests.openapi_calls [URL] [--examples 100]

Without URL, of a server that it starts.  The same requests each time.  A stage that raises is the
servable's fault and answered 500: serve one whose stages take everything.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

LEFT_OUT = ("/v2/logging", "/load", "/unload")  # what changes the server for others
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
FEW = 2  # examples of the form in the suite, which leaves out what is systematic


def call(url: str, examples: int) -> int:
    """The exit status of schemathesis; `examples` are those of each operation."""
    phases = "examples,fuzzing" if examples <= FEW else "examples,coverage,fuzzing"
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", url),
        *("--phases", phases, "--max-examples", str(examples), "--workers", "1"),
        *("--generation-deterministic", "--no-color", "--checks", ",".join(CHECKS)),
        *("--exclude-path-regex", f"({'|'.join(LEFT_OUT)})$"),
    ]
    return subprocess.run(words, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--examples", type=int, default=100)
    given = parser.parse_args()
    if given.url:
        return call(given.url, given.examples)
    from tests.e2e.described import described

    with tempfile.TemporaryDirectory() as place:
        options = {"use_status_codes": True, "allow_loading": True, "client_shared_memory": True}
        with described(Path(place), **options) as calls:
            return call(f"http://127.0.0.1:{calls.http}/openapi.json", given.examples)


if __name__ == "__main__":
    sys.exit(main())

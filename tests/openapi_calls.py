"""Has schemathesis send what a server's /openapi.json describes: no answer may be a 500, or outside
the document.

    python -m tests.openapi_calls URL [--examples 100]

The same requests each time.  A stage that raises is the servable's fault and answered 500: serve
one whose stages take everything.
"""

import argparse
import subprocess
import sys

LEFT_OUT = ("/v2/logging", "/load", "/unload")  # what changes the server for others
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


def command(url: str, examples: int) -> list[str]:
    """`examples` are those of each operation."""
    return [
        *(sys.executable, "-m", "schemathesis.cli", "run", url),
        *("--phases", "examples,fuzzing", "--max-examples", str(examples), "--workers", "1"),
        "--generation-deterministic",
        *("--checks", ",".join(CHECKS), "--no-color"),
        *("--exclude-path-regex", f"({'|'.join(LEFT_OUT)})$"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--examples", type=int, default=100)
    given = parser.parse_args()
    return subprocess.run(command(given.url, given.examples), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

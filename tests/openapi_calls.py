"""Has schemathesis send what a server's /openapi.json describes: no answer may be a 500, or outside
the document.

    python -m tests.openapi_calls [URL] [--examples 100] [--seed N]

Without URL, of servers that it starts: with a language model, and without.  The same requests each
time, unless there is a seed.  A body that fits a schema may still be refused, as schemas do not say
which models there are, nor what goes together; one that does not fit never is accepted.

A stage that raises is the fault of its servable, and answered 500: serve one that takes everything.
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
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
)
FEW = 2  # examples of the form in the suite, which leaves out what is systematic


def call(url: str, examples: int, seed: int | None = None) -> int:
    """The exit status of schemathesis; `examples` are those of each operation."""
    phases = "examples,fuzzing" if examples <= FEW else "examples,coverage,fuzzing"
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", url),
        *("--phases", phases, "--max-examples", str(examples), "--workers", "1"),
        *(["--generation-deterministic"] if seed is None else ["--seed", str(seed)]),
        *("--no-color", "--checks", ",".join(CHECKS)),
        *("--exclude-path-regex", f"({'|'.join(LEFT_OUT)})$"),
    ]
    return subprocess.run(words, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    if given.url:
        return call(given.url, given.examples, given.seed)
    from tests.e2e.described import described

    options = {"use_status_codes": True, "allow_loading": True, "client_shared_memory": True}
    found = 0
    for has_language in (True, False):
        with (
            tempfile.TemporaryDirectory() as place,
            described(Path(place), has_language=has_language, **options) as calls,
        ):
            url = f"http://127.0.0.1:{calls.http}/openapi.json"
            found = call(url, given.examples, given.seed) or found
    return found


if __name__ == "__main__":
    sys.exit(main())

"""`mindspore-serving run`: serve a language model, and chat with it, in one command.

The server is a child process on a free port; it ends with the conversation, and with this process.
"""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from http.client import HTTPException

from tqdm import tqdm

from mindspore_serving.cli import chat
from mindspore_serving.cli.chat_settings import ChatSettings, ConversationOptions, RunSettings
from mindspore_serving.cli.child_server import ChildServer, child_server
from mindspore_serving.cli.endpoint import Endpoint, to_endpoint
from mindspore_serving.cli.options import to_words
from mindspore_serving.cli.settings import Access, ServableSettings
from mindspore_serving.cli.urls import is_url
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.servable.repository import is_language_model

_POLL_SECONDS = 0.2  # interval at which the progress of loading is shown
_WRONG_ARGUMENTS = 2  # exit status
_SHARE = re.compile(rb"still loading, (\d+) %")


def run(settings: RunSettings) -> int:
    """Serve the model, and run a conversation until the user leaves, or answer one prompt.

    Raises ServingError if there is no such model, or if its server does not start.
    """
    _check(settings.model, is_offline=settings.offline)
    prompt = chat.read_prompt(settings)
    words = [settings.model, *to_words(ServableSettings, settings)]
    with child_server(words, port=settings.http_port) as server:
        endpoint = to_endpoint(server.url, Access())
        try:
            with _progress(endpoint, settings.model):
                server.wait_until_ready()
        except StartError as error:
            is_wrong = server.exit_status == _WRONG_ARGUMENTS
            raise InvalidInputs(str(error)) if is_wrong else error from None
        return _talk(settings, endpoint, prompt, server)


def _check(path: str, *, is_offline: bool) -> None:
    """Raise ServingError for a path without a language model; a name is downloaded first."""
    if is_url(path) and parse_reference(path) is None:
        raise InvalidInputs(f"{path} is a URL: write mindspore-serving chat {path}")
    servables = discover(resolve(path, offline=is_offline or None)).servables
    paths = [os.path.join(directory, name) for directory, name in servables]
    # Only running a servable_config.py shows whether it declares a language model.
    if not any(is_language_model(each) or _has_config(each) for each in paths):
        raise StartError(
            f"{path} is not a language model, so there is nobody to chat with: write "
            f"mindspore-serving serve {path}, which prints how to call its methods"
        )


def _has_config(path: str) -> bool:
    return os.path.isfile(os.path.join(path, CONFIG_FILE))


def _talk(settings: RunSettings, endpoint: Endpoint, prompt: str, server: ChildServer) -> int:
    names = [each.name for each in fields(ConversationOptions)]
    options = {name: getattr(settings, name) for name in names}
    try:
        return chat.talk(ChatSettings(url=server.url, **options), endpoint, prompt)
    finally:
        if server.exit_status is not None:
            print(f"mindspore-serving: the server has ended: {server.end_text()}", file=sys.stderr)


@contextmanager
def _progress(endpoint: Endpoint, path: str) -> Iterator[None]:
    """Show the share of the model that is loaded, on a terminal as a bar."""
    label = f"Loading {os.path.basename(os.path.abspath(path))}"
    if not sys.stderr.isatty():
        print(f"{label} ...", file=sys.stderr, flush=True)
        yield
        return
    is_done = threading.Event()
    with tqdm(desc=label, total=100, leave=False, bar_format="{l_bar}{bar}| {elapsed}") as bar:
        poller = threading.Thread(target=_poll, args=(endpoint, bar, is_done), daemon=True)
        poller.start()
        try:
            yield
        finally:
            is_done.set()
            poller.join()


def _poll(endpoint: Endpoint, bar: "tqdm[None]", is_done: threading.Event) -> None:
    while not is_done.wait(_POLL_SECONDS):
        bar.n = max(bar.n, _percent(endpoint))
        bar.refresh()


def _percent(endpoint: Endpoint) -> int:
    """Return the loaded share that the server tells; 0 while it does not answer."""
    connection = endpoint.connect(_POLL_SECONDS)
    try:
        connection.request("GET", f"{endpoint.base}/readyz")
        shares = [int(share) for share in _SHARE.findall(connection.getresponse().read())]
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()
    return min(shares, default=0)

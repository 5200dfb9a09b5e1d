"""The page where a server wants a key, and where it has no language model."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import write_words
from tests.cli.talking import Talking, serving
from tests.frontends.page.browser import Browser
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def test_a_key_is_sent_to_a_server_with_keys(browser: Browser, server: Talking) -> None:
    refusal = '{"error": {"message": "no key"}}'
    browser.answer("/servables", 401, refusal)
    browser.answer("/v1/models", 401, refusal)
    browser.open(server.url)
    browser.until("document.activeElement.id === 'key'")
    browser.pass_on()
    browser.complaints.clear()  # Chromium logs the status
    browser.type("secret-key")
    browser.press("Enter")
    browser.until("document.body.dataset.chat === 'yes'")
    assert browser.evaluate("document.getElementById('key-form').hidden")
    sent = [one["headers"].get("authorization") for one in browser.requests[-2:]]
    assert sent == ["Bearer secret-key"] * 2
    assert "secret-key" not in browser.evaluate("JSON.stringify(localStorage)")


def test_the_browsers_dialog_accepts_a_key(browser: Browser, tmp_path: Path) -> None:
    key = "a-key-of-twenty-letters"
    write_words(tmp_path)
    with serving(tmp_path, "words", "--api-key", key) as locked:
        headers = {"accept": "text/html"}
        assert httpx.get(locked.url, headers=headers, timeout=PATIENCE).status_code == 401
        browser.log_in(key)
        browser.open(locked.url)
        browser.until("document.querySelector('.card') && document.body.dataset.chat === 'no'")
        assert browser.evaluate("document.getElementById('key-form').hidden")
        # nobody may load and unload here
        assert not browser.evaluate(
            "document.querySelector('[href=\"#operate\"]').checkVisibility()"
        )


def test_where_there_is_no_language_model_calling_is_explained(
    browser: Browser, tmp_path: Path
) -> None:
    write_words(tmp_path)
    with serving(tmp_path, "words") as classic:
        browser.open(classic.url)
        browser.until("document.body.dataset.chat === 'no' && document.querySelector('.card')")
        assert not browser.evaluate("document.getElementById('chat').checkVisibility()")
        assert "double(x) → y" in browser.text(".how")
        assert "chat" not in browser.text(".how")
        lines = browser.evaluate(
            "[...document.querySelectorAll('.how pre')].map((one) => one.innerText)"
        )
        (line,) = [line for line in lines if ":double" in line]
        if shutil.which("curl"):
            done = subprocess.run([*shlex.split(line), "-s"], capture_output=True, check=True)
            assert json.loads(done.stdout) == {"instances": [{"y": 2.0}]}
        classic.command.end()
        browser.until(
            "document.getElementById('state').innerText === 'The server cannot be reached.'"
        )
    browser.complaints.clear()  # Chromium logs the refused connections

"""A headless Chromium that tests drive, over the pipe of its DevTools protocol: no driver, no port.

Every wait has a deadline; what the page logs or throws is kept in `complaints`.
"""

import base64
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_TWO_FRAMES = (
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
)
BETWEEN_LOOKS = 0.02  # seconds: to look again and again at once takes a core from the page
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39}
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-breakpad",
    "--mute-audio",
    "--use-fake-device-for-media-stream",  # a camera, which the page may use unasked
    "--use-fake-ui-for-media-stream",
    "--hide-scrollbars",
    # One renderer for all pages: to start and end a process for each costs as much as half a page.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=SpareRendererForSitePerProcess,BackForwardCache,PaintHolding,Translate,"
    "OptimizationHints,MediaRouter,site-per-process,IsolateOrigins",
)

# Chromium asks for the icon when it likes: also when the test that opened the page has ended, and
# its server with it.
_LATE_ICON = re.compile(r".*net::ERR_CONNECTION_REFUSED http://[^/]+/page/icon\.svg")

_NAVIGATED = ("Inspected target navigated or closed", "Execution context was destroyed.")


class Navigated(AssertionError):
    """The page left for another while it was asked."""


class Browser:
    """One page.  Ended with the `with` block."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self._password = ""
        self._answers: dict[str, tuple[int, str, str]] = {}
        self._last = 0
        self._rest = b""
        self._session: str | None = None
        self._scripts: list[str] = []
        self._origins: set[str] = set()
        self._size: tuple[int, int, str] | None = None
        self.shared = ""  # what tests in turn use the page for, without opening it anew
        orders, self._write = (_high(end) for end in os.pipe())
        self._read, replies = (_high(end) for end in os.pipe())
        words = [str(CHROMIUM), *_OPTIONS, f"--user-data-dir={profile}"]
        words += ["--no-sandbox"] * (os.geteuid() == 0)  # it refuses to run as root with one
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{orders} 4>&{replies}', "bash", *words, "about:blank"],
            pass_fds=(orders, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(orders)
        os.close(replies)
        self._attach()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # it ends when nobody can give orders any more
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def forget(self) -> None:
        """Leave the page; nothing of it is kept."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        for origin in self._origins:
            self.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        for script in self._scripts:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self._scripts.clear()
        self._origins.clear()
        self.shared = ""
        self.requests.clear()
        self.complaints.clear()

    def excuse(self) -> None:
        """Wait until the browser has complained, and forget that it has."""
        self._wait(lambda: self.evaluate("true") and self.complaints, "a complaint", PATIENCE)
        self.complaints.clear()

    def open(self, url: str) -> None:
        error = self.call("Page.navigate", url=url).get("errorText", "")
        assert not error, f"{url}: {error}"
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def remember(self, name: str, value: Any) -> None:
        """Have the page find a value that it has stored, unless it stores another one."""
        key, text = json.dumps(f"mindspore-serving-{name}"), json.dumps(json.dumps(value))
        script = f"if (location.protocol !== 'about:') localStorage[{key}] ??= {text}"
        added = self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        self._scripts.append(added["identifier"])

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window in pixels (below 600 a phone), and "light" or "dark"."""
        if (width, height, scheme) == self._size:
            return
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.evaluate(_TWO_FRAMES)  # a click before that would hit what was there
        self._size = width, height, scheme

    def evaluate(self, expression: str) -> Any:
        """Its value, a promise's too.  An exception of the page is an AssertionError."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until `expression` is true, in JavaScript's sense."""

        def is_true() -> bool:
            if self._is_true(expression):
                return True
            self._listen(BETWEEN_LOOKS)
            return False

        self._wait(is_true, expression, seconds)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except Navigated:
            return False

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """A real click in the middle of the element."""
        box = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'nearest'});"
            "const {x, y, width, height} = found.getBoundingClientRect();"
            "return [x + width / 2, y + height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        extra = {"text": "\r"} if key == "Enter" else {}
        common = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": KEYS[key],
            "modifiers": 8 * shift,
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        reply = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(reply["data"]))

    def answer(self, path: str, status: int, body: str, kind: str = "application/json") -> None:
        """From now on answer requests for `path` in place of the server: its faults."""
        self._answers[path] = (status, body, kind)
        self.call("Fetch.enable", patterns=[{"urlPattern": f"*{one}"} for one in self._answers])

    def log_in(self, password: str) -> None:
        """What a person types where the browser itself asks for a name and a password."""
        self._password = password
        self.call("Fetch.enable", handleAuthRequests=True)

    def pass_on(self) -> None:
        """The server answers everything again."""
        self._answers.clear()
        self._password = ""
        self.call("Fetch.disable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        number = self._send(method, params)
        found: list[dict[str, Any]] = []

        def replied() -> bool:
            message = self._receive(1.0)
            if message and message.get("id") == number:
                found.append(message)
            return bool(found)

        self._wait(replied, method, PATIENCE)
        error = found[0].get("error")
        if error and error["message"] in _NAVIGATED:
            raise Navigated(error)
        assert error is None, error
        result: dict[str, Any] = found[0]["result"]
        return result

    def _attach(self) -> None:
        def page() -> str | None:
            targets = self.call("Target.getTargets")["targetInfos"]
            return next((one["targetId"] for one in targets if one["type"] == "page"), None)

        target = self._wait(page, "a page", PATIENCE)
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._last += 1
        order: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            order["sessionId"] = self._session
        left = json.dumps(order).encode() + b"\0"
        while left:
            left = left[os.write(self._write, left) :]
        return self._last

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if there is none in time."""
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], seconds)[0]:
                return None
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium has ended"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _listen(self, seconds: float) -> None:
        """Leave the page to itself, but take what it says: requests wait for an answer."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._receive(left)

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            complaint = f"{event['entry']['text']} {event['entry'].get('url', '')}"
            if not _LATE_ICON.fullmatch(complaint):
                self.complaints.append(complaint)
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.complaints.append(str(event["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"])
            if (url := event["request"]["url"]).startswith("http"):
                self._origins.add("/".join(url.split("/")[:3]))
        elif method == "Fetch.requestPaused":
            self._fulfil(event)
        elif method == "Fetch.authRequired":
            given = {"response": "ProvideCredentials", "username": "", "password": self._password}
            event = {"requestId": event["requestId"], "authChallengeResponse": given}
            self._send("Fetch.continueWithAuth", event)

    def _fulfil(self, event: dict[str, Any]) -> None:
        url = event["request"]["url"]
        for path, (status, body, kind) in self._answers.items():
            if url.endswith(path):
                self._send(
                    "Fetch.fulfillRequest",
                    {
                        "requestId": event["requestId"],
                        "responseCode": status,
                        "responseHeaders": [{"name": "content-type", "value": kind}],
                        "body": base64.b64encode(body.encode()).decode(),
                    },
                )
                return
        self._send("Fetch.continueRequest", {"requestId": event["requestId"]})

    def _wait(self, condition: Callable[[], Any], what: str, seconds: float) -> Any:
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.complaints}"
        return value


def _high(end: int) -> int:
    """The same file under a number that no redirection overwrites."""
    copy = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return copy

"""Headless Chromium over its debugging pipe: enough to load a page, ask it things, press keys and take pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    # Nothing but what tests ask for.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0


def find_chromium() -> str | None:
    """Where a Chromium is installed; None: nowhere."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. ``problems`` are errors that its console showed."""

    def __init__(self, pipe: tuple[int, int]) -> None:
        self._read, self._write = pipe
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        self._load_events = 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Give the tab a size in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Let the system prefer ``light`` or ``dark``."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts have put it together."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)
        self.wait_for("document.documentElement?.dataset.ready !== undefined")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.ask(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.problems}"
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it gives."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def click(self, x: float, y: float) -> None:
        """Click at a place in CSS pixels."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def point(self, x: float, y: float) -> None:
        """Move the pointer to a place in CSS pixels."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str, code: int = 0) -> None:
        """Press a key: a letter, or a name such as ArrowRight with its key code."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def screenshot(self, path: str | Path | None = None) -> bytes:
        """A PNG of what is seen."""
        self.settle()
        content = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            Path(path).write_bytes(content)
        return content

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        """The next message; they end with a zero byte."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            content = os.read(self._read, 1 << 20)
            assert content, "the browser is gone"
            self._buffer += content
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning", "assert"}:
            self.problems.append(str([each.get("value") for each in parameters["args"]]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])


@contextmanager
def browser(executable: str) -> Iterator[Page]:
    """A browser with one tab, gone afterwards."""
    to_browser, ours_to_write = os.pipe()
    ours_to_read, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", command, "bash", executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Page((ours_to_read, ours_to_write))
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)
            for each in (to_browser, ours_to_write, ours_to_read, from_browser):
                os.close(each)

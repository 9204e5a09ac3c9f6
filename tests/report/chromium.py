"""A headless Chromium, spoken to through its debugging pipe: what a reader's browser makes of a page."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


@dataclass(frozen=True)
class Seen:
    """One visit."""

    complaints: list[str]  # errors and warnings of the console
    requests: list[str]  # addresses asked for, the page's own and inline data left out
    overflow: list[str]  # elements that make the page scroll sideways
    text: str
    screenshot: bytes


class Chromium:
    """``with Chromium(folder) as browser: browser.visit(page)``."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        words = ["bash", "-c", command, PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(words, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._events = b"", 0, list[dict[str, Any]]()

    def __enter__(self) -> Chromium:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def visit(self, page: Path, width: int = 1200, scheme: str = "light", height: int = 900) -> Seen:
        """Opens a page at a width, in light or dark, with all folded parts open."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        self._ask("Page.navigate", url=page.as_uri())
        self._wait("Page.loadEventFired")
        folded = self._overflow()
        self.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        opened = self._overflow()
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        urls = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return Seen(
            complaints=[json.dumps(e["params"]) for e in self._events if _is_complaint(e)],
            requests=[url for url in urls if url != page.as_uri() and not url.startswith("data:")],
            overflow=folded + opened,
            text=self.evaluate("document.body.innerText"),
            screenshot=base64.b64decode(shot),
        )

    def evaluate(self, expression: str) -> Any:
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _overflow(self) -> list[str]:
        """What sticks out to the right and is not scrolled by a container of its own, if the page is too wide."""
        return list(
            self.evaluate(
                """(() => {
                const width = document.documentElement.clientWidth;
                if (document.documentElement.scrollWidth <= width) return [];
                return [...document.body.querySelectorAll('*')]
                    .filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > width + 1)
                    .map(e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40))
                    .concat(['scrollWidth ' + document.documentElement.scrollWidth]);
                })()"""
            )
        )

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _wait(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message


def _is_complaint(event: dict[str, Any]) -> bool:
    if event["method"] == "Log.entryAdded":
        return event["params"]["entry"]["level"] in ("error", "warning")
    if event["method"] == "Runtime.consoleAPICalled":
        return event["params"]["type"] in ("error", "warning", "assert")
    return event["method"] == "Runtime.exceptionThrown"

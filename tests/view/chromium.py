"""A headless Chromium, driven over a pipe by the DevTools protocol: enough to open a page, press keys, look and measure."""

import base64
import json
import os
import shutil
import subprocess
import time


def executable():
    """The path of a Chromium or Chrome; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser; errors: what the page threw, logged as an error or was refused to load."""

    def __init__(self, profile):
        down, up = os.pipe(), os.pipe()  # Chromium reads commands from its descriptor 3 and answers on 4
        begin = [executable(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
                 "--disable-dev-shm-usage", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip

        def place():
            read, write = os.dup(down[0]), os.dup(up[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            begin, preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(down[0])
        os.close(up[1])
        self.out, self.into = os.fdopen(down[1], "wb", buffering=0), os.fdopen(up[0], "rb")
        self.number, self.session, self.errors = 0, None, []
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """The result of a command. RuntimeError when Chromium refuses it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | (
            {"sessionId": self.session} if self.session else {}
        )
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def read(self):
        text = bytearray()
        while (byte := self.into.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has ended")
            text += byte
        return json.loads(text)

    def note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(
                params["exceptionDetails"].get("exception", {}).get("description") or params["exceptionDetails"]["text"]
            )
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:", "about:")
        ):
            self.errors.append(f"a request to {params['request']['url']}")

    def look(self, width=1280, height=900, dark=False, phone=False):
        """Sets size and colours of the screen."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media="screen", features=[scheme])

    def open(self, path, hash=""):
        """Opens a file and waits until the page says that all is drawn. Milliseconds since its start, by its own clock."""
        self("Page.navigate", url="about:blank")
        self("Page.navigate", url=f"file://{path}{hash}")
        return int(self.wait("document.documentElement?.dataset.ready"))

    def __getitem__(self, expression):
        """The value of a JavaScript expression, awaited."""
        done = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, expression, seconds=60):
        """The first value of an expression that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self[expression]:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression} was never true; errors: {self.errors}")

    def press(self, key):
        """Presses a key, as a person does: to whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 and kind == "keyDown" else {}))

    def screenshot(self, path, whole=False):
        """Saves what is seen, or the whole page, as PNG."""
        made = self("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.out.close()
        self.into.close()

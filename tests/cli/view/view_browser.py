# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium, without a window and without a network, that looks at `varve view`."""

import base64
import contextlib
import json
import os
import shutil
import time
import urllib.parse

import harness

PATIENCE = 120  # seconds, only so that a test ends
WIDTH, MAX_HEIGHT = 1280, 6000  # of a picture
PAPER = (210, 297)  # A4, in mm
PAPER_MARGIN = 12  # that of style.css, in mm


def why_not():
    """What is missing here. Empty when nothing is. Ends the program if $VARVE_REQUIRE names selenium."""
    missing = [
        f"there is no {program}"
        for program in ("chromium", "chromedriver")
        if not shutil.which(program)
    ] + [
        f"Python lacks {package}"
        for package in ("selenium", "axe_playwright_python")
        if not harness.has(package)
    ]
    if missing and "selenium" in os.environ.get("VARVE_REQUIRE", "").split():
        raise SystemExit(f"{'; '.join(missing)}, and $VARVE_REQUIRE names selenium")
    return "; ".join(missing)


def link(view, **parameters):
    """The part of an address that names a view."""
    return view + "?" + urllib.parse.urlencode(parameters, doseq=True)


class Browser:
    """Its end is that of the `with`. With `watched`, status_of() tells what servers have answered."""

    def __init__(self, folder, watched=False):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in (
            "--headless=new",
            "--no-sandbox",  # containers have no user namespaces
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            f"--window-size={WIDTH},1000",
            f"--user-data-dir={folder / 'profile'}",
        ):
            options.add_argument(argument)
        logs = {"browser": "ALL"} | ({"performance": "ALL"} if watched else {})
        options.set_capability("goog:loggingPrefs", logs)
        options.add_experimental_option(
            "prefs", {"download.default_directory": str(folder / "downloads")}
        )
        self.urls, self.statuses = {}, {}  # by request
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(PATIENCE)
        self.driver.set_page_load_timeout(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def status_of(self, url):
        """The status of the answer to a URL, also if no page may see it. It is told once."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for entry in self.driver.get_log("performance"):
                message = json.loads(entry["message"])["message"]
                event = message["params"]
                if message["method"] == "Network.requestWillBeSent":
                    self.urls[event["requestId"]] = event["request"]["url"]
                elif message["method"] == "Network.responseReceivedExtraInfo":
                    self.statuses[event["requestId"]] = event["statusCode"]
            for request, status in self.statuses.items():
                if self.urls.get(request) == url:
                    del self.statuses[request]
                    return status
        raise AssertionError(f"no answer to {url}")

    def wait(self, condition, what):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(
            lambda _: self.driver.execute_script(f"return Boolean({condition})"), what
        )

    def wait_until_shown(self):
        """Waits for the view of the address, of which the page may not have heard yet."""
        self.wait(
            "document.getElementById('main')?.dataset.ready && main.dataset.address === location.hash "
            "&& !document.querySelector('[aria-busy]')",
            "the view is not shown",
        )

    def open(self, url, fragment):
        """Opens a view as a link from elsewhere would, in a page of its own. Returns its text."""
        self.driver.get("about:blank")
        self.driver.get(f"{url}#/{fragment}")
        self.wait_until_shown()
        return self.driver.find_element("id", "main").text

    def color_scheme(self, scheme):
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def keep_picture(self, path):
        """Keeps a picture of the whole page as PNG. Returns how wide the page is."""
        width, height = self.driver.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(height, MAX_HEIGHT), "scale": 1}
        picture = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        path.write_bytes(base64.b64decode(picture["data"]))
        return width

    def keep_print(self, path):
        """Prints the view on A4, as the browser's dialog does, and keeps it as PDF. Returns its bytes."""
        paper = dict(zip(("paperWidth", "paperHeight"), (mm / 25.4 for mm in PAPER), strict=True))
        options = {"preferCSSPageSize": True, **paper}
        printed = self.driver.execute_cdp_cmd("Page.printToPDF", options)
        path.write_bytes(base64.b64decode(printed["data"]))
        return path.read_bytes()

    @contextlib.contextmanager
    def on_paper(self):
        """Lays the view out as for A4, where scripts can look at it."""
        width = int((PAPER[0] - 2 * PAPER_MARGIN) / 25.4 * 96)
        screen = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        try:
            yield width
        finally:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

#!/usr/bin/env python3
"""Clicks through a report in headless Chromium, by chromedriver's HTTP interface.

	browser.py REPORT.html FUNCTION [PICTURES]

FUNCTION is the function of the largest site. With PICTURES, a directory, it saves pictures of the
page there. Any finding is printed, and ends the program with 1.
"""

import base64
import functools
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"right": "\ue014", "down": "\ue015", "escape": "\ue00c", "enter": "\ue007"}


class Browser:
    """A window of a size, in a color scheme."""

    def __init__(self, url, width, height, dark=False):
        self.url = url
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--disable-dev-shm-usage", f"--window-size={max(width, 500)},{height}"]
        if dark:
            options.append("--blink-settings=preferredColorScheme=0")
        chrome = {"args": options}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome,
                  "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.url = f"{url}/session/{session['sessionId']}"
        # A window cannot be as narrow as a phone, but what it shows can.
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.devtools("Network.enable", {})

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.read().decode()}")

    def devtools(self, command, parameters):
        body = {"cmd": command, "params": parameters}
        return self.call("POST", "/goog/cdp/execute", body)

    def open(self, page):
        self.call("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def find(self, css):
        return self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.call("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self.call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def press(self, key):
        actions = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        self.call("POST", "/actions", body)

    def texts(self, css):
        script = f"return [...document.querySelectorAll('{css}')].map(e => e.textContent)"
        return self.run(script)

    def picture(self, path):
        if path:
            image = self.call("GET", "/screenshot")
            pathlib.Path(path).write_bytes(base64.b64decode(image))

    def close(self):
        self.call("DELETE", "")


def check(condition, what):
    if not condition:
        sys.exit(f"report: {what}")


def value(text):
    """Bytes of a size."""
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    number, unit = text.split()
    return float(number) * units[unit]


def is_sorted(texts, descending):
    values = [value(text) for text in texts]
    return values == sorted(values, reverse=descending)


def click_through(browser, page, function, name, pictures):
    picture = lambda what: browser.picture(pictures and f"{pictures}/{what}-{name}.png")
    browser.open(page)
    check(not browser.run("return document.documentElement.scrollWidth > innerWidth"),
          "the page scrolls sideways")
    sizes = "tbody td:nth-child(1)"
    check(is_sorted(browser.texts(sizes), True), "the largest row is not the first")
    check(function in browser.texts("tbody tr:first-child td"), f"{function} is not the first row")
    picture("report")

    # A column sorts one way and the other, and by its name the other way round.
    browser.click("th[data-key=now] button")
    check(is_sorted(browser.texts(sizes), False), "a second click does not turn the order")
    check(browser.run("return document.querySelector('th[data-key=now]').ariaSort") == "ascending",
          "the order is not told to screen readers")
    browser.click("th[data-key=function] button")
    functions = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map(r => r.querySelector('.text')"
        ".textContent)")
    check(functions == sorted(functions, key=str.lower) or len(set(functions)) < 3,
          f"functions are not in order: {functions}")
    browser.click("th[data-key=now] button")

    # The filter leaves matching rows.
    rows = len(browser.texts("tbody tr"))
    browser.type("#filter", function.upper())
    check(0 < len(browser.texts("tbody tr")) < rows, "the filter leaves all rows or none")
    check(all(function in text for text in browser.texts("tbody tr")), "a row does not match")
    browser.run("const f = document.querySelector('#filter'); f.value = ''; f.oninput()")
    check(len(browser.texts("tbody tr")) == rows, "rows stay away without a filter")

    # Another time shows other numbers: by button, by key, by a click on the chart.
    live = lambda: browser.texts(".tile b")[0]
    browser.click("#to-peak")
    most = live()
    browser.click("#to-start")
    check(value(live()) < value(most), "the start holds as much as the peak")
    first = browser.texts("#moment")
    browser.run("document.querySelector('#slider').focus()")
    browser.press("right")
    check(browser.texts("#moment") != first, "an arrow key does not change the time")
    check(browser.run("const c = document.querySelector('#chart svg');"
                      "const b = c.getBoundingClientRect();"
                      "c.dispatchEvent(new PointerEvent('pointermove', {bubbles: true,"
                      "clientX: b.right - 60, clientY: b.top + 60}));"
                      "return !document.querySelector('#tip').hidden"), "no tip over the chart")
    before = browser.texts("#moment")
    browser.click("#chart svg")
    check(browser.texts("#moment") != before, "a click on the chart does not change the time")
    browser.click("#to-peak")

    # The flame graph, with keys too.
    browser.click("#tab-flame")
    check(any(function in text for text in browser.run(
        "return [...document.querySelectorAll('#flame button')].map(e => e.ariaLabel)")),
        "the flame graph lacks the largest site")
    picture("flame")
    widths = "return document.querySelectorAll('#flame button').length"
    every = browser.run(widths)
    browser.run("document.querySelector('#flame [tabindex=\"0\"]').focus()")
    browser.press("down")
    told = browser.texts("#frame")[0]
    check(not told.startswith("all:"), f"an arrow key does not go to a callee: {told}")
    browser.press("enter")
    check(browser.texts("#unzoom") == ["Show all"], "a frame is not enlarged")
    browser.press("escape")
    check(browser.run(widths) == every, "Escape does not show all again")

    # All other views have rows.
    for tab in browser.run("return [...document.querySelectorAll('#tabs button')].map(b => b.id)"):
        browser.click(f"#{tab}")
        check(tab == "tab-flame" or browser.texts("tbody tr"), f"{tab} has no rows")
        check(not browser.run("return document.documentElement.scrollWidth > innerWidth"),
              f"{tab} scrolls sideways")
        if tab == "tab-classes":
            picture("classes")
    browser.click("#tab-sites")
    browser.run("document.querySelector('#tab-sites').focus()")
    browser.press("right")
    check(browser.run("return document.activeElement.id") == "tab-flame",
          "an arrow key does not change the view")

    # Nothing was asked of a network, and nothing failed.
    loaded = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    check(loaded == [], f"the page loads {loaded}")
    log = browser.call("POST", "/se/log", {"type": "browser"})
    check(log == [], f"messages: {log}")


def plain(browser, page, function):
    """A page without a time axis."""
    browser.open(page)
    check(function in browser.texts("tbody tr:first-child td"), f"{function} is not the first row")
    check(browser.run("return document.querySelector('#time').hidden"), "one moment has a chart")
    log = browser.call("POST", "/se/log", {"type": "browser"})
    check(log == [], f"messages: {log}")


def main():
    page, function = pathlib.Path(sys.argv[1]), sys.argv[2]
    is_plain = sys.argv[3:] == ["--plain"]
    pictures = None if is_plain or len(sys.argv) < 4 else sys.argv[3]
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = None
        for line in driver.stdout:
            if "started successfully on port" in line:
                port = line.rsplit(" ", 1)[1].strip().rstrip(".")
                break
        check(port, "chromedriver does not start")
        url = f"http://127.0.0.1:{port}"
        start = functools.partial(Browser, url)
        if is_plain:
            browser = start(1100, 900)
            plain(browser, page, function)
            browser.close()
            return
        for name, size in [("desktop", (1100, 900)), ("phone", (390, 844))]:
            browser = start(*size)
            click_through(browser, page, function, name, pictures)
            browser.close()
        browser = start(1100, 900, dark=True)
        browser.open(page)
        dark = browser.run("return getComputedStyle(document.body).backgroundColor")
        check(dark == "rgb(20, 23, 27)", f"the dark page is {dark}")
        browser.picture(pictures and f"{pictures}/report-dark.png")
        browser.close()
    finally:
        driver.terminate()
        driver.wait()


if __name__ == "__main__":
    os.environ.pop("http_proxy", None)
    main()

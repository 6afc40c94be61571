"""A browser looking at the explorer, in the words of somebody who uses it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
PATIENCE = 20.0  # seconds until something that should happen has not
HOLD = """const ask = fetch;
    const released = new Promise((go) => { window.release = go; });
    window.fetch = async (...of) => { if (of[0].includes("OF")) await released; return ask(...of); }"""
EXPRESSION = "[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]"


def find_program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        f"the explorer is tested with {names[0]}, which is not here: apt-get install chromium chromium-driver"
    )


class Explorer:
    def __init__(self, driver: webdriver.Chrome, address: str, downloads: Path) -> None:
        self.driver, self.address, self.downloads = driver, address, downloads

    def open(self, *fields: tuple[str, Any], **more: Any) -> "Explorer":
        """The page at a link of these fields, once it shows something."""
        self.load(f"{self.address}#{urlencode([*fields, *more.items()])}")
        self.wait(
            "return document.querySelector('.pane .bars li') || !document.querySelector('#problem').hidden"
        )
        return self

    def load(self, address: str) -> None:
        """Anew, though only the part behind # be another."""
        self.driver.get("about:blank")
        self.driver.get(address)

    @contextmanager
    def answers_held(self, of: str = "") -> Iterator[None]:
        """Pages loaded meanwhile wait for answers from addresses that contain this, until `release()`."""
        script = {"source": HOLD.replace("OF", of)}
        held = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        yield
        self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", held)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := self.run(script, *arguments)):
            if time.monotonic() > end:
                self.shot("timeout")
                raise AssertionError(f"never came true: {script} {arguments}")
            time.sleep(0.03)
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def each(self, selector: str, value: str) -> list[Any]:
        """A JavaScript value of every element `e` that is found."""
        found: list[Any] = self.run(f"return [...document.querySelectorAll(`{selector}`)].map(e => {value})")
        return found

    def box(self, selector: str) -> dict[str, float]:
        found: dict[str, float] = self.each(selector, "e.getBoundingClientRect().toJSON()")[0]
        return found

    def spans(self, within: str = ".pane") -> list[list[int]]:
        """Of the nodes drawn, sorted."""
        return sorted(self.each(f"{within} .tree .node", "[+e.dataset.start, +e.dataset.end]"))

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def keys(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def type(self, text: str, box: str = "#text-0") -> None:
        field = self.one(box)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)
        field.send_keys(Keys.ENTER)

    def go_to(self, step: int) -> None:
        """As the slider does."""
        self.run(
            "const slider = document.querySelector('#step'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input'))",
            step,
        )

    def said(self, words: str) -> None:
        """What a screen reader hears of."""
        self.wait("return document.querySelector('#status').textContent.includes(arguments[0])", words)

    def resize(self, width: int, height: int = 900) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def prefers(self, what: str, value: str) -> None:
        """What the system says of its user, such as `color-scheme`."""
        features = [{"name": f"prefers-{what}", "value": value}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def shot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        time.sleep(0.35)  # nodes fade in
        self.driver.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def downloaded(self, name: str) -> bytes:
        path, end = self.downloads / name, time.monotonic() + PATIENCE
        while not path.exists() or path.stat().st_size == 0:
            assert time.monotonic() < end, f"{name} was not downloaded: {list(self.downloads.iterdir())}"
            time.sleep(0.03)
        content = path.read_bytes()
        path.unlink()
        return content

    def complaints(self) -> list[str]:
        """Messages of the console; a refused text is a status, which chromium logs whoever handles it."""
        messages = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        return [message for message in messages if "status of 422" not in message]

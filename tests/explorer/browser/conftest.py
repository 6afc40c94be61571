"""The explorer in a real browser: Debian's chromium, headless, and a server in a thread.

Every test fails on a console error or a breach of the content policy. Pictures go to build/screenshots.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import Explorer, find_program
from explored import small_model
from selenium import webdriver
from served import served

from beamtree.classifier.ensemble import Ensemble
from beamtree.classifier.model import create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.own import OwnFormat
from beamtree.explorer.models import add_untrained


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    models = {
        "listops-ebt-grc": load_model("listops-ebt-grc"),
        "untrained": small_model(seed=1),
        "balanced": small_model("balanced-grc"),
        "transformer": small_model("transformer"),
        "logic": small_model(task="logic"),
        "sentiment": small_model(task="sst5"),
        "own": small_model(task=OwnFormat(labels=("no", "yes")).task()),
        "together": two_that_read_words(),
        "own-pairs": small_model(task=OwnFormat(texts=("text1", "text2"), labels=("no", "yes")).task()),
    }
    models["listops-ebt-grc-untrained"] = add_untrained(models)["listops-ebt-grc-untrained"]
    with served(models=models) as port:
        yield f"http://127.0.0.1:{port}/"


def two_that_read_words() -> Ensemble:
    """An ensemble whose classifiers read the tokens beside the top node."""
    task = OwnFormat(labels=("fine", "weak")).task()
    settings = replace(small_model(task=task).settings, readout="pooled")
    words = small_model(task=task).words
    return Ensemble({f"seed{i}": create_model(settings, task, words) for i in range(2)}).eval()


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = find_program("chromium", "chromium-browser", "google-chrome")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(find_program("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def explorer(address: str, driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Explorer]:
    found = Explorer(driver, address, tmp_path)
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    found.resize(1280)
    found.prefers("color-scheme", "light")
    found.complaints()
    yield found
    assert found.complaints() == []

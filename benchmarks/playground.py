"""The page of ``torchcaps playground`` in a browser: milliseconds from a stroke to its bars, and test digits read.

``python -m benchmarks.playground RUN --out study/results`` serves the run, opens the page in Debian's Chromium and
draws with its mouse. Then it puts test digits on the page's canvas, one after the other, and compares what the page
says with what the network says of the same digits. It needs the extra ``playground`` and playwright.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from study import records
from torchcaps.data.images import to_float
from torchcaps.playground import load_network
from torchcaps.playground.samples import find_samples
from torchcaps.training.environment import commit, versions

NAME = "playground"
N_DIGITS, N_STROKES = 200, 40
#: Puts test image k on the canvas as the button does, and waits for what the page says.
_PUT = """async (bytes) => {
  const { picture } = await import("./drawing.js");
  window.playground.put(picture(Uint8Array.from(bytes)));
}"""


def measure(run: Path) -> dict[str, Any]:
    """Serve a run, drive its page and return what was measured.

    Raises:
        ValueError: no test images of the run are at hand.
    """
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    network = load_network(run)
    samples = find_samples(run, network.classes)
    if samples is None:
        raise ValueError(f"{run} must have test images at hand, got none: set TORCHCAPS_DATA")
    command = [sys.executable, "-m", "torchcaps", "playground", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        found = re.search(r"http\S+", server.stdout.readline())
        assert found is not None
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(found[0])
            page.locator("html[data-ready]").wait_for()
            times = _draw(page)
            said = [_put(page, image.flatten().tolist()) for image in samples.images[:N_DIGITS]]
        finally:
            browser.close()
            server.terminate()
    labels = samples.labels[:N_DIGITS].tolist()
    with torch.no_grad():
        own = network.model(to_float(samples.images[:N_DIGITS])).scores.argmax(dim=1).tolist()
    return {
        "n_updates": len(times),
        "stroke_to_bars_ms": {"median": statistics.median(times), "p95": statistics.quantiles(times, n=20)[-1]},
        "n_digits": N_DIGITS,
        "accuracy_on_the_page": _accuracy([network.classes.index(text) for text in said], labels),
        "accuracy_of_the_network": _accuracy(own, labels),
    }


def _draw(page: Any) -> list[float]:
    """Draw zigzags and return the milliseconds from each state of the canvas to its bars."""
    box = page.locator("#canvas").bounding_box()
    page.evaluate("performance.clearMeasures()")
    for k in range(N_STROKES):
        if k % 4 == 0:
            page.click("#clear")
        x, y = box["x"] + box["width"] * (0.25 + 0.03 * (k % 16)), box["y"] + box["height"] * 0.3
        page.mouse.move(x, y)
        page.mouse.down()
        for step in range(8):
            page.mouse.move(x + 15 * (step % 2), y + 15 * step)
            page.wait_for_timeout(30)
        page.mouse.up()
    page.wait_for_timeout(1000)
    return page.evaluate("performance.getEntriesByName('stroke to bars').map((entry) => entry.duration)")


def _put(page: Any, pixels: list[int]) -> str:
    """Put a digit on the canvas and return what the page says it is."""
    before = page.evaluate("performance.getEntriesByName('stroke to bars').length")
    page.evaluate(_PUT, pixels)
    while page.evaluate("performance.getEntriesByName('stroke to bars').length") == before:
        page.wait_for_timeout(5)
    return page.inner_text("#verdict")


def _accuracy(found: list[int], labels: list[int]) -> float:
    return sum(a == b for a, b in zip(found, labels)) / len(labels)


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the records")
    parsed = parser.parse_args()
    load = os.getloadavg()[0]
    content = {**measure(parsed.run), "load_average": [load, os.getloadavg()[0]], "cores": os.cpu_count()}
    record = {"what": __doc__, "run": parsed.run.name, "versions": versions(), "commit": commit(), **content}
    print(content)
    if parsed.out is not None:
        print(records.write("bench", NAME, record, parsed.out))


if __name__ == "__main__":
    main()

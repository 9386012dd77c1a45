"""The page in a browser: Debian's Chromium, which playwright drives."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.playground.conftest import small_cnn, small_network, small_parts, small_toys
from tests.playground.pages import BACKENDS, draw, move, opened, seen_image, settle
from torchcaps.data import load
from torchcaps.playground import fit_drawing, transform_image
from torchcaps.playground.answers import Playground
from torchcaps.playground.drawing import overlay_drawings


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    networks = [small_network(), small_network("pair", 36, pairs=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcaps.playground.network.PRESENT", 0.0)  # untrained capsules are short
        yield Playground(networks, small_cnn(), load("digits").test, small_parts(), small_toys())


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def address(playground: Playground, backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with opened(playground, backend, tmp_path_factory.mktemp("page")) as address:
        yield address


@pytest.fixture
def page(browser: Any, address: str, backend: str) -> Iterator[Any]:
    """The page, of which every request and every complaint is held against what may be."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(30_000)
    asked, wrong = [], []
    page.context.on("request", lambda request: asked.append(request.url))  # a worker's too
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    page.locator("html[data-ready]").wait_for()
    yield page
    page.close()
    assert any(url.endswith("api/see" if backend == "server" else ".wasm") for url in asked)
    assert all(url.startswith((address, "data:", "blob:")) for url in asked), "a request left the machine"
    assert wrong == []


def strokes_of(image: torch.Tensor) -> list[list[tuple[float, float]]]:
    """Follow a digit's ink from row to row: every run of bright pixels is a short stroke."""
    strokes = []
    for row, line in enumerate(image[0] > 100):
        columns = line.nonzero().flatten().tolist()
        for first in (c for c in columns if c - 1 not in columns):
            last = next(c for c in range(first, 28) if c + 1 not in columns)
            strokes.append([((first + 0.5) / 28, (row + 0.5) / 28), ((last + 0.5) / 28, (row + 0.5) / 28)])
    return strokes


def values(page: Any) -> list[float]:
    return [float(text) for text in page.locator("#bars .value").all_inner_texts()]


def test_a_digit_is_drawn_from_real_strokes_and_read(page: Any, playground: Playground) -> None:
    page.click("#clear")
    assert page.inner_text("#verdict") == "nothing yet"
    move(page, "brush", 12)
    image = load("digits").test.images[4]
    draw(page, strokes_of(image))
    settle(page)
    seen = seen_image(page, "input")
    assert ((seen > 0.5) & (image[0] > 60)).sum() > 0.7 * (seen > 0.5).sum()  # where the digit has its ink
    with torch.no_grad():
        scores = playground.networks[0].model(seen[None, None]).scores[0]
        cnn = playground.beside.model(seen[None, None]).scores.softmax(dim=1)[0]
    assert values(page) == pytest.approx(scores.tolist(), abs=0.0051)
    assert page.inner_text("#verdict") == str(int(scores.argmax()))
    widths = page.locator("#bars .beside").evaluate_all("(bars) => bars.map((bar) => parseFloat(bar.style.width))")
    assert widths == pytest.approx((100 * cnn).tolist(), abs=0.01)
    page.click("#undo")
    settle(page)
    assert not torch.equal(seen_image(page, "input"), seen)


def test_a_pose_moves_and_the_reconstruction_follows(page: Any) -> None:
    settle(page)
    before = seen_image(page, "posed")
    assert torch.equal(before, seen_image(page, "imagined"))
    assert page.locator("#sliders input").count() == 16
    page.locator("#pose-0").focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    settle(page)
    assert (seen_image(page, "posed") - before).abs().max() > 0.02
    page.click("#pose-reset")
    assert torch.equal(seen_image(page, "posed"), before)


def test_routing_is_stepped(page: Any) -> None:
    settle(page)
    last = page.inner_text("#agreement")
    assert last.startswith("After 3 of 3")
    move(page, "iteration", 1)
    assert "gets 10 % of all activity (an even share is 10 %)" in page.inner_text("#agreement")
    first = seen_image(page, "votes")
    move(page, "iteration", 3)
    assert page.inner_text("#agreement") == last
    assert not torch.equal(seen_image(page, "votes"), first)
    assert page.locator("#tree path").count() >= 28


def test_a_moved_digit_keeps_what_it_says_beside_its_pose(page: Any) -> None:
    settle(page)
    before = seen_image(page, "input")
    move(page, "rotate", 30)
    assert not torch.equal(seen_image(page, "input"), before)
    assert re.search(r"Length \d\.\d\d → \d\.\d\d; the pose moved by|taken for", page.inner_text("#moved"))
    page.click("#move-reset")
    settle(page)
    assert torch.equal(seen_image(page, "input"), before)


def test_an_attack_shows_both_answers(page: Any, backend: str) -> None:
    if backend == "static":  # programs have no gradients
        assert page.locator(".attack").is_hidden()
        return
    settle(page)
    before = seen_image(page, "attacked")
    assert torch.equal(before, seen_image(page, "input"))
    for against in ("capsules", "beside"):
        page.check(f"input[name=against][value={against}]")
        move(page, "epsilon", 0.2)
        assert 0.15 < (seen_image(page, "attacked") - before).abs().max() <= 0.21
        said = page.inner_text("#attack-says")
        assert re.fullmatch(r"capsules say \d \(\d\.\d\d\); cnn says \d \(\d\.\d\d\)\.", said), said


def test_two_digits_have_two_colours(page: Any) -> None:
    page.select_option("#network", "1")
    settle(page)
    page.click("#clear")
    draw(page, [[(0.3, 0.2), (0.3, 0.8)]])
    page.check("input[name=pen][value='1']")
    draw(page, [[(0.5, 0.2), (0.5, 0.8)]])
    settle(page)
    assert seen_image(page, "input").shape == (36, 36)
    columns = (seen_image(page, "input").sum(dim=0) > 0.5).nonzero().flatten()
    assert (columns.diff() > 1).sum() == 1  # two strokes, with a gap between
    assert page.locator("#bars .found0").count() == page.locator("#bars .found1").count() == 1
    red, blue = page.locator("#imagined").evaluate(
        "(c) => { const d = c.getContext('2d').getImageData(0, 0, 36, 36).data;"
        " return [0, 2].map((k) => d.filter((_, i) => i % 4 === k).reduce((a, b) => a + b, 0)); }"
    )
    assert red > 0
    assert blue > 0
    assert " and " in page.inner_text("#verdict")


def test_parts_move_apart(page: Any, playground: Playground) -> None:
    settle(page)
    assert playground.parts is not None
    move(page, "apart", 0)
    together = page.screenshot(clip=page.locator("#parts").bounding_box(), full_page=True)
    places = playground.parts(seen_image(page, "input")[None, None]).places
    assert places.abs().max() > 1
    move(page, "apart", 1)
    assert page.screenshot(clip=page.locator("#parts").bounding_box(), full_page=True) != together
    page.select_option("#network", "1")
    assert page.locator("#parts").is_hidden()  # they are of single digits


def test_a_toy_is_seen_from_all_sides(page: Any) -> None:
    toy = small_toys().toys[1]
    assert page.locator("#toy option").all_inner_texts() == ["cat", "dog"]
    page.select_option("#toy", "1")
    move(page, "around", 2)
    move(page, "above", 1)
    assert torch.equal((seen_image(page, "toy-view") * 255).round(), (toy.pictures[6] * 255).round())
    assert page.locator("output[for=around]").inner_text() == "180°"
    assert page.locator("output[for=above]").inner_text() == "60°"
    moved = 100 * (toy.poses[6] - toy.poses[4]).norm() / toy.poses[4].norm()
    said = f"Predicted: cat (0.90); from 0 of 8 sides dog. Since 0° its pose moved by {moved:.0f} %."
    assert page.inner_text("#toy-numbers") == said
    assert page.inner_text("#toy-says") == "cat"
    assert page.locator("#toy-turn polyline").count() == 1 + 16
    page.locator("#around").focus()
    page.keyboard.press("ArrowRight")
    assert torch.equal((seen_image(page, "toy-view") * 255).round(), (toy.pictures[7] * 255).round())


def test_it_is_drawn_by_keys(page: Any) -> None:
    page.click("#clear")
    page.locator("#canvas").focus()
    page.keyboard.press(" ")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    settle(page)
    seen = seen_image(page, "input")
    rows, columns = (seen > 0.5).nonzero().T
    assert rows.max() - rows.min() > 2 * (columns.max() - columns.min())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "undo"


def test_an_image_file_is_loaded_and_another_file_is_refused(page: Any, tmp_path: Path) -> None:
    from PIL import Image, ImageDraw

    photo = Image.new("RGB", (300, 400), (230, 225, 210))  # ink on paper
    ImageDraw.Draw(photo).line([(150, 60), (150, 340)], fill=(20, 20, 60), width=30)
    photo.save(tmp_path / "one.png")
    page.set_input_files("#file", tmp_path / "one.png")
    settle(page)
    seen = seen_image(page, "input")
    rows, columns = (seen > 0.5).nonzero().T
    assert (int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1) == (20, 2)
    (tmp_path / "none.png").write_bytes(b"no image")
    page.set_input_files("#file", tmp_path / "none.png")
    page.get_by_text("none.png is no image that this browser reads.").wait_for()


def test_the_theme_follows_the_system_and_the_switch(page: Any) -> None:
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light = ground()
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    dark = ground()
    assert dark != light
    page.click("#theme")
    assert ground() == light
    assert page.get_attribute("#theme", "aria-pressed") == "false"


@pytest.mark.parametrize("width", [360, 800, 1440])
def test_nothing_stands_out_at_any_width(page: Any, width: int, backend: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    folder = os.environ.get("TORCHCAPS_SCREENSHOTS")
    if folder:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.locator(f"html[data-theme={scheme}]").wait_for()
            page.screenshot(path=f"{folder}/{backend}-{width}-{scheme}.png", full_page=True)


def test_both_backends_call_a_number_the_same(page: Any, playground: Playground) -> None:
    settle(page)
    network = playground.networks[0]
    seen = seen_image(page, "input")
    with torch.no_grad():
        scores, pose = network.model(seen[None, None]).scores[0], network.see(seen[None]).poses
    assert pose is not None
    wanted = [
        f"{name[1:]} {name[0]}" if name else f"number {k + 1}"
        for k, name in enumerate(network.meanings(pose[0], int(scores.argmax())))
    ]
    assert page.locator("#sliders .slider span").all_inner_texts() == wanted


def test_this_browser_fits_drawings_as_python_does(page: Any, backend: str) -> None:
    if backend == "server":
        pytest.skip("the server fits drawings by Python itself")
    page.select_option("#network", "1")
    move(page, "brush", 14)
    generator = torch.Generator().manual_seed(0)
    for k, image in enumerate(load("digits").test.images[:4]):
        page.click("#clear")
        scale, x, y = (0.4 + 0.5 * torch.rand(3, generator=generator)).tolist()
        strokes = [
            [(x * (1 - scale) + scale * u, y * (1 - scale) + scale * v) for u, v in s] for s in strokes_of(image)
        ]
        draw(page, strokes[: len(strokes) // 2])
        page.check("input[name=pen][value='1']")
        draw(page, strokes[len(strokes) // 2 :])
        page.check("input[name=pen][value='0']")
        change = {"rotate": 20 - 9 * k, "shear": 0.1 * k - 0.3, "shift_x": k / 2 - 1, "shift_y": 2 - k}
        found = page.evaluate(_FIT, change)
        inks = [torch.tensor(ink).view(140, 140) / 255 for ink in found["inks"]]
        both = torch.stack(inks).sum(dim=0).clamp_max(1)
        overlaid = overlay_drawings(inks, 4)
        shift = (change.pop("shift_x"), change.pop("shift_y"))
        wanted = {
            "fitted": fit_drawing(both),
            "speck": fit_drawing(both[60:72, 60:72]),  # which is enlarged
            "overlaid": overlaid,
            "moved": transform_image(overlaid, shift=shift, **change),
        }
        assert both.any()
        for name, values in wanted.items():
            torch.testing.assert_close(torch.tensor(found[name]), values.flatten(), atol=2e-5, rtol=0, msg=name)


#: The page's own drawing, and what its script makes of it.
_FIT = """async (change) => {
  const fit = await import("./fit.js");
  const inks = window.playground.inks();
  const images = inks.map(fit.fromBytes);
  const both = fit.together(images);
  const speck = fit.image(12, 12);
  speck.data = speck.data.map((_, i) => both.data[(60 + Math.floor(i / 12)) * 140 + 60 + (i % 12)]);
  const overlaid = fit.overlayDrawings(images, 4);
  const made = {fitted: fit.fitDrawing(both), speck: fit.fitDrawing(speck), overlaid,
    moved: fit.transformImage(overlaid, change)};
  const lists = Object.fromEntries(Object.entries(made).map(([name, { data }]) => [name, [...data]]));
  return {...lists, inks: inks.map((ink) => [...ink])};
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("network", ["0", "1"])
def test_axe_finds_no_violation(browser: Any, address: str, scheme: str, network: str) -> None:
    axe = os.environ.get("TORCHCAPS_AXE")
    if axe is None:
        pytest.skip("TORCHCAPS_AXE names no axe.min.js: npm pack axe-core")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is not the page's own
    page = context.new_page()
    page.goto(address)
    page.locator("html[data-ready]").wait_for()
    page.select_option("#network", network)
    settle(page)
    page.add_script_tag(path=axe)
    found = page.evaluate("axe.run().then((found) => found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))")
    context.close()
    assert found == []

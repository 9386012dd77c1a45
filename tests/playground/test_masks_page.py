"""The page of networks that segment, in a browser: Debian's Chromium, which playwright drives."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.playground.conftest import small_network, small_segmenter
from tests.playground.pages import BACKENDS, draw, move, opened, settle
from torchcaps.data.image_file import read_image
from torchcaps.data.mask_file import colour_of
from torchcaps.explain import colour_masks
from torchcaps.playground.answers import Playground
from torchcaps.playground.segmenter import Segmenter

GREY, COLOUR = (1, 16, 24), (3, 20, 16)


@pytest.fixture(scope="module")
def playground() -> Playground:
    networks = [small_segmenter(), small_segmenter("colour", COLOUR), small_network()]
    return Playground(networks, small_segmenter("other"))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def address(playground: Playground, backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with opened(playground, backend, tmp_path_factory.mktemp("page")) as address:
        yield address


@pytest.fixture
def page(browser: Any, address: str, backend: str) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(30_000)
    asked, wrong = [], []
    page.context.on("request", lambda request: asked.append(request.url))  # a worker's too
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    page.locator("html[data-ready]").wait_for()
    settle(page)
    yield page
    page.close()
    assert any(url.endswith("api/see" if backend == "server" else "masks.onnx") for url in asked)
    assert all(url.startswith((address, "data:", "blob:")) for url in asked), "a request left the machine"
    assert wrong == []


def colours(page: Any, name: str, shape: tuple[int, int, int]) -> torch.Tensor:
    """A canvas of the network's own size, ``[3, H, W]`` of bytes."""
    found = page.locator(f"#{name}").evaluate(
        "(c) => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    )
    return torch.tensor(found).view(*shape[1:], 4)[..., :3].permute(2, 0, 1)


def sent(page: Any, shape: tuple[int, int, int]) -> torch.Tensor:
    """What the page sends of its canvas, as floats."""
    return torch.tensor(page.evaluate(f"[...window.playground.pixels({shape[0]})]")).view(shape) / 255


def wanted(playground: Playground, k: int, image: torch.Tensor) -> torch.Tensor:
    network = playground.networks[k]
    assert isinstance(network, Segmenter)
    return network.see(image)


def test_masks_lie_over_the_image_as_in_the_report(page: Any, playground: Playground) -> None:
    image = sent(page, GREY)
    scores = wanted(playground, 0, image)
    picture = colour_masks(image[None], scores[None])[0].permute(2, 0, 1)
    inside = (scores > 0.5).any(dim=0)
    assert inside.any()
    found = colours(page, "overlay", GREY) / 255
    assert (found - picture)[:, inside].abs().max() <= 1.1 / 255
    assert colours(page, "overlay-beside", GREY).equal(colours(page, "overlay", GREY))  # the same weights
    for k in (0, 1):
        page.locator("#bars button").nth(k).click()
        assert ((colours(page, "lengths", GREY)[0] / 255) - scores[k]).abs().max() <= 1 / 255
        row = page.locator("#bars li").nth(k)
        area, sure = (scores[k] > 0.5).float().mean(), scores[k]
        sure = sure[sure > 0.5].mean() if area else sure.max()
        said = row.locator(".value").inner_text()
        assert float(said.partition(" ")[0]) == pytest.approx(float(sure), abs=0.0051)
        assert ("nowhere" in said) == (area == 0)
        tint = row.locator(".bar").evaluate("(bar) => getComputedStyle(bar).backgroundColor")
        assert tint == f"rgb{colour_of(k)}"


def test_a_test_image_shows_its_true_masks_until_it_is_changed(page: Any, playground: Playground) -> None:
    network = playground.networks[0]
    assert isinstance(network, Segmenter) and network.samples is not None and network.samples.masks is not None
    image = sent(page, GREY)
    (index,) = [k for k, each in enumerate(network.samples.images) if torch.equal(each / 255, image)]
    truth, scores = network.samples.masks[index], wanted(playground, 0, image) > 0.5
    dice = 2 * (truth & scores).sum(dim=(1, 2)) / (truth.sum(dim=(1, 2)) + scores.sum(dim=(1, 2)))
    assert page.inner_text("#truth-caption") == f"true masks; Dice: cell {dice[0]:.2f}, wall {dice[1]:.2f}"
    picture = colour_masks(image[None], truth[None].float())[0].permute(2, 0, 1)
    assert (colours(page, "truth", GREY) / 255 - picture)[:, truth.any(dim=0)].abs().max() <= 1.1 / 255
    move(page, "rotate", 30)
    assert page.locator("#truth-figure").is_hidden()
    page.click("#move-reset")
    settle(page)
    assert page.locator("#truth-figure").is_visible()
    draw(page, [[(0.3, 0.3), (0.6, 0.6)]])
    settle(page)
    assert page.locator("#truth-figure").is_hidden()
    assert not torch.equal(sent(page, GREY), image)  # the stroke lies on the image, which is still there
    assert (sent(page, GREY) == image).float().mean() > 0.5


def test_a_stroke_has_its_colour_and_a_clear_canvas_nothing(page: Any) -> None:
    page.select_option("#network", "1")
    settle(page)
    page.click("#clear")
    settle(page)
    assert page.inner_text("#verdict") == "nothing yet"
    assert not colours(page, "overlay", COLOUR).any()
    move(page, "brush", 44)
    page.locator("#ink").evaluate(
        "(i) => { i.value = '#ff8000'; i.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    draw(page, [[(0.2, 0.5), (0.8, 0.5)]])
    settle(page)
    seen = (sent(page, COLOUR) * 255).round()
    assert seen[:, 10, 8].tolist() == [255, 128, 0]
    assert seen[:, 0].sum() == 0
    assert colours(page, "overlay", COLOUR).any()


def test_an_image_file_is_seen_nearly_as_in_training(page: Any, tmp_path: Path) -> None:
    page.select_option("#network", "1")
    settle(page)
    same = np.random.default_rng(0).integers(256, size=(*COLOUR[1:], 3), dtype=np.uint8)
    Image.fromarray(same).save(tmp_path / "same.png")
    page.set_input_files("#file", tmp_path / "same.png")
    settle(page)
    assert torch.equal((sent(page, COLOUR) * 255).round().byte(), torch.from_numpy(same).permute(2, 0, 1))
    large = Image.fromarray(same).resize((160, 300), Image.Resampling.BICUBIC)
    large.save(tmp_path / "large.png")
    page.set_input_files("#file", tmp_path / "large.png")
    settle(page)
    trained_on = read_image(tmp_path / "large.png", (20, 16)) / 255
    difference = (sent(page, COLOUR) - trained_on).abs()
    assert difference.mean() < 0.06  # a browser resizes otherwise than Pillow; shifted by a pixel it is 0.19
    clear = np.zeros((20, 16, 4), np.uint8)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    page.set_input_files("#file", tmp_path / "clear.png")
    settle(page)
    assert torch.equal(sent(page, COLOUR), torch.ones(COLOUR))  # transparency becomes white
    (tmp_path / "none.png").write_bytes(b"no image")
    page.set_input_files("#file", tmp_path / "none.png")
    page.get_by_text("none.png is no image that this browser reads.").wait_for()


def test_an_image_file_is_dropped(page: Any) -> None:
    page.click("#clear")
    page.locator("#canvas").evaluate(
        """async (canvas) => {
          const small = new OffscreenCanvas(24, 16);
          const context = small.getContext("2d");
          context.fillStyle = "#f00";
          context.fillRect(0, 0, 24, 16);
          const data = new DataTransfer();
          data.items.add(new File([await small.convertToBlob()], "red.png", { type: "image/png" }));
          canvas.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    settle(page)
    assert torch.equal(sent(page, GREY), torch.full(GREY, 76 / 255))  # the luminance of red, as Pillow has it


def test_layers_are_stepped(page: Any, playground: Playground) -> None:
    assert page.inner_text("output[for=layer]") == "12 / 12"
    assert page.inner_text("#layer-says").startswith("2 class capsules at 24×16 places")
    move(page, "layer", 4)
    assert page.inner_text("output[for=layer]") == "4 / 12"
    lengths = playground.networks[0].lengths(sent(page, GREY))[3]  # type: ignore[union-attr]
    maps = page.locator("#layer-maps canvas")
    assert maps.count() == len(lengths)
    found = maps.nth(1).evaluate("(c) => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)")
    assert (torch.tensor(found).view(*lengths.shape[1:], 4)[..., 0] / 255 - lengths[1]).abs().max() <= 0.51 / 255
    page.select_option("#network", "1")
    settle(page)
    assert page.locator(".layers").is_hidden()  # a U-Net has no capsules


def test_a_pixel_is_read(page: Any, playground: Playground) -> None:
    scores = wanted(playground, 0, sent(page, GREY))
    box = page.locator("#overlay").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 24, box["y"] + box["height"] * 2.5 / 16)
    said = page.inner_text("#pixel")
    found = re.fullmatch(r"Row 3, column 6: (cell|wall) (\d\.\d\d), (cell|wall) (\d\.\d\d)\.", said)
    assert found, said
    values = {found[1]: float(found[2]), found[3]: float(found[4])}
    assert [values["cell"], values["wall"]] == pytest.approx(scores[:, 2, 5].tolist(), abs=0.01)


def asked(page: Any, name: str, message: dict[str, Any]) -> dict[str, Any]:
    return page.evaluate(
        "([name, message]) => import('./api.js').then(({ ask }) => ask(name, message))", [name, message]
    )


def as_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).int()


@pytest.mark.parametrize("k", [0, 1])
def test_every_answer_is_pythons_own(page: Any, playground: Playground, k: int) -> None:
    """Of an image that is moved, which a static page does by itself."""
    pixels = torch.randint(256, (GREY, COLOUR)[k], dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    moves = {"rotate": 25.0, "shear": -0.2, "shift_x": 1.5, "shift_y": -2.0}
    message = {"network": k, "image": base64.b64encode(pixels.numpy().tobytes()).decode(), **moves}
    found, wanted = asked(page, "see", message), playground.see(message)
    for name in ("image", "scores", "beside"):
        if wanted[name] is None:
            assert k == 1 and name == "beside" and found[name] is None
            continue
        one, two = as_tensor(found[name]), as_tensor(wanted[name])
        assert (one - two).abs().max() <= 1 and one.unique().numel() > 2
        if name != "image":
            assert torch.equal(one >= 128, two >= 128)
    for one, two in zip(found["classes"], wanted["classes"], strict=True):
        assert one == pytest.approx(two, abs=1.1e-5)
    found, wanted = asked(page, "explain", message), playground.explain(message)
    assert len(found["layers"]) == len(wanted["layers"]) == (12, 0)[k]
    for one, two in zip(found["layers"], wanted["layers"], strict=True):
        assert one["shape"] == two["shape"]
        assert (as_tensor(one["lengths"]) - as_tensor(two["lengths"])).abs().max() <= 1


@pytest.mark.parametrize("k", [0, 1])
def test_test_images_come_with_their_own_masks(page: Any, playground: Playground, k: int) -> None:
    network = playground.networks[k]
    assert isinstance(network, Segmenter) and network.samples is not None and network.samples.masks is not None
    seen = set()
    for seed in range(12):
        said = asked(page, "sample", {"network": k, "seed": seed})
        image, masks = network.samples.images[said["index"]], network.samples.masks[said["index"]]
        assert torch.equal(as_tensor(said["image"]).view(image.shape), image.int())
        assert torch.equal(as_tensor(said["masks"]).view(masks.shape), 255 * masks.int())
        seen.add(said["index"])
    assert len(seen) > 2


def test_a_classifier_on_the_same_page_works_as_ever(page: Any) -> None:
    page.select_option("#network", "2")
    settle(page)
    page.click("#clear")
    draw(page, [[(0.5, 0.2), (0.5, 0.8)]])
    settle(page)
    assert page.inner_text("#h-says").startswith("Capsules say ")
    assert page.inner_text("#verdict").isdigit()
    assert page.locator(".masks").is_hidden() and page.locator(".agree").is_visible()
    page.select_option("#network", "0")
    settle(page)
    assert page.locator(".masks").is_visible() and page.locator(".agree").is_hidden()


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
            page.screenshot(path=f"{folder}/masks-{backend}-{width}-{scheme}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, address: str, scheme: str) -> None:
    axe = os.environ.get("TORCHCAPS_AXE")
    if axe is None:
        pytest.skip("TORCHCAPS_AXE names no axe.min.js: npm pack axe-core")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is not the page's own
    page = context.new_page()
    page.goto(address)
    page.locator("html[data-ready]").wait_for()
    settle(page)
    page.add_script_tag(path=axe)
    found = page.evaluate("axe.run().then((found) => found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))")
    context.close()
    assert found == []

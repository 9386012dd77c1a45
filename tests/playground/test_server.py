from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("httpx", reason="httpx, which drives the server, is not installed")

from starlette.testclient import TestClient

from tests.playground.conftest import small_cnn, small_network
from torchcaps.playground.answers import Playground
from torchcaps.playground.app import make_app
from torchcaps.playground.messages import CANVAS, LARGEST

ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def client(playground: Playground) -> Iterator[TestClient]:
    with TestClient(make_app(playground), base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def ink(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    found = torch.zeros(CANVAS, CANVAS, dtype=torch.uint8)
    top, left = torch.randint(0, 60, (2,)).tolist()
    found[top : top + 60, left : left + 20] = 255
    found[top : top + 20, left : left + 22 + 2 * seed] = 255
    return found


def encoded(pixels: torch.Tensor) -> str:
    return base64.b64encode(pixels.numpy().tobytes()).decode()


def drawing(seed: int = 0, **further: Any) -> dict[str, Any]:
    return {"network": 0, "layers": [encoded(ink(seed))], **further}


def decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def test_the_answer_is_the_networks_own(client: TestClient, playground: Playground) -> None:
    found = client.post("/api/see", json=drawing()).json()
    network = playground.networks[0]
    image = network.fit([ink().float() / 255])
    with torch.no_grad():
        output = network.model(image[None])
        best = int(output.scores.argmax())
        picture = network.model.decoder(output.capsules[-1], torch.tensor([best]))[0]
        cnn = playground.beside.model(image[None]).scores.softmax(dim=1)[0]
    assert found["scores"] == pytest.approx(output.scores[0].tolist(), abs=1e-5)
    assert [each["label"] for each in found["shown"]] == [best]
    assert found["shown"][0]["pose"] == pytest.approx(output.capsules[-1].pose[0, best].tolist(), abs=1e-5)
    assert torch.equal(decoded(found["shown"][0]["image"]), (picture * 255).round().to(torch.uint8).flatten())
    assert found["beside"] == pytest.approx(cnn.tolist(), abs=1e-5)


def test_couplings_begin_even_and_come_to_the_scores(client: TestClient) -> None:
    seen = client.post("/api/see", json=drawing()).json()
    found = client.post("/api/explain", json=drawing()).json()
    first, *_, last = found["iterations"]
    assert len(found["iterations"]) == 3
    assert torch.allclose(torch.tensor(first["share"]), torch.tensor(0.1), atol=1e-4)
    assert not torch.allclose(torch.tensor(last["share"]), torch.tensor(0.1), atol=1e-4)
    assert last["scores"] == pytest.approx(seen["scores"], abs=1e-4)
    assert torch.tensor(last["share"]).sum(dim=0).sub(1).abs().max() < 1e-3
    assert [len(names) for names in found["meanings"]] == [16]
    assert found["labels"] == [each["label"] for each in seen["shown"]]
    assert found["image"] == seen["image"]


def test_a_pose_is_decoded(client: TestClient) -> None:
    shown = client.post("/api/see", json=drawing()).json()["shown"][0]
    asked = {"network": 0, "label": shown["label"], "pose": shown["pose"]}
    same = decoded(client.post("/api/decode", json=asked).json()["image"]).int()
    assert (same - decoded(shown["image"]).int()).abs().max() <= 1  # the pose came with five digits
    asked["pose"] = [0.5, *shown["pose"][1:]]
    assert (decoded(client.post("/api/decode", json=asked).json()["image"]).int() - same).abs().max() > 5


def test_an_attack_changes_each_pixel_by_epsilon_at_most(client: TestClient) -> None:
    still = client.post("/api/see", json=drawing()).json()
    for against in ("capsules", "beside"):
        found = client.post("/api/attack", json=drawing(epsilon=0.2, against=against)).json()
        difference = (decoded(found["image"]).int() - decoded(still["image"]).int()).abs()
        assert 40 < difference.max() <= 52
        best = max(still["scores"] if against == "capsules" else still["beside"])
        key = "scores" if against == "capsules" else "beside"
        assert found[key][still[key].index(best)] < best
    none = client.post("/api/attack", json=drawing(epsilon=0)).json()
    assert none["scores"] == still["scores"]


def test_two_pens_are_two_digits_for_the_network_of_pairs(client: TestClient, playground: Playground) -> None:
    inks = [ink(1), ink(2)]
    found = client.post("/api/see", json={"network": 1, "layers": [encoded(each) for each in inks]}).json()
    image = playground.networks[1].fit([each.float() / 255 for each in inks])
    assert torch.equal(decoded(found["image"]), (image * 255).round().to(torch.uint8).flatten())
    assert found["beside"] is None  # the CNN takes other images


def test_reconstructions_stand_in_the_order_of_the_pens(playground: Playground, monkeypatch: Any) -> None:
    from torchcaps.playground.messages import read_drawing
    from torchcaps.playground.network import Network, Seen

    network = playground.networks[1]
    pair = [torch.zeros(CANVAS, CANVAS, dtype=torch.uint8) for _ in range(2)]
    pair[0][20:120, 30:50], pair[1][20:120, 90:110] = 255, 255
    parts = torch.stack(network.fit_each([each.float() / 255 for each in pair]))
    for order in ([0, 1], [1, 0]):
        seen = Seen(torch.rand(10), [k + 5 for k in order], torch.rand(2, 16), parts[order])
        monkeypatch.setattr(Network, "see", lambda self, image, seen=seen: seen)
        message = {"network": 1, "layers": [encoded(each) for each in pair]}
        assert read_drawing(message, 2).network == 1
        assert [each["label"] for each in playground.see(message)["shown"]] == [5, 6]


def test_moving_is_done_after_centring(client: TestClient) -> None:
    still = decoded(client.post("/api/see", json=drawing()).json()["image"]).view(28, 28)
    moved = decoded(client.post("/api/see", json=drawing(shift_x=3)).json()["image"]).view(28, 28)
    assert (moved[:, 3:].int() - still[:, :-3].int()).abs().max() <= 1


def test_samples_are_test_images(client: TestClient, playground: Playground) -> None:
    found = client.post("/api/sample", json={"seed": 5}).json()
    assert torch.equal(decoded(found["image"]), playground.samples.images[found["index"]].flatten())
    assert found["label"] == playground.samples.labels[found["index"]]


def test_twenty_clients_at_once_get_right_answers(client: TestClient) -> None:
    messages = [drawing(seed) for seed in range(20)]
    alone = [client.post("/api/see", json=message).json() for message in messages]
    assert len({tuple(found["scores"]) for found in alone}) == 20
    together = threading.Barrier(20, timeout=60)

    def ask(k: int) -> tuple[Any, Any]:
        together.wait()
        explained = client.post("/api/explain", json=messages[k]).json()
        return client.post("/api/see", json=messages[k]).json(), explained["iterations"][-1]["scores"]

    with ThreadPoolExecutor(20) as pool:
        for expected, (found, explained) in zip(alone, pool.map(ask, range(20))):
            assert found == expected
            assert explained == pytest.approx(expected["scores"], abs=1e-4)


BAD = [
    (b"{", "must be JSON"),
    (b"[]", "must be a JSON object, got a list"),
    (b"\xff\xfe\x00", "must be JSON"),
    (b'{"layers": NaN}', "NaN is no JSON"),
    (b"[" * 50_000, "nested too deep"),
    ({}, "layers must be a list of one or two drawings"),
    ({"layers": ["AAAA"] * 3}, "layers must be a list of one or two drawings, got a list of 3"),
    ({"layers": [7]}, "must be base64 text, got 7"),
    ({"layers": ["?"]}, "must be base64 text"),
    ({"layers": ["é"]}, "must be base64 text"),
    ({"layers": ["AAAA"]}, "must be 140×140 = 19600 bytes, got 3"),
    (drawing(network=2), "network must be a whole number from 0 to 1, got 2"),
    (drawing(network=True), "network must be a whole number"),
    (drawing(network="../../etc/passwd"), "network must be a whole number"),
    (drawing(rotate="1"), "rotate must be a number from -180 to 180, got '1'"),
    (drawing(shear=1e9), "shear must be a number from -2 to 2"),
    (json.dumps(drawing()).replace('"network": 0', '"network": 0, "shift_x": 1e999').encode(), "shift_x must be"),
]


@pytest.mark.parametrize(("message", "reason"), BAD)
def test_a_wrong_drawing_is_refused_with_a_reason(client: TestClient, message: Any, reason: str) -> None:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    for path in ("see", "explain", "attack", "take_apart"):
        refused(client.post(f"/api/{path}", content=body, headers={"content-type": "application/json"}), 400, reason)


@pytest.mark.parametrize(
    ("path", "message", "reason"),
    [
        ("decode", {"pose": [0.0] * 15}, "pose must be 16 numbers, got 15"),
        ("decode", {"pose": []}, "pose must be a list of numbers"),
        ("decode", {"pose": [0.0] * 100_000}, "413"),
        ("decode", {"pose": [1e300] * 16}, "from -1000 to 1000"),
        ("decode", {"pose": ["1"] * 16}, "from -1000 to 1000"),
        ("decode", {"pose": [0.0] * 16, "label": 10}, "label must be a whole number from 0 to 9"),
        ("decode", {"pose": [0.0] * 16, "label": -1}, "label must be a whole number from 0 to 9"),
        ("attack", drawing(epsilon=2), "epsilon must be a number from 0 to 1, got 2"),
        ("attack", drawing(), "epsilon must be a number from 0 to 1, got None"),
        ("attack", drawing(epsilon=0.1, against=["x"]), "against must be one of capsules, beside"),
        ("sample", {"seed": 2**31}, "seed must be a whole number"),
    ],
)
def test_other_wrong_messages_are_refused(client: TestClient, path: str, message: Any, reason: str) -> None:
    answer = client.post(f"/api/{path}", json=message)
    refused(answer, *((413, "at most") if reason == "413" else (400, reason)))


def refused(answer: Any, status: int, reason: str) -> None:
    assert answer.status_code == status
    assert reason in answer.json()["error"]
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text


def test_a_huge_body_is_refused_before_it_is_read(client: TestClient) -> None:
    kind = {"content-type": "application/json"}
    refused(client.post("/api/see", content=b" " * (LARGEST + 1), headers=kind), 413, "at most")
    read = []

    def endless() -> Iterator[bytes]:  # in parts, whose sum no header states
        for _ in range(1000):
            read.append(1)
            yield b" " * 10_000

    refused(client.post("/api/see", content=endless(), headers=kind), 413, "at most")
    refused(client.post("/api/see", content=b"{}", headers={**kind, "content-length": "-1"}), 413, "at most")


def test_other_content_types_are_refused(client: TestClient) -> None:
    """Those that a form of another page can send without being asked."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/api/see", content=b"{}", headers={"content-type": kind})
        refused(answer, 415, "must be application/json")


@pytest.mark.parametrize("host", ["example.org", "example.org:8000", "10.0.0.1:8000", "127.0.0.1.example.org", ""])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    refused(client.get("/", headers={"host": host}), 421, "the host must be one of 127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "LOCALHOST"])
def test_this_machines_names_are_served(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://example.org", "null", "http://127.0.0.1:9", "https://127.0.0.1:8000"])
def test_another_origin_is_refused(client: TestClient, origin: str) -> None:
    refused(client.post("/api/see", json=drawing(), headers={"origin": origin}), 403, "own page")


def test_its_own_origin_is_served_and_another_site_is_not(client: TestClient) -> None:
    assert client.post("/api/see", json=drawing(), headers={"origin": ADDRESS}).status_code == 200
    refused(client.get("/api/playground", headers={"sec-fetch-site": "cross-site"}), 403, "own page")
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_any_address_serves_addresses_but_no_names(playground: Playground) -> None:
    with TestClient(make_app(playground, ("0.0.0.0",), any_address=True), base_url="http://192.168.1.5:80") as client:
        assert client.get("/").status_code == 200
        refused(client.get("/", headers={"host": "example.org"}), 421, "the host must be")


@pytest.mark.parametrize(
    "path",
    [
        "/app.py",
        "/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/static/../app.py",
        "/style.css/../../app.py",
        "//etc/passwd",
        "/%00",
        "/style.css%00.html",
        "/C:\\windows\\win.ini",
    ],
)
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_wrong_methods_are_refused(client: TestClient) -> None:
    refused(client.get("/api/see"), 405, "Method")
    refused(client.post("/", json={}), 405, "Method")


def test_a_failure_of_ours_shows_no_trace(client: TestClient, playground: Playground, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(type(playground.networks[0]), "see", fail)
    answer = client.post("/api/see", json=drawing())
    refused(answer, 500, "the terminal that it runs in")
    assert "secret" not in answer.text


def test_every_answer_forbids_what_comes_from_elsewhere(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/nothing"), client.get("/", headers={"host": "x"})):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


def test_the_pages_files_name_no_other_machine() -> None:
    folder = Path(__import__("torchcaps").__file__).parent / "playground" / "static"
    paths = [path for path in folder.rglob("*") if path.suffix != ".txt" and path.is_file()]
    assert {"index.html", "style.css", "main.js", "worker.js"} <= {path.name for path in paths}
    for path in paths:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, which is not loaded
        assert "//" not in "".join(part for part in text.split() if part.startswith(("http", "src", "href"))), path


def test_networks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="networks must hold at least one"):
        Playground([])
    with pytest.raises(ValueError, match="cnn must route a map of capsules to its classes.*--beside"):
        Playground([small_cnn()])
    with pytest.raises(ValueError, match="beside must have the task, the classes and the image shape"):
        Playground([small_network("pair", 36, pairs=True)], small_cnn())


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 20, 20), (1, 28, 30)])
def test_images_that_cannot_be_drawn_are_refused(shape: tuple[int, int, int]) -> None:
    from torchcaps.playground import Network

    with pytest.raises(ValueError, match="image_shape must be"):
        Network("odd", small_network().model, tuple("0123456789"), shape)

"""``--import``: code of one's own in commands, kept in the run and never run unasked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchcaps.cli import main
from torchcaps.training import own_code

MINE = """
from torch import nn

import helper_of_mine
from torchcaps import DenseCaps, PrimaryCaps
from torchcaps.models import MODELS


def network(image_shape, n_classes, channels=4):
    "A network of mine."
    return nn.Sequential(
        nn.Conv2d(1, channels, 3),
        PrimaryCaps(channels, 2, 4, 3, stride=2),
        DenseCaps(2 * helper_of_mine.PLACES, n_classes, 4, 4),
    )


MODELS["mine"] = network
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_mine.py").write_text("PLACES = 4 * 4")
    file = tmp_path / "mine_for_a_test.py"
    file.write_text(MINE)
    return file


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from torchcaps.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_network_of_ones_own_is_trained_and_evaluated_with_its_file(mine: Path, tmp_path: Path) -> None:
    options = ["--smoke", "--model.name", "mine", "--model.options", "{}", "--data.image_size", "[12,12]"]
    done = command("--import", mine, "train", "digits", *options, "--out", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    kept = tmp_path / "run" / "code" / "mine_for_a_test.py"
    assert kept.read_text() == mine.read_text()
    done = command("evaluate", "run", folder=tmp_path)
    assert done.returncode == 2
    assert "One of your own is entered in torchcaps.models.MODELS first" in done.stderr
    assert f"look at it, then add --import {Path('run') / 'code' / kept.name}" in done.stderr
    done = command("evaluate", "run", f"--import={mine}", folder=tmp_path)
    assert done.returncode == 0 and "test error" in done.stdout, done.stderr
    assert "A network of mine." in command("list", "--import", mine, folder=tmp_path).stdout


def test_another_version_of_a_file_is_kept_beside_the_first(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_code, "_IMPORTED", {"mine_for_a_test": mine})
    for text in ("a = 1", "a = 2", "a = 1"):
        mine.write_text(text)
        own_code.keep_in(tmp_path / "run")
    kept = {file.name: file.read_text() for file in (tmp_path / "run" / "code").iterdir()}
    assert kept == {"mine_for_a_test.py": "a = 1", "mine_for_a_test-2.py": "a = 2"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", None, "--import must name a Python file, got"),
        ("notes.txt", "a = 1", "--import must name a Python file, got"),
        ("json.py", "a = 1", "--import must name a file whose name no module has, got .*: json is"),
    ],
)
def test_bad_files(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        own_code.import_file(tmp_path / name)


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken_for_a_test.py"
    file.write_text("1 / 0")
    path = list(sys.path)
    with pytest.raises(ZeroDivisionError):
        own_code.import_file(file)
    assert "broken_for_a_test" not in sys.modules and sys.path == path


def test_an_option_without_a_file_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--import"]) == 2
    assert "--import must name a Python file, got" in capsys.readouterr().err

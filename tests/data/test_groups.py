"""Images of one patient, object or camera are in one split, and a table that is broken or incomplete is refused."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchcaps.cli import main
from torchcaps.data import Dataset, load
from torchcaps.training.environment import splits_in_words

#: Of the images that are written: classes, patients, images of a patient.
CLASSES, N, EACH = ("benign", "malignant"), 24, 3


def image(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 12, 3), shade, np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Every image has a shade of its own, ``EACH`` times the patient's number and up."""
    for patient, k in itertools.product(range(N), range(EACH)):
        image(tmp_path / "photos" / CLASSES[patient % 2] / f"p{patient:02}_{k}.png", EACH * patient + k)
    return tmp_path / "photos"


def homes(data: Dataset) -> dict[int, set[str]]:
    """In which splits each patient is, by the shades."""
    found: dict[int, set[str]] = {}
    for split, part in data.splits.items():
        for shade in part.images[:, 0, 0, 0].tolist():
            found.setdefault(shade // EACH, set()).add(split)
    return found


def test_without_groups_patients_are_in_several_splits(photos: Path) -> None:
    assert any(len(splits) > 1 for splits in homes(load("folder", photos)).values())


@pytest.mark.parametrize("groups", ["^p[0-9]+", "^(p[0-9]+)_", "^(?P<patient>.+)_(?:[0-9])"])
def test_groups_by_file_name(photos: Path, groups: str) -> None:
    data = load("folder", photos, groups=groups)
    found = homes(data)
    assert len(found) == N and all(len(splits) == 1 for splits in found.values())
    sizes = {split: [int((part.labels == k).sum()) for k in (0, 1)] for split, part in data.splits.items()}
    assert sizes == {"train": [27, 27], "val": [3, 3], "test": [6, 6]}
    assert data.note == f"split by content in the groups of {groups}, stratified by class"
    assert "group" not in load("folder", photos).train.factors
    for part in data.splits.values():
        assert part.factors["group"].tolist() == [shade // EACH for shade in part.images[:, 0, 0, 0].tolist()]


def test_a_patient_who_comes_moves_few_and_new_images_go_to_their_patient(photos: Path) -> None:
    before = homes(load("folder", photos, groups="^p[0-9]+"))
    image(photos / "benign" / "p04_later.png", 200)
    found = homes(load("folder", photos, groups="^p[0-9]+"))
    assert found[200 // EACH] == found[4]
    image(photos / "benign" / "p99_0.png", 230)
    found = homes(load("folder", photos, groups="^p[0-9]+"))
    assert sum(found[patient] != before[patient] for patient in range(N)) <= 2


def test_groups_in_folders_of_their_own(photos: Path) -> None:
    flat = load("folder", photos, groups="^p[0-9]+")
    for path in list(photos.rglob("*.png")):
        patient, _, name = path.name.partition("_")
        (path.parent / patient).mkdir(exist_ok=True)
        path.rename(path.parent / patient / name)
    with pytest.raises(ValueError, match=r"got the folders p00, .* want data.options.groups, such as '\^\(\.\+\)/'"):
        load("folder", photos)
    assert homes(load("folder", photos, groups="^(.+)/")) == homes(flat)


@pytest.mark.parametrize(
    ("head", "line", "encoding"),
    [
        ("file,group", "{class}/{name},{group}", "utf-8"),
        ("group;age;file", "{group};40;{name}", "utf-8-sig"),  # as a spreadsheet of another language writes it
        ("File\tGroup", "{class}\\{name}\t {group} ", "utf-8"),
    ],
)
def test_groups_by_a_table(photos: Path, head: str, line: str, encoding: str) -> None:
    lines = [head]
    for path in sorted(photos.rglob("*.png")):
        lines.append(line.format(**{"class": path.parent.name, "name": path.name, "group": path.name[:3]}))
    (photos / "patients.csv").write_text("\r\n".join(lines) + "\r\n\r\n", encoding=encoding)
    found = homes(load("folder", photos, groups="patients.csv"))
    assert found == homes(load("folder", photos, groups="^p[0-9]+"))
    (photos / "patients.csv").rename(photos.parent / "elsewhere.csv")
    assert homes(load("folder", photos, groups=str(photos.parent / "elsewhere.csv"))) == found


ROWS = [f"{CLASSES[p % 2]}/p{p:02}_{k}.png,p{p}" for p in range(N) for k in range(EACH)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS, "must begin with the names of its columns, file and group, got benign/p00_0.png, p0"),
        (["file,group,file", *ROWS], "must begin with the names of its columns, file and group, got file, group, file"),
        ([], "must begin with the names of its columns, file and group, got"),
        (["file,group", *ROWS[2:]], "must have a row for every image of .*, got none for 2 of 72, such as benign/p00"),
        (["file,group", "benign/p00_0.png,", *ROWS[1:]], r"line 2, must have 2 cells, with a file and a group; got \["),
        (["file,group", "benign/p00_0.png", *ROWS[1:]], r"line 2, must have 2 cells, with a file and a group; got \["),
        (["file,group", "a,b,c", *ROWS], r"line 2, must have 2 cells, with a file and a group; got \['a', 'b', 'c'\]"),
        (["file,group", *ROWS, "benign/p00_0.png,p1"], "must name one group for benign/p00_0.png, got p0 and p1"),
        (
            ["file,group", *ROWS, "p00_0.png,p1"],
            "must name one group for benign/p00_0.png, got p0, and p1 for p00_0.png",
        ),
        (["file,group", *ROWS[:-1], '"malignant/p23_2.png,p23'], "cannot be read as a table"),
        (["file,group", *(row.partition(",")[0] + ",all" for row in ROWS)], "at least three groups, .* got 1: all"),
    ],
)
def test_tables_that_are_broken_or_incomplete(photos: Path, rows: list[str], message: str) -> None:
    (photos / "patients.csv").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=message):
        load("folder", photos, groups="patients.csv")


def test_a_table_of_other_bytes_or_other_images(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = photos / "patients.csv"
    table.write_bytes(b"file,group\n\xff\xfe,p1\n")
    with pytest.raises(ValueError, match=r"patients.csv cannot be read as a table: .*utf-8"):
        load("folder", photos, groups="patients.csv")
    table.write_text("\n".join(["file,group", *ROWS, "benign/gone.png,p5"]))
    load("folder", photos, groups="patients.csv")
    assert f"has rows for 1 of {len(ROWS) + 1}, such as benign/gone.png that" in caplog.text
    image(photos / "malignant" / "p00_0.png", 250)
    names = [row.partition("/")[2] for row in ROWS]
    table.write_text("\n".join(["file,group", *names]))
    with pytest.raises(ValueError, match=r"must name p00_0.png by its folder too, as in benign/p00_0.png: 2 images"):
        load("folder", photos, groups="patients.csv")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("", "must be a regular expression or a .csv file, got ''"),
        (3, "must be a regular expression or a .csv file, got 3"),
        ("^(p", r"must be a regular expression or a .csv file, got '\^\(p': missing \)"),
        ("^(p)([0-9]+)", "must have one pair of brackets that capture, or none .* got 2 in"),
        ("^(p0[0-9]+)_", "must match in the name of every image, got .* finds no group for 42 of 72, such as .*p10_0"),
        ("x*", "must match in the name of every image, got .* finds no group for 72 of 72"),
        ("[.]png$", "must name at least three groups, for one cannot be in two splits; got 1: .png by"),
        ("nowhere.csv", r"must be a table in .*photos, or the path of one; got nowhere.csv, which is not there"),
    ],
)
def test_groups_that_are_none(photos: Path, groups: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"data.options.groups {message}"):
        load("folder", photos, groups=groups)


def test_accents_are_the_same_on_every_disk(photos: Path) -> None:
    """A Mac writes é as two characters in names of files, a table as one."""
    names = {path: f"é{path.name}" for path in photos.rglob("*.png")}
    for path, name in names.items():
        path.rename(path.with_name(unicodedata.normalize("NFD", name)))
    rows = ["file,group", *(f"{path.parent.name}/{name},{name[:4]}" for path, name in names.items())]
    (photos / "patients.csv").write_text("\n".join(unicodedata.normalize("NFC", row) for row in rows), encoding="utf-8")
    by_name = homes(load("folder", photos, groups="^(.+)_"))
    assert by_name == homes(load("folder", photos, groups="patients.csv"))
    assert all(len(splits) == 1 for splits in by_name.values())


def test_a_split_that_is_given_keeps_groups_apart(photos: Path) -> None:
    for path in list(photos.rglob("*.png")):
        to = photos / ("test" if path.name < "p06" else "train") / path.parent.name
        to.mkdir(parents=True, exist_ok=True)
        path.rename(to / path.name)
    for name in CLASSES:
        (photos / name).rmdir()
    data = load("folder", photos, groups="^p[0-9]+")
    assert all(len(splits) == 1 for splits in homes(data).values())
    assert len(data.test) == 18 and len(data.val) == 6
    image(photos / "test" / "benign" / "p08_more.png", 255)
    with pytest.raises(ValueError, match="must have each group in one split, got p08 in test and train: move its"):
        load("folder", photos, groups="^p[0-9]+")


def test_groups_that_changed_are_other_data(photos: Path) -> None:
    """Though each class has as many images in each split: else a network would be tested on what it was trained on."""
    (photos / "patients.csv").write_text("\n".join(["file,group", *ROWS]))
    before = load("folder", photos, groups="patients.csv")
    (photos / "patients.csv").write_text("\n".join(["file,group", *(f"{row}x" for row in ROWS)]))
    after = load("folder", photos, groups="patients.csv")
    assert [part.labels.tolist() for part in before.splits.values()] == [
        p.labels.tolist() for p in after.splits.values()
    ]
    assert splits_in_words(before).keys() == splits_in_words(after).keys()
    assert all(splits_in_words(before)[name] != splits_in_words(after)[name] for name in ("train", "val", "test"))
    assert splits_in_words(before)["test"].startswith("12 images, labels ")


def test_groups_from_the_command_line(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    data = [
        "--data.name=folder",
        "--data.root=photos",
        "--data.image_size=[28,28]",
        "--data.options.groups=^(p[0-9]+)_",
    ]
    assert main(["train", "digits-cnn", *data, "--smoke", "--device=cpu", "--threads=1", "--out=run"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["config"]["data"]["options"] == {"groups": "^(p[0-9]+)_", "n_each": 12}
    assert re.search("groups of", result["data"])

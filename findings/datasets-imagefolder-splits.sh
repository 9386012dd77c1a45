#!/usr/bin/env bash
# datasets 5.2.0: a class folder called "test_tubes" or "dev-boards" becomes a split, and all other classes vanish.
#
# Guess: in a folder with one sub-folder a class, load_dataset("imagefolder") gives all images in the split "train",
# with the folders' names as labels. Only folders called exactly train, test or validation are splits.
# Seen: a name that holds such a word between marks is a split too. With the classes cats, dogs and test_tubes there is
# the split "test" alone, with the images of test_tubes; those of cats and dogs are gone, and no label is left. There
# is no warning. With test-free names (cats, dogs, tubes) all is as guessed.
# What we do: torchcaps.data.layout takes folders for splits by their whole names, only if all folders are such, and
# wants a train and a test among them; tests/data/test_layout.py.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
place = Path(sys.argv[1])

def loaded(*classes):
    root = place / "-".join(classes)
    for name in classes:
        (root / name).mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (6, 6), (80 * k, 0, 0)).save(root / name / f"{k}.png")
    found = datasets.load_dataset("imagefolder", data_dir=str(root), cache_dir=str(place / "cache"))
    return {split: (len(part), "label" in part.features) for split, part in found.items()}

got = {
    "tubes": loaded("cats", "dogs", "tubes"),
    "test_tubes": loaded("cats", "dogs", "test_tubes"),
    "dev-boards": loaded("cats", "dogs", "dev-boards"),
}
print("datasets", datasets.__version__, "split: (images, labelled)", got)
want = {"tubes": {"train": (9, True)}, "test_tubes": {"test": (3, False)}, "dev-boards": {"validation": (3, False)}}
sys.exit(0 if got == want else "the behaviour has changed")
PY
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet datasets==5.2.0 pillow==13.0.0
HF_HUB_OFFLINE=1 HF_HOME="$place/home" "$place/venv/bin/python" "$place/try.py" "$place"

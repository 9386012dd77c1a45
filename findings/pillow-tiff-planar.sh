#!/usr/bin/env bash
# Pillow 13.0.0: a TIFF of 16-bit colours whose channels lie one behind the other opens as RGB with wrong colours.
#
# Guess: where Pillow gives mode RGB, each value is the upper byte of the file's, however the channels lie. Else it
# raises, as it does for other TIFFs that it cannot decode.
# Seen: so it is for channels pixel by pixel, and for planes of 8 bits. Planes of 16 bits are read byte by byte as if
# they had 8: low and high bytes alternate, and half of each row is lost. There is no warning. tifffile, which wrote the
# file, reads it back exactly.
# What we do: torchcaps.data.image_file refuses such files by name; tests/data/test_layout.py.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/try.py" <<'PY'
import sys
import numpy as np
import PIL
import tifffile
from PIL import Image

colours = np.arange(4 * 6 * 3, dtype=np.uint16).reshape(4, 6, 3) * 800
path = sys.argv[1]
wrong = {}
for bits, image in ((8, (colours >> 8).astype(np.uint8)), (16, colours)):
    for layout in ("contig", "separate"):
        written = image if layout == "contig" else np.moveaxis(image, 2, 0)
        tifffile.imwrite(path, written, photometric="rgb", planarconfig=layout)
        assert np.array_equal(tifffile.imread(path), written)
        with Image.open(path) as file:
            assert file.mode == "RGB"
            got = np.array(file).astype(int)
        wrong[bits, layout] = int(np.abs(got - (colours >> 8)).max())
print("Pillow", PIL.__version__, "tifffile", tifffile.__version__, "largest error of 255:", wrong)
want = {(8, "contig"): 0, (8, "separate"): 0, (16, "contig"): 0}
others = {key: value for key, value in wrong.items() if key != (16, "separate")}
sys.exit(0 if others == want and wrong[16, "separate"] > 100 else "the behaviour has changed")
PY
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet pillow==13.0.0 tifffile==2026.3.3 numpy==2.4.6
"$place/venv/bin/python" "$place/try.py" "$place/colours.tif"

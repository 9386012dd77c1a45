"""Read mutated files by every reader: each ends in a result or in a ``ValueError``, within bounded memory.

``python tools/fuzz.py --cases 100000 --seed 0 --out runs/fuzz.json`` writes how many cases ended how, and the first
faults of each kind with the number that makes the case again: ``--only READER --first NUMBER --cases 1``.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import multiprocessing
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from study import records
from torchcaps.data.arrays import load_arrays
from torchcaps.data.binary_matrix import read_matrix
from torchcaps.data.cifar10 import read_batch
from torchcaps.data.image_file import read_image
from torchcaps.data.labels import read_labels
from torchcaps.data.matlab import read_mat
from torchcaps.data.mnist import read_idx
from torchcaps.data.tables import read_table
from torchcaps.training import Data, Model
from torchcaps.training.checkpoint import load_model
from torchcaps.training.files import write_text
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run

#: Bytes that a case may take beyond what the process has.
MEMORY = 1 << 30
#: Seconds of the processor that a case may take.
SECONDS = 20
#: Seconds that a case may take by the clock, where it waits instead.
PATIENCE = 120
#: Cases of one process: a crash loses no more.
CHUNK = 250
#: What errors call a file that has another name than "case", or none.
NAMES = ("config.json", "result.json", "checks.jsonl", "a batch of CIFAR")
INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\x7f",
    b"\x80",
)
TEXTS = (
    b"null",
    b"[]",
    b"{}",
    b"NaN",
    b"1e999",
    b'"',
    b",",
    b"\n",
    b"-1",
    b"true",
    b"\xef\xbb\xbf",
    b"\x00",
    b"99999999",
)


class Subject(NamedTuple):
    """Hold a reader and whole files of it.

    Attributes:
        suffix: how its files are called.
        files: what whole ones hold.
        read: reads the file; returns what says that it is right, or True.
        packed: files are gzip, and half of the mutations are of what is inside.
    """

    suffix: str
    files: list[bytes]
    read: Callable[[Path], Any]
    packed: bool = False


class TooLong(BaseException):
    """A case took longer than it may."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return the content with one to six places changed, removed, doubled or cut off."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(found) + 1) if draw.random() < 0.6 else draw.randrange(min(len(found), 64) + 1)
        kind = draw.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = draw.randrange(256)
        elif kind == 2:
            piece = draw.choice(INTERESTING)
            found[at : at + len(piece)] = piece
        elif kind == 3:
            found[at:at] = draw.choice(TEXTS + INTERESTING)
        elif kind == 4:
            del found[at : at + draw.randint(1, 16)]
        elif kind == 5:
            found[at:at] = found[at : at + draw.randint(1, 64)]
        elif draw.random() < 0.3:
            del found[at:]
    return bytes(found)


def case_of(subject: Subject, name: str, seed: int, number: int) -> bytes:
    """Make the bytes of one case; the same every time."""
    draw = random.Random(f"{seed} {name} {number}")
    content = draw.choice(subject.files)
    if subject.packed and draw.random() < 0.5:
        return gzip.compress(mutated(gzip.decompress(content), draw), 1, mtime=0)
    return mutated(content, draw)


def outcome(subject: Subject, content: bytes, folder: Path) -> str:
    """Read one case, and say how it ended: "result", "ValueError", "MemoryError", or what is wrong."""
    path = folder / f"case{subject.suffix}"
    path.write_bytes(content)
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            right = subject.read(path)
        return "result" if right is None or right is True else f"fault: a result that is not as promised: {right}"
    except ValueError as error:
        named = any(each in str(error) for each in (path.name, *NAMES))
        return "ValueError" if named else f"fault: does not name the file: {error!r:.80}"
    except MemoryError:  # the command line says it in one sentence
        return "MemoryError"
    except TooLong:
        return f"fault: longer than {SECONDS} s"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in where if "torchcaps" in frame.filename or "study" in frame.filename]
        last = own[-1] if own else where[-1]
        return f"fault: {type(error).__name__} in {Path(last.filename).name}:{last.name}: {str(error)[:80]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: object) -> None:
    raise TooLong


def _sound(tensor: torch.Tensor) -> str | None:
    wrong = tensor.is_floating_point() and not torch.isfinite(tensor).all()
    return "not finite" if wrong else None


def _idx(dims: tuple[int, ...]) -> bytes:
    body = np.arange(np.prod(dims), dtype=np.uint8).tobytes()
    return gzip.compress(struct.pack(f">HBB{len(dims)}I", 0, 8, len(dims), *dims) + body, mtime=0)


def _matrix() -> bytes:
    return struct.pack("<Iiiii", 0x1E3D4C55, 3, 2, 4, 4) + bytes(range(32))


def _mat() -> list[bytes]:
    from scipy.io import savemat

    found = []
    for compressed in (False, True):
        buffer = io.BytesIO()
        content = {"x": np.arange(48, dtype=np.uint8).reshape(4, 12), "s": {"a": 1.5, "b": "text", "c": [1, 2]}}
        savemat(buffer, content, do_compression=compressed)
        found.append(buffer.getvalue())
    return found


def _batch() -> bytes:
    """Pickle as Python 2 did, whose texts were bytes."""
    import pickle

    class Python2(pickle._Pickler):  # type: ignore[name-defined, misc]
        def save_bytes(self, value: bytes) -> None:
            self.write(  # type: ignore[attr-defined]
                pickle.BINSTRING + len(value).to_bytes(4, "little") + value
            )

        dispatch = pickle._Pickler.dispatch | {bytes: save_bytes}  # type: ignore[attr-defined]

    buffer = io.BytesIO()
    Python2(buffer, protocol=2).dump({"data": np.zeros((2, 3072), np.uint8), "labels": [3, 4]})
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _npz() -> list[bytes]:
    found = []
    draw = np.random.default_rng(0)
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=draw.integers(0, 255, (40, 4, 4), np.uint8), labels=np.arange(40) % 2)
        found.append(buffer.getvalue())
    return found


def _pictures(kind: str, **options: Any) -> list[bytes]:
    draw, found = np.random.default_rng(0), []
    modes = {"JPEG": ("L", "RGB", "CMYK"), "WEBP": ("RGB", "RGBA"), "BMP": ("L", "RGB"), "PPM": ("L", "RGB")}
    for mode in modes.get(kind, ("L", "RGB", "RGBA", "P", "I;16")):
        if kind == "GIF" and mode == "I;16":
            continue
        if mode == "I;16":
            image = Image.fromarray(draw.integers(0, 65535, (9, 7), np.uint16))
        else:
            image = Image.fromarray(draw.integers(0, 255, (9, 7, 3), np.uint8)).convert(mode)
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        found.append(buffer.getvalue())
    return found


def _run_files() -> tuple[bytes, bytes, bytes]:
    """Train for two steps, and return configuration, model and result."""
    from dataclasses import replace

    from torchcaps.training.train import train

    config = replace(
        recipe("digits"),
        data=Data("digits", n_train=16, n_eval=8),
        model=Model("capsnet_small", {"channels": 4, "n_types": 2, "decoder": None}),
        epochs=1,
        batch_size=8,
        threads=1,
        device="cpu",
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        train(config, run.path, progress="none")
        return run.config.read_bytes(), run.model.read_bytes(), run.result.read_bytes()


def _read_config(path: Path) -> None:
    run = Run(path.parent / "run")
    run.path.mkdir(exist_ok=True)
    path.replace(run.config)
    run.experiment()


def _read_result(path: Path) -> None:
    run = Run(path.parent / "run")
    run.path.mkdir(exist_ok=True)
    path.replace(run.result)
    run.read_result()


def _read_records(path: Path) -> None:
    path.replace(path.with_name("checks.jsonl"))
    records.every("checks", path.parent)


def _read_picture(path: Path) -> str | None:
    read_image(path, (8, 8))
    return None


def subjects() -> dict[str, Subject]:
    """Return every reader by its name."""
    config, model, result = _run_files()
    with_suffix = {"png": "PNG", "tif": "TIFF", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP", "ppm": "PPM"}
    table = b"file,label,group\na.png,cat,1\nb.png,dog,2\nc.png,cat|dog,3\n"
    lines = b'{"file_name": "a.png", "label": "cat"}\n{"file_name": "b.png", "label": 2}\n'
    wide = b"file,cat,dog\na.png,1,0\nb.png,0,1\n"
    batch = Subject(".pickle", [_batch()], lambda path: (read_batch(io.BytesIO(path.read_bytes())), None)[1])
    return {
        "idx": Subject(".gz", [_idx((3, 4, 4)), _idx((5,))], lambda path: _sound(read_idx(path)), packed=True),
        "matrix": Subject(".mat", [_matrix()], lambda path: (read_matrix(path), None)[1]),
        "matrix-gz": Subject(
            ".mat.gz", [gzip.compress(_matrix(), mtime=0)], lambda path: (read_matrix(path), None)[1], packed=True
        ),
        "matlab": Subject(".mat", _mat(), lambda path: (read_mat(path, path), None)[1]),
        "cifar-batch": batch,
        "npz": Subject(".npz", _npz(), lambda path: (load_arrays(path), None)[1]),
        "csv": Subject(".csv", [table, wide], lambda path: (read_table(path), None)[1]),
        "jsonl": Subject(".jsonl", [lines], lambda path: (read_table(path), None)[1]),
        "labels": Subject(".csv", [table, wide], lambda path: (read_labels(path), None)[1]),
        "config": Subject(".json", [config], _read_config),
        "result": Subject(".json", [result], _read_result),
        "records": Subject(".jsonl", [b'{"key": "a", "x": 1}\n{"key": "b", "y": [2.5]}\n'], _read_records),
        "model": Subject(".pt", [model], lambda path: (load_model(path), None)[1]),
        **{name: Subject(f".{name}", _pictures(kind), _read_picture) for name, kind in with_suffix.items()},
    }


def _chunk(subject: Subject, name: str, seed: int, numbers: range, pipe: Any) -> None:
    """Run cases in a process of their own, and send how each ended."""
    torch.set_num_threads(1)
    logging.disable()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            pipe.send((number, outcome(subject, case_of(subject, name, seed, number), Path(folder))))
    pipe.close()


def fuzz(
    cases: int,
    seed: int,
    only: str | None = None,
    first: int = 0,
    show: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run so many cases in all, shared out among the readers, and count how they ended; ``show`` gets it so far."""
    every = {name: subject for name, subject in subjects().items() if only in (None, name)}
    context = multiprocessing.get_context("fork")
    each = -(-cases // len(every))
    found: dict[str, Counter[str]] = {name: Counter() for name in every}
    faults: dict[str, dict[str, int]] = {}
    for start in range(first, first + each, CHUNK):
        for name, subject in every.items():
            numbers = range(start, min(start + CHUNK, first + each))
            while numbers:  # again behind a case that ended its process
                receive, send = context.Pipe(duplex=False)
                child = context.Process(target=_chunk, args=(subject, name, seed, numbers, send))
                child.start()
                send.close()
                last = numbers.start - 1
                while last + 1 < numbers.stop:
                    try:
                        if not receive.poll(PATIENCE):
                            child.kill()
                            raise TimeoutError
                        last, ended = receive.recv()
                    except (EOFError, TimeoutError) as error:
                        how = "ended the process" if isinstance(error, EOFError) else f"hung for {PATIENCE} s"
                        last, ended = last + 1, f"fault: it {how}"
                        _count(found[name], faults.setdefault(name, {}), last, ended)
                        break
                    _count(found[name], faults.setdefault(name, {}), last, ended)
                child.join()
                numbers = range(last + 1, numbers.stop)
            show(_counted(found, faults, seed))
    return _counted(found, faults, seed)


def _counted(found: dict[str, Counter[str]], faults: dict[str, dict[str, int]], seed: int) -> dict[str, Any]:
    return {
        "cases": sum(map(Counter.total, found.values())),
        "seed": seed,
        "outcomes": {name: dict(sorted(counts.items())) for name, counts in found.items()},
        "faults": {name: dict(sorted(kinds.items())) for name, kinds in faults.items() if kinds},
    }


def _count(counts: Counter[str], faults: dict[str, int], number: int, ended: str) -> None:
    kind, _, what = ended.partition(": ")
    counts[kind] += 1
    if what:
        faults.setdefault(what, number)


def main() -> int:
    """Run the fuzzer; returns 1 where it found a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parsed = parser.parse_args()

    def write(found: dict[str, Any]) -> None:
        if parsed.out:
            write_text(parsed.out, json.dumps(found, indent=1) + "\n")

    found = fuzz(parsed.cases, parsed.seed, parsed.only, parsed.first, write)
    print(json.dumps(found, indent=1))
    return int(bool(found["faults"]))


if __name__ == "__main__":
    sys.exit(main())

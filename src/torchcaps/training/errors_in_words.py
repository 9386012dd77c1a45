"""What the errors of a result are called."""

from __future__ import annotations

from typing import Any

#: What the error on some of the further splits is called; that on others by the split's name.
_FURTHER = {
    "novel": "test error, novel viewpoints",
    "affine_mnist": "error on affine-MNIST",
    "affnist": "error on affNIST",
}


def further_errors(result: dict[str, Any]) -> dict[str, str]:
    """Return the errors of a result on splits beside validation and test, by their keys, and what they are called."""
    splits = [key.removesuffix("_error") for key in result if key.endswith("_error")]
    return {
        f"{split}_error": _FURTHER.get(split, f"error on {split}") for split in splits if split not in ("val", "test")
    }


def if_seen(result: dict[str, Any]) -> str:
    """Return the words after a validation error or loss, where those images were trained on too."""
    return "" if result.get("held_out", True) else " (trained on too)"

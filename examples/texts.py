"""Classify texts by capsules over three words at a time: `python -m examples.texts`.

The texts are the docstrings in Python's own standard library, and the class is the package that one is from. So nothing
is downloaded, and the numbers depend on the version of Python. Every third file is for the test: no file is in both.
Beside it stands a bag of words: counts of scikit-learn, and logistic regression.

Source: Zhao et al. 2018, Investigating Capsule Networks with Dynamic Routing for Text Classification, arXiv 1804.00538,
which has capsules over n-grams with matrices that all lower capsules share. This network is smaller.
"""

from __future__ import annotations

import argparse
import ast
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

from torchcaps import Capsules, DenseCaps, DynamicRouting, margin_loss, squash

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
LONGEST = 60  #: words of a text that are read


class Text(NamedTuple):
    """Hold a docstring and the number of its package."""

    words: str
    label: int


def read_docstrings() -> tuple[list[Text], list[Text]]:
    """Return texts of four words and more, for training and for the test."""
    library, split = Path(sysconfig.get_paths()["stdlib"]), ([], [])
    for label, package in enumerate(PACKAGES):
        files = [path for path in sorted((library / package).rglob("*.py")) if "test" not in path.parts]
        for number, path in enumerate(files):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    words = re.findall(r"[a-z]+", (ast.get_docstring(node) or "").lower())
                    if len(words) >= 4:
                        split[number % 3 == 1].append(Text(" ".join(words), label))
    return split


class TextCaps(nn.Module):
    """Route capsules of three words each to classes."""

    def __init__(self, n_words: int, n_classes: int, d_word: int = 32, n_types: int = 2, d_in: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, d_word, padding_idx=0)
        self.drop = nn.Dropout(0.3)
        self.threes = nn.Conv1d(d_word, n_types * d_in, 3, padding=1)
        self.d_in = d_in
        routing = DynamicRouting(shared=True, leaky=True)  # most words say nothing of the class
        self.classes = DenseCaps(None, n_classes, d_in, 16, n_places=20 * n_types, routing=routing)

    def forward(self, words: Tensor) -> Capsules:
        """Route texts ``[B, L]`` of word numbers, 0 for padding; three words are there if the middle one is."""
        features = self.threes(self.drop(self.words(words)).transpose(1, 2))  # [B, T·d_in, L]
        lower = squash(features.unflatten(1, (-1, self.d_in)).transpose(2, 3))  # [B, T, L, d_in]
        there = (words > 0).unsqueeze(1).expand(lower.shape[:3])
        return self.classes(lower.flatten(1, 2), mask=there.flatten(1))


def numbers(texts: Sequence[Text], vocabulary: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return word numbers ``[N, L]`` and labels ``[N]``; 0 is padding, 1 an unknown word."""
    rows = [[vocabulary.get(word, 1) for word in text.words.split()[:LONGEST]] for text in texts]
    words = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, given in zip(words, rows, strict=True):
        row[: len(given)] = torch.tensor(given)
    return words, torch.tensor([text.label for text in texts])


def train(model: TextCaps, words: Tensor, labels: Tensor, n_epochs: int, batch: int = 64) -> None:
    """Train by Adam on the margin loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(n_epochs):
        for chosen in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            longest = int((words[chosen] > 0).sum(dim=1).max())  # a batch is as long as its longest text
            margin_loss(model(words[chosen, :longest]).activation, labels[chosen]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: TextCaps, words: Tensor, labels: Tensor) -> float:
    """Return the share of texts whose longest capsule is the right one."""
    return float((model.eval()(words).activation.argmax(dim=1) == labels).float().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both and print a table."""
    parser = argparse.ArgumentParser(description="Text capsules on the docstrings of Python's standard library.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--texts", type=int, default=10**6, help="texts of training, at most")
    given = parser.parse_args(arguments)
    training, test = read_docstrings()
    training = training[:: -(-len(training) // given.texts)]
    most = Counter(text.label for text in test).most_common(1)[0][1] / len(test)
    print(
        f"{len(training)} docstrings of {len(PACKAGES)} packages for training, {len(test)} of other files for the test"
    )
    print("| | test accuracy, each seed | CPU seconds |\n| --- | --- | --- |")
    print(f"| the class that most are of | {most:.3f} | |")
    start = time.process_time()
    bag = make_pipeline(CountVectorizer(min_df=2), LogisticRegression(max_iter=1000))
    bag.fit([text.words for text in training], [text.label for text in training])
    right = bag.score([text.words for text in test], [text.label for text in test])
    print(f"| bag of words | {right:.3f} | {time.process_time() - start:.0f} |")
    counts = Counter(word for text in training for word in text.words.split())
    vocabulary = {word: k + 2 for k, word in enumerate(sorted(w for w, n in counts.items() if n > 1))}
    start, found = time.process_time(), []
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        model = TextCaps(len(vocabulary) + 2, len(PACKAGES))
        train(model, *numbers(training, vocabulary), given.epochs)
        found.append(f"{accuracy(model, *numbers(test, vocabulary)):.3f}")
    print(f"| capsules | {', '.join(found)} | {time.process_time() - start:.0f} |")


if __name__ == "__main__":
    main()

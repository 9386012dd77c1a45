"""README and the pages that people read first are plain English: short sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose import measure, sentences

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    name: [page for path in paths for page in ([path] if path.suffix else sorted(path.rglob("*.md")))]
    for name, paths in {
        "README": (ROOT / "README.md",),
        "Start": (ROOT / "docs" / "index.md", ROOT / "docs" / "start"),
        "Understand": (ROOT / "docs" / "understand.md", ROOT / "docs" / "understand"),
        "Do": (ROOT / "docs" / "do",),
        "Coming from": (ROOT / "docs" / "coming-from.md",),
    }.items()
}


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name: str) -> None:
    """The mean is at most 15 words, and at most one sentence in eight has more than 25."""
    measured = measure(PAGES[name])
    assert measured.sentences > 1
    assert measured.mean <= 15
    assert measured.long <= 1 / 8


def test_sentences_are_told_apart() -> None:
    """A block of code, a table, a heading and a formula are none; an item of a list is one."""
    text = """# A heading of four
One sentence has five words. `code()` is one word, and [a link](to/a/page.md) says two! Is $x + y$
one, too?

```python
no, sentence, here, at, all
```
| a | table |
| --- | --- |
$$
a = b
$$
- An item.
- Another one,
  on two lines.
"""
    found = sentences(text)
    assert [len(each.split()) for each in found] == [5, 9, 4, 2, 5]


def test_long_sentences_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(" ".join(["word"] * 26) + ".\n\nFive words are not many.\n", encoding="utf-8")
    assert measure([page]) == (2, 15.5, 0.5)

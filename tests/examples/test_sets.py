"""The examples of sets, on very few users and texts."""

from __future__ import annotations

import pytest
import torch

from examples import interests, texts


def test_interests_print_a_rate_for_each_extractor(capsys: pytest.CaptureFixture[str]) -> None:
    interests.main(
        ["--users", "40", "--clusters", "6", "--per-cluster", "12", "--d", "4", "--epochs", "1", "--seeds", "1"]
    )
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(interests.MODELS)
    assert all(0 <= float(row.split(" | ")[1]) <= 1 for row in rows)


def test_users_are_what_they_are_said_to_be() -> None:
    users = interests.draw_users(50, n_clusters=6, per_cluster=20, seed=0)
    assert users.history.shape == (50, interests.LONGEST) and int(users.there.sum(dim=1).min()) >= 5
    for history, there, following, liked in zip(*users, strict=True):
        clusters = set((history[there] // 20).tolist())
        assert len(clusters) <= interests.N_INTERESTS and bool(liked[following])
        assert not liked[history[there]].any()
        assert clusters <= set((liked.nonzero().flatten() // 20).tolist())


def test_padding_changes_no_interest() -> None:
    for make in interests.MODELS.values():
        extractor, items = make(4), torch.randn(2, interests.LONGEST, 4)
        there = (torch.arange(interests.LONGEST) < 8).expand(2, -1)
        changed = torch.where(there.unsqueeze(2), items, 100.0)
        torch.testing.assert_close(extractor(changed, there), extractor(items, there), rtol=0, atol=0)


def test_texts_print_an_accuracy_beside_the_bag_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    texts.main(["--epochs", "1", "--seeds", "1", "--texts", "60"])
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split(" | ")[0] for row in rows] == ["| the class that most are of", "| bag of words", "| capsules"]
    assert all(0 <= float(row.split(" | ")[1]) <= 1 for row in rows)


def test_a_text_is_read_alike_in_any_batch() -> None:
    model = texts.TextCaps(9, 3).eval()
    words = torch.tensor([[2, 3, 4, 0, 0, 0], [5, 6, 7, 8, 2, 3]])
    torch.testing.assert_close(model(words[:1, :3]).activation, model(words).activation[:1])

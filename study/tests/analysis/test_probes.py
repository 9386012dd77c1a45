"""Probes find what is linear in the features, and no more."""

from __future__ import annotations

import pytest
import torch

from study.analysis.probes import choose, divided, logistic, r_squared, ridge
from torchcaps.explain import principal_components


def test_a_linear_map_is_found():
    x = torch.randn(50, 4) * torch.tensor([1.0, 10.0, 0.1, 1.0]) + 3
    weight, bias = torch.randn(4, 2), torch.tensor([5.0, -2.0])
    probe = ridge(x[:30], x[:30] @ weight + bias, 1e-9)
    torch.testing.assert_close(probe.weight.float(), weight, atol=1e-3, rtol=1e-3)
    held_out = x[30:] @ weight + bias
    torch.testing.assert_close(r_squared(probe(x[30:]), held_out).float(), torch.ones(2))


def test_the_penalty_is_that_of_features_of_variance_1():
    x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [4.0]])  # they become −1, 1 and −2, 2
    probe = ridge(x, y, 1.0)
    torch.testing.assert_close(probe.weight.float(), torch.tensor([[1.0]]))  # 2 / (1 + 1), and spread 1
    torch.testing.assert_close(probe(x).float(), torch.tensor([[1.0], [3.0]]))


def test_the_frame_of_the_features_has_no_meaning():
    x, y = torch.randn(30, 3) * torch.tensor([1.0, 5.0, 0.2]) + 2, torch.randn(30, 2)
    turned = x.double() @ torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    torch.testing.assert_close(ridge(turned, y, 0.1)(turned), ridge(x, y, 0.1)(x))
    components = principal_components(x, k=3).project(x)
    torch.testing.assert_close(ridge(components, y, 0.1)(components), ridge(x, y, 0.1)(x), atol=1e-4, rtol=1e-4)


def test_noise_cannot_be_read():
    x, y = torch.randn(400, 5), torch.randn(400, 1)
    assert float(r_squared(ridge(x[:200], y[:200], 0.1)(x[200:]), y[200:])) < 0.05


def test_a_feature_that_never_changes_does_no_harm():
    x = torch.cat((torch.randn(20, 1), torch.full((20, 1), 7.0)), dim=1)
    probe = ridge(x, x[:, :1], 1e-9)
    torch.testing.assert_close(probe(x).float(), x[:, :1], atol=1e-5, rtol=1e-5)


def test_r_squared_is_worked_by_hand():
    target = torch.tensor([[0.0, 1.0], [2.0, 1.5], [4.0, 2.0]])
    predicted = torch.tensor([[1.0, 1.5], [2.0, 1.5], [4.0, 1.5]])
    torch.testing.assert_close(r_squared(predicted, target), torch.tensor([1 - 1 / 8, 0.0]))


def test_logistic_regression_is_that_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    x = torch.randn(120, 3, dtype=torch.float64)
    labels = (x @ torch.randn(3, 3, dtype=torch.float64) + torch.randn(120, 3)).argmax(dim=1)
    standard = (x - x.mean(dim=0)) / x.var(dim=0, correction=0).mean().sqrt()
    theirs = linear.LogisticRegression(C=1 / (120 * 0.05), tol=1e-9, max_iter=1000).fit(standard, labels)
    ours = logistic(x, labels, 3, 0.05)(x).softmax(dim=1)
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(standard)), atol=1e-4, rtol=1e-3)
    assert torch.equal(logistic(x, labels.int(), 3, 0.05)(x), logistic(x, labels, 3, 0.05)(x))


@pytest.mark.parametrize("fit", [lambda x, y: ridge(x, x[:, :1], 0.1), lambda x, y: logistic(x, y, 3, 0.1)])
def test_features_may_be_those_of_a_network_in_any_mode(fit):
    x, labels = torch.randn(20, 4), torch.arange(20) % 3
    wanted = fit(x, labels)
    within = fit(x.clone().requires_grad_() * 1, labels)
    with torch.inference_mode():
        other = fit(x * 1, labels + 0)
    for found in (within, other):
        assert not found.weight.requires_grad
        torch.testing.assert_close(found.weight, wanted.weight)


def test_of_equal_penalties_the_strongest_is_chosen_else_the_best():
    x = torch.randn(30, 2)
    fitted = []

    def fit(penalty):
        fitted.append(penalty)
        return ridge(x, x[:, :1], penalty)

    assert torch.equal(choose(fit, lambda probe: 0.0).weight, ridge(x, x[:, :1], 10.0).weight)
    best = choose(fit, lambda probe: float(r_squared(probe(x), x[:, :1])))
    assert float(r_squared(best(x), x[:, :1])) > 0.999
    assert sorted(set(fitted))[0] == pytest.approx(1e-6)


def test_parts_are_disjoint_and_whole():
    parts = divided(10, (0.5, 0.25, 0.25), seed=3)
    assert [len(part) for part in parts] == [5, 3, 2] or [len(part) for part in parts] == [5, 2, 3]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    assert torch.equal(parts[0], divided(10, (0.5, 0.25, 0.25), seed=3)[0])


def test_what_does_not_fit_is_named():
    x, y = torch.rand(4, 2), torch.rand(4, 1)
    with pytest.raises(ValueError, match="penalty must be positive, got 0"):
        ridge(x, y, 0)
    with pytest.raises(ValueError, match=r"target must be \[N, K\] with N=4"):
        ridge(x, y[:3], 1.0)
    with pytest.raises(ValueError, match="the number of examples must be an integer of at least 1, got 0"):
        ridge(x[:0], y[:0], 1.0)
    with pytest.raises(ValueError, match="n_classes must be an integer of at least 2, got 1"):
        logistic(x, torch.zeros(4, dtype=torch.int64), 1, 1.0)
    with pytest.raises(ValueError, match="labels must hold classes 0 … 1, got 0 … 2"):
        logistic(x, torch.tensor([0, 1, 2, 0]), 2, 1.0)
    with pytest.raises(ValueError, match="shares must be positive and add up to 1"):
        divided(5, (0.5, 0.6))
    with pytest.raises(ValueError, match="n must be enough for 3 parts that are not empty, got 2"):
        divided(2, (0.5, 0.25, 0.25))


def test_a_division_is_that_of_its_seed():
    one, again, other = (torch.cat(divided(40, (0.5, 0.5), seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_what_never_changes_is_known_for_such():
    """Though the mean of seven times 0.3 is not 0.3."""
    target = torch.full((7, 2), 0.3, dtype=torch.float64)
    found = r_squared(target + torch.tensor([0.0, 1.0]), target)
    assert found[0].isnan() and found[1] == -torch.inf

"""The inferred loss: whose labels count."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import virgo
from virgo.network.losses import InferredLoss
from virgo.network.probe import DefaultLoss


@pytest.mark.parametrize("kind", [InferredLoss, DefaultLoss])
def test_of_several_splits_the_first_counts(kind: type[InferredLoss] | type[DefaultLoss]) -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    first = torch.tensor([True, True, False, False, False, True])
    masks = {
        "one split": (first, first),
        "several splits": (torch.stack([first, ~first], 1), first),
        "no row": (torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)),
        "bytes": (first.to(torch.uint8), torch.ones(6, dtype=torch.bool)),
    }
    for mask, rows in masks.values():
        value = kind()(logits, Data(y=y, train_mask=mask))
        assert float(value) == pytest.approx(float(functional.cross_entropy(logits[rows], y[rows])))


def test_a_plan_by_labels_takes_those_of_the_first_split() -> None:
    data = virgo.data.citation_like(num_nodes=60, seed=0)
    model = GCN(data.num_features, 8, 3, 7)
    plans = []
    for mask in (data.train_mask, torch.stack([data.train_mask, data.test_mask], 1)):
        data.train_mask = mask
        plans.append(virgo.plan(model, data, "virgo-backward+mirrored").variances)
    assert plans[0] == plans[1]


def test_labels_beyond_the_logits_leave_a_plan_without_them() -> None:
    data = virgo.data.citation_like(num_nodes=60, seed=0)
    assert int(data.y.max()) >= 5
    model = GCN(data.num_features, 8, 2, 5)
    plan = virgo.plan(model, data, "virgo-backward+mirrored", num_classes=5)
    data.y = None
    assert (
        plan.variances
        == virgo.plan(model, data, plan.method + "+mirrored", num_classes=5).variances
    )

"""Heads: the classifier's formula, the pair's features, one logit for two classes, losses at any size."""

import pytest
import torch
import torch.nn.functional as F

from beamtree.nn.embedding import TrainableEmbedding
from beamtree.nn.heads import (
    ClassifierHead,
    class_losses,
    class_probabilities,
    pair_features,
    predicted_classes,
)


def test_the_classifier_is_two_layers_with_gelu_between() -> None:
    head = ClassifierHead(5, 7, 3, dtype=torch.float64)
    root = torch.randn(4, 5, dtype=torch.float64)
    hidden = F.gelu(root @ head.hidden.weight.T + head.hidden.bias)
    torch.testing.assert_close(head(root), hidden @ head.out.weight.T + head.out.bias)


def test_dropout_falls_on_the_root_and_on_the_hidden_layer_in_training_only() -> None:
    head = ClassifierHead(64, 64, 3, dropout=0.5)
    root = torch.ones(1, 64)
    seen = {}
    head.hidden.register_forward_pre_hook(lambda module, args: seen.update(hidden=args[0]))
    head.out.register_forward_pre_hook(lambda module, args: seen.update(out=args[0]))
    head(root)
    assert set(seen["hidden"].unique().tolist()) == {0.0, 2.0}
    assert 0 < int((seen["out"] == 0).sum()) < 64
    head.eval()
    assert torch.equal(head(root), head(root))


def test_two_classes_share_one_logit_and_one_class_is_refused() -> None:
    assert ClassifierHead(5, 7, 2)(torch.randn(4, 5)).shape == (4, 1)
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        ClassifierHead(5, 7, 1)


def test_a_pair_is_both_vectors_their_product_and_their_distance() -> None:
    a, b = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 4.0]])
    assert pair_features(a, b).tolist() == [[1, -2, 3, 4, 3, -8, 2, 6]]


def test_one_logit_says_what_two_logits_with_a_zero_beside_it_would_say() -> None:
    logit = torch.tensor([[-2.0], [0.0], [1e-9], [3.0]], dtype=torch.float64)
    two = torch.cat((torch.zeros_like(logit), logit), -1)
    labels = torch.tensor([1, 0, 1, 1])
    torch.testing.assert_close(class_losses(logit, labels), class_losses(two, labels))
    torch.testing.assert_close(class_probabilities(logit), class_probabilities(two))
    # σ(0) = 0.5 counts as the second class.
    assert predicted_classes(logit).tolist() == [0, 1, 1, 1]


def test_with_more_classes_the_loss_is_cross_entropy_and_the_largest_logit_wins() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(class_losses(logits, labels).mean(), F.cross_entropy(logits, labels))
    assert torch.equal(predicted_classes(logits), class_probabilities(logits).argmax(-1))


@pytest.mark.parametrize("classes", [1, 4])
def test_losses_and_gradients_stay_finite_for_huge_logits(classes: int) -> None:
    logits = (torch.tensor([[-1e4], [1e4]]) * torch.linspace(1, -1, classes)).requires_grad_()
    losses = class_losses(logits, torch.tensor([0, 1]))
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_half_precision_logits_give_float32_losses() -> None:
    logits = torch.randn(3, 4).bfloat16()
    assert class_losses(logits, torch.tensor([0, 1, 2])).dtype == torch.float32
    assert class_probabilities(logits).dtype == torch.float32


def test_the_embedding_starts_standard_normal_and_its_padding_stays_zero() -> None:
    torch.manual_seed(0)
    embedding = TrainableEmbedding(1000, 50)
    table = embedding.table.weight
    rest = table[1:].detach()
    assert abs(float(rest.mean())) < 0.02
    assert abs(float(rest.std()) - 1) < 0.02
    assert torch.equal(table[0], torch.zeros(50))
    embedding(torch.tensor([[3, 0], [0, 0]])).sum().backward()
    assert table.grad is not None
    assert table.grad[3].eq(1).all()
    assert table.grad[0].eq(0).all()


def test_input_dropout_drops_single_features_in_training_only() -> None:
    embedding = TrainableEmbedding(4, 100, dropout=0.4)
    vectors = embedding(torch.tensor([[1]]))
    assert 20 <= int((vectors == 0).sum()) <= 60
    embedding.eval()
    assert torch.equal(embedding(torch.tensor([[1]]))[0, 0], embedding.table.weight[1])

"""Rotary positions: products of queries and keys see distances alone, and the encoder sees the order."""

import pytest
import torch

from beamtree import create_encoder
from beamtree.zoo.rotary_transformer import turn, turns_of


def test_a_product_of_two_turned_vectors_depends_on_their_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    turns = turns_of(30, 8, query)
    at = lambda x: turn(x.expand(30, 8), turns)  # noqa: E731
    products = at(query) @ at(key).T
    for distance in (-7, 0, 5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(products.diagonal(1)[0], products.diagonal(2)[0])


def test_turning_by_hand_is_the_complex_product() -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 6, dtype=torch.float64)
    pairs = torch.complex(x[:, :3], x[:, 3:])
    angle = torch.arange(5).double().unsqueeze(1) * 10_000.0 ** -(torch.arange(0, 6, 2).double() / 6)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turn(x, turns_of(5, 6, x)), torch.cat((turned.real, turned.imag), 1))


def test_the_order_of_tokens_matters() -> None:
    torch.manual_seed(2)
    encoder = create_encoder("rotary-transformer", 16).eval()
    x = torch.randn(1, 6, 16)
    assert not torch.allclose(encoder(x), encoder(x.flip(1)), atol=1e-4)


def test_heads_must_leave_pairs_of_features() -> None:
    with pytest.raises(ValueError, match="heads must divide d_model = 12 into even parts, got 4"):
        create_encoder("rotary-transformer", 12, heads=4)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        create_encoder("rotary-transformer", 16, layers=0)

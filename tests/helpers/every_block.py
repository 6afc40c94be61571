"""Every encoder and block by a name, and each option that leads one another way."""

from functools import partial

from small_encoders import trees_to_follow
from torch import Tensor, nn

from beamtree import BeamTreeContextualizer, HybridStack, create_encoder
from beamtree.zoo.by_name import encoder_names, pair_encoder_names

D = 16  # as narrow as kernels take

BLOCKS = {
    **{name: partial(create_encoder, name, D) for name in (*encoder_names(), *pair_encoder_names())},
    "gt-grc, faithful": partial(create_encoder, "gt-grc", D, mode="faithful"),
    "bt-grc, faithful": partial(create_encoder, "bt-grc", D, mode="faithful"),
    "bt-grc-os, stochastic": partial(create_encoder, "bt-grc-os", D, stochastic=True),
    "recurrent-grc, both ways": partial(create_encoder, "recurrent-grc", D, bidirectional=True),
    "bilstm, deep": partial(create_encoder, "bilstm", D, layers=2),
    "contextualizer": partial(BeamTreeContextualizer, D),
    "contextualizer, twice": partial(BeamTreeContextualizer, D, refinements=2, residual=True),
    "stack": partial(HybridStack, ["ssm", "tree", "attention"], D),
}


def call(block: nn.Module, x: Tensor, is_padding: Tensor | None = None) -> Tensor:
    """Its output for x: as both sentences, where it wants a pair; along right-branching trees, where it wants
    trees."""
    if hasattr(block, "interact"):
        return block(x, x.flip(0), is_padding, None if is_padding is None else is_padding.flip(0))
    return block(x, key_padding_mask=is_padding, **trees_to_follow(block, x, is_padding))

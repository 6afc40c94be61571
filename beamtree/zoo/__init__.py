"""All other models of the paper's tables, pair encoders included, and `create_encoder`, which makes them."""

from beamtree.zoo.by_name import (
    create_encoder,
    encoder_names,
    equal_sized_options,
    pair_encoder_names,
    register_encoder,
)

__all__ = ["create_encoder", "encoder_names", "equal_sized_options", "pair_encoder_names", "register_encoder"]

"""Every other model of the paper's tables, pair encoders included; and `create_encoder`."""

from beamtree.zoo.by_name import (
    create_encoder,
    encoder_names,
    equal_sized_options,
    pair_encoder_names,
    register_encoder,
)

__all__ = ["create_encoder", "encoder_names", "equal_sized_options", "pair_encoder_names", "register_encoder"]

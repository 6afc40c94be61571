"""Forward-mode derivatives (jvp, jacfwd, dual numbers): what has no rule for them refuses them."""

from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from beamtree.tracing import is_compiling


def carries_tangents(*inputs: Tensor) -> bool:
    return any(unpack_dual(x).tangent is not None for x in inputs)


def refuse_forward_mode(*inputs: Tensor) -> None:
    """PyTorch would drop the tangents at a kernel or operator that has no rule for them, without a word."""
    if not is_compiling() and carries_tangents(*inputs):
        raise NotImplementedError(
            "beamtree: this model has no forward-mode derivative (jvp, jacfwd, dual numbers): call "
            "backward or autograd.grad"
        )

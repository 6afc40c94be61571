"""A model as it evaluates, and not a word to the model: another thread may be training it meanwhile."""

from collections.abc import Mapping
from types import MethodType
from typing import Any, TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def evaluating(model: Model) -> Model:
    """The model itself where all of it evaluates, else a twin that does, for one use.

    The twin has the same parameters, buffers, hooks and CUDA graphs, only its modules are others: nothing of
    the model changes, so that threads that train it or predict with it do not meet.
    """
    parts = list(model.modules())
    if not any(part.training for part in parts):
        return model
    twins = {id(part): object.__new__(type(part)) for part in parts}
    for part in parts:
        own = {name: _as_of_twin(value, twins) for name, value in vars(part).items()}
        # Graphs of a user's cell are kept by the cell: like a replica that DataParallel makes, one that lives
        # for a single use is not worth a capture.
        vars(twins[id(part)]).update(own, training=False, _compiled_call_impl=None, _is_replica=True)
    return _twin_of(model, twins)


def _as_of_twin(value: Any, twins: Mapping[int, nn.Module]) -> Any:
    """What a module holds as its twin does: the very same unless it is a module, or has to do with some."""
    if isinstance(value, nn.Module):
        return _twin_of(value, twins)
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, _twin_of(value.__self__, twins))
    if type(value) is dict and any(id(part) in twins for part in value.values()):
        return {name: _twin_of(part, twins) for name, part in value.items()}
    if type(value) in (list, tuple) and any(id(part) in twins for part in value):
        return type(value)(_twin_of(part, twins) for part in value)
    return value


def _twin_of(part: Any, twins: Mapping[int, nn.Module]) -> Any:
    part = getattr(part, "_orig_mod", part)  # what `torch.compile` made of a module calls that very module
    return twins.get(id(part), part)

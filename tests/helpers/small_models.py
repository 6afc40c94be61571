"""Classifiers of a few thousand weights, untrained."""

from typing import Any

import torch

from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.data.task import Task, find_task
from beamtree.data.words import Words


def small_model(
    encoder: str = "ebt-grc",
    task: Task | str = "listops",
    *,
    seed: int = 0,
    embedding_size: int = 8,
    words: Words | None = None,
    **options: Any,
) -> TreeClassifier:
    """Make a model in evaluation mode; `options` are the encoder's."""
    torch.manual_seed(seed)
    settings = ModelSettings(
        encoder, d_model=8, embedding_size=embedding_size, classifier_hidden=8, options=options
    )
    found = find_task(task) if isinstance(task, str) else task
    return create_model(settings, found, words).eval()

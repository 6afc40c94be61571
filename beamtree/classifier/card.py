"""The model card of a trained classifier."""

from typing import TYPE_CHECKING

from beamtree.printable import code
from beamtree.saving.card import write_card

if TYPE_CHECKING:
    from beamtree.classifier.model import TreeClassifier

TRAINING = {"epoch": "best epoch", "dev_loss": "dev loss", "dev_accuracy": "dev accuracy"}


def classifier_card(model: "TreeClassifier") -> str:
    """What a classifier is and reads, and of its training what stands beside its weights."""
    settings, task = model.settings, model.task
    facts = {
        "encoder": [settings.encoder],
        "d_model": settings.d_model,
        **settings.options,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "labels": task.labels,
        **{name: model.notes[key] for key, name in TRAINING.items() if key in model.notes},
    }
    argument = "text" if task.sentences == 1 else "(first, second)"
    usage = (
        "from beamtree import TreeClassifier\n\n"
        'model = TreeClassifier.from_pretrained("this/repository")\n'
        f"model.predict([{argument}])"
    )
    says = f"A classifier for the task {code(task.name)}, trained with beamtree."
    title, tags = f"{settings.encoder} on {task.name}", [settings.encoder, task.name]
    return write_card(title, says, usage, facts, tags=tags, pipeline="text-classification")

"""Exports a classifier to a file that runs without this package: ONNX, or `torch.export`'s own format.

The file maps token ids (batch, length), padded with 0 on the right, to probabilities (batch, classes), for
any batch size and length. The recursion is a loop in the graph (pytorch/tracing.py), one iteration per merge.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.inference import refuse_unless_finite
from beamtree.data.vocabulary import PAD
from beamtree.errors import BeamtreeError, MissingExtraError, first_line
from beamtree.files.atomic import replace_file
from beamtree.nn.heads import class_probabilities
from beamtree.printable import write_json

IDS, PROBABILITIES = "ids", "probabilities"
CHECKED_SIZES = ((1, 1), (1, 2), (3, 3), (2, 17), (4, 40))  # (examples, tokens) of the batches compared


class Predictor(nn.Module):
    """Token ids -> probabilities. In a batch of pairs, all first sentences come before all second ones."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:  # (S·B, n) -> (B, classes)
        return class_probabilities(self.model(ids, ids == PAD))


def export_program(model: Classifier) -> ExportedProgram:
    """Export the whole classifier as a graph of plain PyTorch operators."""
    name, reason = model.settings.encoder, None
    if model.needs_merges:
        reason = f"the encoder {name!r} follows given trees"
    elif model.members[0].parser is not None:
        reason = "another model finds its trees"
    elif model.members[0].reads_pairs:
        reason = f"the encoder {name!r} reads two sentences together"
    elif model.words.encoder is not None:
        reason = "its token vectors come from a Hugging Face encoder"
    if reason is not None:
        raise BeamtreeError(
            f"this model cannot be exported as a whole, because {reason}: export its encoder alone, with "
            "torch.export.export(model.encoder, …)"
        )
    sentences = model.task.sentences
    batch, length = Dim("batch", min=1), Dim("length", min=2)
    rows = sentences * batch if sentences > 1 else batch
    ids = torch.full((3 * sentences, 5), PAD + 1)
    try:
        with _quiet():
            return torch.export.export(
                Predictor(model).eval(), (ids,), dynamic_shapes={IDS: {0: rows, 1: length}}
            )
    except Exception as error:  # torch may raise anything
        raise BeamtreeError(
            f"torch {torch.__version__} cannot export this model: {first_line(error)}"
        ) from error


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a file for `torch.export.load`."""
    content = io.BytesIO()
    torch.export.save(program, content)
    replace_file(path, content.getvalue())


def save_onnx(program: ExportedProgram, model: Classifier, path: Path) -> None:
    """Write an ONNX file; its metadata hold the task, the labels and the tokens (the first has id 3)."""
    if any(getattr(node.meta.get("val"), "is_complex", bool)() for node in program.graph.nodes):
        raise BeamtreeError(
            f"the encoder {model.settings.encoder!r} computes with complex numbers, which ONNX does not "
            "support: write a file for torch.export.load instead (--exported-program)"
        )
    translations = translate_sorting()
    try:
        with _quiet():
            found: Any = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                custom_translation_table=translations,
                input_names=[IDS],
                output_names=[PROBABILITIES],
            )
    except Exception as error:  # torch may raise anything
        raise BeamtreeError(
            f"torch {torch.__version__} cannot write this model as ONNX (2.13 can): {first_line(error)}"
        ) from error
    rows, length = found.model.graph.inputs[0].shape
    found.rename_axes({rows: "batch" if model.task.sentences == 1 else "sentences", length: "length"})
    found.model.metadata_props.update(
        task=model.task.name,
        labels=write_json(model.task.labels, ensure_ascii=False),
        tokens=write_json(model.vocabulary.tokens, ensure_ascii=False),
    )
    replace_file(path, found.model_proto.SerializeToString())


def translate_sorting() -> dict[Any, Any]:
    """Return a `custom_translation_table` that teaches `torch.onnx.export` the stable sort: ONNX's TopK."""
    try:
        from onnxscript import opset20
    except ImportError as error:
        raise MissingExtraError("exporting to ONNX", "onnx") from error
    op: Any = opset20

    def sort_stable(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)

    return {torch.ops.aten.sort.stable: sort_stable}


def compare_with_onnx(model: Classifier, path: Path) -> float:
    """Run the file in onnxruntime on random batches; return its largest difference from the model."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("checking an ONNX file", "onnx") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for B, n in CHECKED_SIZES:
        ids = random_ids(model, B, n, generator)
        (found,) = session.run([PROBABILITIES], {IDS: ids.numpy()})
        with torch.no_grad():
            wanted = refuse_unless_finite(Predictor(model)(ids))
        largest = max(largest, float((torch.from_numpy(found) - wanted).abs().max()))
    return largest


def random_ids(model: Classifier, B: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw B examples of random tokens with lengths between 1 and n; return ids (S·B, n)."""
    rows = model.task.sentences * B
    ids = torch.randint(PAD + 1, len(model.vocabulary), (rows, n), generator=generator)
    lengths = torch.randint(1, n + 1, (rows, 1), generator=generator)
    lengths[0] = n
    return ids.masked_fill(torch.arange(n) >= lengths, PAD)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and log messages of torch.export and torch.onnx."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

"""`beamtree export MODEL --onnx FILE`: a trained model for runtimes without beamtree."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.conventions import (
    Beam,
    Model,
    Overwrite,
    open_model,
    refuse_to_replace,
    say,
    say_torch_loads,
)
from beamtree.errors import BeamtreeError


def export(
    model: Model,
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX file and check it in onnxruntime.")] = None,
    exported_program: Annotated[
        Path | None, typer.Option(help="Write a file for torch.export.load (.pt2).")
    ] = None,
    beam: Beam = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a trained model as a file that runs without beamtree: token ids in, probabilities out.

    Batch size and length are free. The input is ids (batch, length), 64-bit integers padded with 0 on the
    right; the output is probabilities (batch, classes). For a task on pairs, the first half of the rows are
    the first sentences. The metadata of an ONNX file lists its labels and tokens; the first token has id 3,
    and id 1 means an unknown token.

    Every sentence encoder can be exported except crvnn, om, mamba and gold-grc (it follows given trees);
    s4d and ssm-ebt-grc cannot be exported to ONNX.
    """
    wanted = [path for path in (onnx, exported_program) if path is not None]
    if not wanted:
        raise BeamtreeError("say what to write: --onnx FILE, --exported-program FILE or both")
    if onnx == exported_program:
        raise BeamtreeError(f"--onnx and --exported-program both name {onnx}")
    for path in wanted:
        refuse_to_replace(path, overwrite)
        if not path.parent.is_dir():
            raise BeamtreeError(f"there is no folder {path.parent} to write {path.name} to")
    say_torch_loads()

    from beamtree.classifier.exports import compare_with_onnx, export_program, save_onnx, save_program

    classifier = open_model(model, "cpu", beam)
    program = export_program(classifier)
    if exported_program is not None:
        save_program(program, exported_program)
        say(f"wrote {exported_program}, for batches of any size and length", err=False)
    if onnx is not None:
        save_onnx(program, classifier, onnx)
        difference = compare_with_onnx(classifier, onnx)
        agrees = f"in onnxruntime its outputs differ from the model's by {difference:.1e} at most"
        say(f"wrote {onnx}; {agrees}", err=False)

"""What beamtree 0.1.0 wrote before its modules moved, how it was made (by this file as a program, with that
package), and what tests ask of it."""

import importlib
import io
import json
import pkgutil
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from every_block import BLOCKS, D, call
from small_encoders import gradients
from small_models import small_model
from small_runs import run_in, small_recipe
from torch import Tensor, nn

import beamtree
from beamtree import BeamTreeEncoder, SlicedScorer, TaggerHead
from beamtree.training.recipe import Recipe

OLD = Path(__file__).parents[1] / "fixtures" / "old"
TEXTS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 3 [MED 1 5 8 ] ]", "7"]

# Dropout and noise on, two micro-batches a step, a rate that falls: everything a checkpoint must hold.
RECIPE: Recipe = small_recipe(
    model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
    training={"micro_batch_size": 4, "plateau_patience": 0, "patience": 10, "learning_rate": 0.02},
)
STOPPED_AT = 7  # of 15 steps


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 9, D, generator=generator)
    return x, torch.arange(9) >= torch.tensor([9, 6, 1])[:, None]


def answers(block: nn.Module) -> dict[str, Tensor]:
    """Its output when evaluating; when training, with the masks and noise of one seed, its output and the
    gradient of the tokens."""
    x, is_padding = tokens()
    block.eval()
    with torch.no_grad():
        answer = {"evaluating": call(block, x, is_padding)}
    block.train()
    torch.manual_seed(11)
    x.requires_grad_()
    output = call(block, x, is_padding)
    answer |= {"training": output.detach(), "gradient": gradients(output, x, block)[0].detach()}
    block.eval()
    return answer


def predictions(model: Any) -> list[dict[str, Any]]:
    return [
        {
            "label": prediction.label,
            "probabilities": {label: round(p, 5) for label, p in prediction.probabilities.items()},
        }
        for prediction in model.predict(TEXTS)
    ]


def operator_schemas() -> list[str]:
    """Of every operator, those that only a GPU calls included."""
    for module in pkgutil.walk_packages(beamtree.__path__, "beamtree."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    schemas = torch._C._jit_get_all_schemas()
    return sorted(str(schema) for schema in schemas if schema.name.startswith("beamtree::"))


def write() -> None:
    shutil.rmtree(OLD, ignore_errors=True)
    OLD.mkdir(parents=True)
    blocks: dict[str, bytes] = {}
    outputs: dict[str, dict[str, Tensor]] = {}
    for i, (name, make) in enumerate(BLOCKS.items()):
        torch.manual_seed(i)
        block = make(dropout=0.1)
        stream = io.BytesIO()
        torch.save(block.eval(), stream)
        blocks[name], outputs[name] = stream.getvalue(), answers(block)
    torch.manual_seed(0)
    for part in (TaggerHead(D, 3), SlicedScorer(D)):
        stream = io.BytesIO()
        torch.save(part, stream)
        blocks[type(part).__name__] = stream.getvalue()
    torch.save(blocks, OLD / "blocks.pt")
    torch.save(outputs, OLD / "outputs.pt")
    torch.manual_seed(1)
    encoder = BeamTreeEncoder(D, beam_size=3, slice_size=4)
    encoder.save_pretrained(OLD / "block")
    torch.save(answers(encoder), OLD / "block_outputs.pt")
    model = small_model()
    model.save_pretrained(OLD / "model")
    (OLD / "predictions.json").write_text(json.dumps(predictions(model), indent=1))
    run_in(OLD / "run", RECIPE, steps=STOPPED_AT)
    run_in(OLD / "ended", RECIPE)
    for name in ("ended/best", "ended/checkpoint", "ended/tensorboard", "run/tensorboard"):
        shutil.rmtree(OLD / name)
    (OLD / "operators.json").write_text(json.dumps(operator_schemas(), indent=1))


if __name__ == "__main__":
    sys.exit(write())

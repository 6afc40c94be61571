"""Every sentence encoder against recorded numbers: outputs, input gradients, norms of parameter gradients.

The published implementations' own vectors lie in a folder beside the checkout and are used where it is there.
`fixtures/golden.safetensors` travels with the tests: vectors of the same kind on narrow models, recorded with
`python tests/zoo/test_golden.py` from encoders that agreed with the published ones.
"""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from beamtree.zoo.by_name import create_encoder

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "golden"
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "golden.safetensors"
NAMES = (
    "ebt-grc",
    "ebt-grc-noslice",
    "bt-grc",
    "bt-grc-os",
    "egt-grc",
    "gt-grc",
    "crvnn",
    "crvnn-nohalt",
    "om",
    "balanced-grc",
)
LENGTHS = [9, 1, 2, 3, 7]
D = 6


class Golden(NamedTuple):
    tensors: dict[str, Tensor]
    mode: str
    parameter_norms: dict[str, float]


def read(path: Path, prefix: str = "") -> Golden:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors, metadata = (
        {key.removeprefix(prefix): value for key, value in table.items() if key.startswith(prefix)}
        for table in (load_file(path), metadata)
    )
    return Golden(tensors, metadata["mode"], json.loads(metadata["param_grad_norms"]))


def load(name: str, golden: Golden, dtype: torch.dtype) -> nn.Module:
    parameters = {
        key.removeprefix("param."): value for key, value in golden.tensors.items() if "param." in key
    }
    encoder = create_encoder(name, golden.tensors["output"].shape[1], dtype=dtype)
    encoder.load_state_dict(parameters)
    return encoder.train(golden.mode == "train")


def compare(name: str, golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    encoder = load(name, golden, dtype)
    x = golden.tensors["input"].to(dtype).requires_grad_()
    is_padding = torch.arange(x.shape[1]) >= golden.tensors["lengths"][:, None]
    output = encoder(x, key_padding_mask=is_padding)
    (output * golden.tensors["cotangent"]).sum().backward()
    close = {"rtol": 0, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(output, golden.tensors["output"], **close)
    torch.testing.assert_close(x.grad[~is_padding], golden.tensors["input_grad"][~is_padding], **close)
    largest = max(golden.parameter_norms.values())
    for key, parameter in encoder.named_parameters():
        norm = golden.parameter_norms[key]
        assert abs(float(parameter.grad.norm()) - norm) <= 1e-4 * max(norm, 1e-3 * largest), key


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published implementations' vectors are not at hand")
@pytest.mark.parametrize("name", NAMES)
def test_published_vectors_are_met_to_1e_6_in_float64(name):
    compare(name, read(PUBLISHED / f"{name}.safetensors"), torch.float64, 1e-6)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published implementations' vectors are not at hand")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "bt-grc-os"])
def test_published_vectors_are_met_to_1e_5_in_float32(name):
    compare(name, read(PUBLISHED / f"{name}.safetensors"), torch.float32, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_vectors_are_met_to_1e_6_in_float64(name):
    compare(name, read(FIXTURE, f"{name}/"), torch.float64, 1e-6)


def record() -> None:
    tensors, metadata = {}, {}
    for number, name in enumerate(NAMES):
        torch.manual_seed(number)
        encoder = create_encoder(name, D).train(name == "bt-grc-os")
        parameters = {key: value.detach().clone() for key, value in encoder.state_dict().items()}
        is_padding = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]
        given = torch.randn(len(LENGTHS), max(LENGTHS), D).masked_fill(is_padding.unsqueeze(-1), 0.0)
        x, cotangent = given.double().requires_grad_(), torch.randn(len(LENGTHS), D)
        encoder = encoder.double()
        output = encoder(x, key_padding_mask=is_padding)
        (output * cotangent).sum().backward()
        found = {"input": given, "lengths": torch.tensor(LENGTHS), "cotangent": cotangent}
        found |= {"output": output.detach().float(), "input_grad": x.grad.float()}
        found |= {f"param.{key}": value for key, value in parameters.items()}
        tensors |= {f"{name}/{key}": value for key, value in found.items()}
        norms = {key: float(p.grad.norm()) for key, p in encoder.named_parameters()}
        metadata[f"{name}/mode"] = "train" if encoder.training else "eval"
        metadata[f"{name}/param_grad_norms"] = json.dumps(norms)
    FIXTURE.parent.mkdir(exist_ok=True)
    save_file(tensors, FIXTURE, metadata)


if __name__ == "__main__":
    record()

"""Numerical checks: float32 against float64, and finite losses and gradients at extreme sizes."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch

from beamtree import BeamTreeEncoder
from beamtree.nn.heads import ClassifierHead, class_losses
from tools.trust import Tally

SHORT = {"batches": 15, "longest": 300}


def run(folder: Path, *, batches: int = 1000, longest: int = 10_000, seed: int = 0) -> list[Tally]:
    torch.set_num_threads(1)
    tallies = []
    for check in (
        lambda: compare_precisions(batches, seed),
        lambda: compare_precisions(batches // 5, seed, scale=0.05),
        lambda: reach_extremes(longest, seed),
    ):
        tallies.append(check())
        print(tallies[-1], flush=True)
    return tallies


def compare_precisions(batches: int, seed: int, scale: float = 1.0) -> Tally:
    """Compare float32 and float64 with the same weights and tokens: trees may differ only at near-ties.

    A small `scale` of the scorer's weights brings scores closer together and makes near-ties more frequent.
    """
    torch.manual_seed(seed)
    sequences = differing = beams_differing = 0
    worst_root, widest_tie = 0.0, 0.0
    tally = Tally("")
    for _ in range(batches):
        encoder = _encoder(16, 5, scale).eval()
        exact = copy.deepcopy(encoder).double()
        n = int(torch.randint(2, 25, ()))
        x = torch.randn(4, n, 16)
        is_pad = torch.arange(n) >= torch.randint(1, n + 1, (4, 1))
        with torch.no_grad():
            root, trees = encoder(x, is_pad, need_trees=True)
            exact_root, exact_trees = exact(x.double(), is_pad, need_trees=True)
        same = (trees.merges == exact_trees.merges).flatten(1).all(1)
        same_best = (trees.merges[:, 0] == exact_trees.merges[:, 0]).all(1)
        sequences += 4
        differing += int((~same_best).sum())
        beams_differing += int((~same).sum())
        gap = (root.double() - exact_root).abs().amax(1)
        if same.any():
            worst_root = max(worst_root, float(gap[same].max()))
        if not same_best.all():
            scores = exact_trees.log_scores[~same_best]
            widest_tie = max(widest_tie, float((scores[:, 0] - scores[:, 1]).max()))
        tally.note(bool((gap[same] < 1e-4).all()), f"roots of equal trees differ by {float(gap.max())}")
    tally.name = (
        f"float32 against float64 (scorer × {scale}): the best tree differs in {differing} of {sequences:,} "
        f"sequences, any of 5 beams in {beams_differing}; roots of equal trees by at most {worst_root:.1e}; "
        f"widest gap of best scores where trees differ {widest_tie:.1e}; batches"
    )
    return tally


def reach_extremes(longest: int, seed: int) -> Tally:
    """Loss and every gradient must be finite for all sizes and for large scores and logits."""
    tally = Tally(f"finite loss and gradients: logits to ±1e4, lengths to {longest:,}, d 1 … 1024, K 1 … 32")
    cases = [(d, K, n, 1.0) for d in (1, 2, 3, 17, 1024) for K, n in ((1, 3), (5, 9))]
    cases += [(8, K, n, 1.0) for K in (1, 2, 3, 16, 32) for n in (1, 2, 3, 12)]
    cases += [(8, 5, n, size) for n in (2, 7, 40) for size in (1e2, 1e4, 1e-4)]
    cases += [(4, 2, n, 1.0) for n in sorted({100, longest // 10, longest})]
    for d, K, n, size in cases:
        problem = _step(d, K, n, size, seed)
        tally.note(problem is None, f"d {d}, K {K}, n {n}, scores × {size:g}: {problem}")
    return tally


def _step(d: int, K: int, n: int, size: float, seed: int) -> str | None:
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    encoder, head = _encoder(d, K, size), ClassifierHead(d, 8, 10)
    x = torch.randn(2 if n < 1000 else 1, n, d, requires_grad=True)
    root, trees = encoder(x, need_trees=True)
    logits = head(root)
    logits = logits * (1e4 / logits.detach().abs().amax().clamp(min=1e-9)) if size != 1.0 else logits
    loss = class_losses(logits, torch.zeros(len(x), dtype=torch.int64)).mean()
    (loss + trees.weights.square().sum()).backward()
    named = {"x": x, **dict(encoder.named_parameters()), **dict(head.named_parameters())}
    wrong = [
        name for name, tensor in named.items() if tensor.grad is None or not tensor.grad.isfinite().all()
    ]
    if not loss.isfinite() or not root.isfinite().all():
        return f"loss {float(loss)}"
    return f"gradients of {', '.join(wrong)}" if wrong else None


def _encoder(d: int, K: int, scale: float) -> Any:
    """An encoder whose scores are multiplied by `scale`."""
    encoder: Any = BeamTreeEncoder(d, beam_size=K)
    with torch.no_grad():
        encoder.scorer.out.weight.mul_(scale)
    return encoder

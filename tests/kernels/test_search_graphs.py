"""The graphs of the fused search: when they are made, which are kept, and that launches give the same."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from on_gpu import needs_gpu

import beamtree
from beamtree import BeamTreeEncoder, create_encoder
from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache

pytest.importorskip("triton")

from beamtree.kernels.search import fused_search


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_captures_though_graphs_become_garbage_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, number, steps = torch.cuda.Stream(), torch.zeros((), device="cuda"), fused_search._steps
    cycles: list[list[Any]] = []
    for _ in range(20):
        cycles.append([capturing.capture(lambda: number.add_(1), stream)[0]])
        cycles[-1].append(cycles[-1])

    def among_garbage(*arguments: Any) -> None:
        cycles.clear()
        _ = [[i] for i in range(1000)]  # enough for the collector to run many times, were it allowed to
        steps(*arguments)

    monkeypatch.setattr(fused_search, "_steps", among_garbage)
    encoder, threshold = BeamTreeEncoder(32, device="cuda"), gc.get_threshold()
    gc.set_threshold(1)
    try:
        encoder(torch.randn(10, 5, 32, device="cuda")).sum().backward()
    finally:
        gc.set_threshold(*threshold)
    assert not cycles
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_goes_on_after_a_capture_that_was_invalidated() -> None:
    encoder = BeamTreeEncoder(32, device="cuda").eval()
    x, held = torch.randn(9, 5, 32, device="cuda"), len(fused_search._graphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_search, "_steps", lambda *_: torch.cuda.synchronize())
        with pytest.raises(RuntimeError):
            encoder(x)
    assert len(fused_search._graphs) == held
    assert torch.randn(3, device="cuda").isfinite().all()  # the random generator is free again
    on_cpu = BeamTreeEncoder(32).eval()
    on_cpu.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encoder(x).cpu(), on_cpu(x.cpu()), atol=1e-3, rtol=1e-3)


def test_a_search_keeps_no_graphs_that_failed_and_few_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(plan: str, device: torch.device) -> str:
        made.append(plan)
        if made == ["a"]:
            raise RuntimeError("the first capture fails")
        return f"graphs of {plan}"

    monkeypatch.setattr(fused_search, "_graphs", GraphCache(2))
    monkeypatch.setattr(fused_search, "_Graphs", make)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    find: Any = fused_search._graphs_for
    device = torch.device("cpu")
    with pytest.raises(RuntimeError, match="the first"):
        find("a", device)
    assert len(fused_search._graphs) == 0
    assert [find(plan, device) for plan in "abacb"] == [f"graphs of {plan}" for plan in "abacb"]
    assert made == ["a", "a", "b", "c", "b"]  # c drove b out, not a, which was used since
    assert gc.isenabled()


def test_a_search_warms_up_before_its_captures_and_replays_as_many_steps_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, int]] = []

    class Plan:
        def begin(self, table: torch.Tensor) -> None:
            done.append(("begin", 0))

        def finish(self, table: torch.Tensor) -> None:
            done.append(("finish", 0))

        def step(self, table: torch.Tensor, step: int) -> None:
            done.append(("step", step))

        def advance(self, table: torch.Tensor, steps: int) -> None:
            done.append(("advance", steps))

    def capture(call: Any, stream: Any) -> tuple[Any, None]:
        start = len(done)
        call()
        launches = done[start:]
        del done[start:]
        return SimpleNamespace(replay=lambda: done.extend(launches)), None

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(capturing, "capture", capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    plan: Any = Plan()
    graphs = fused_search._Graphs(plan, torch.device("cpu"))
    assert {kind for kind, _ in done} == {"begin", "finish", "step", "advance"}
    done.clear()
    graphs.replay(43)
    assert [launch for launch in done if launch[0] != "step"] == [
        ("begin", 0), ("advance", 2), ("advance", 2), ("advance", 8), ("advance", 32), ("finish", 0)
    ]  # fmt: skip
    assert [step for kind, step in done if kind == "step"] == [0, 1, 0, 1, *range(8), *range(32)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["ebt-grc", "bt-grc", "gt-grc", "egt-grc"])
def test_on_a_gpu_launched_one_by_one_the_kernels_give_what_their_graphs_give(name: str) -> None:
    torch.manual_seed(0)
    encoder = create_encoder(name, 64, device="cuda").eval()
    for n in (2, 9, 150):
        x = torch.randn(3, n, 64, device="cuda", requires_grad=True)
        wanted = [x, *encoder.parameters()]

        def gradients(x: torch.Tensor = x, wanted: Any = wanted) -> list[torch.Tensor]:
            root = encoder(x)
            return [root, *torch.autograd.grad(root.square().sum(), wanted, materialize_grads=True)]

        replayed, held = gradients(), len(fused_search._graphs)
        with beamtree.cuda_graphs(False):
            launched = gradients()
        assert len(fused_search._graphs) == held
        for mine, theirs in zip(launched, replayed, strict=True):
            assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-5

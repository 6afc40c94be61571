"""`beamtree bench`: time and peak memory of encoders and of familiar layers; the paper's Table 1."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from beamtree.cli.conventions import LINE_EVERY, Device, say, say_torch_loads
from beamtree.errors import BeamtreeError


class Suite(StrEnum):
    quick = "quick"
    throughput = "throughput"
    scaling = "scaling"
    paper = "paper"


class Precision(StrEnum):
    highest = "highest"
    high = "high"


def bench(
    suite: Annotated[
        Suite,
        typer.Option(
            help="quick: EBT-GRC, an LSTM, a Transformer and the original algorithm, in inference and "
            "training; throughput: tokens per second in batches; scaling: n, K, d and d_s, varied one at a "
            "time; paper: the paper's Table 1."
        ),
    ] = Suite.quick,
    device: Device = "auto",
    models: Annotated[
        str | None, typer.Option(help="Models to measure, separated by commas.", show_default="the suite's")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens per sequence, e.g. 100,1000; for --suite paper ranges, e.g. 200-250,500-600."
        ),
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Sequences per batch, e.g. 1,32.")] = None,
    beam: Annotated[str | None, typer.Option(help="Beam sizes K, e.g. 1,5.", show_default="5")] = None,
    d_model: Annotated[str | None, typer.Option(help="Widths d, e.g. 128,512.", show_default="128")] = None,
    slice_size: Annotated[
        str | None, typer.Option(help="Slice sizes d_s, e.g. 16,64.", show_default="the model's")
    ] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Measure only forward passes.")] = False,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, help="Steps to time; the median counts.", show_default="5, on a GPU 20"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Expressions per range, for --suite paper.", show_default="100, on a CPU 3"),
    ] = None,
    max_seconds_per_cell: Annotated[
        float, typer.Option(min=0, help="Seconds after which a model gets no more steps at one size.")
    ] = 60.0,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Also measure peak memory.")] = True,
    matmul_precision: Annotated[
        Precision | None,
        typer.Option(
            help="Precision of float32 matrix products; high allows tf32.", show_default="PyTorch's"
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool,
        typer.Option(
            "--cuda-graphs/--no-cuda-graphs",
            help="Use CUDA graphs on a GPU; without them the host launches every kernel.",
        ),
    ] = True,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads.", show_default="PyTorch's")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time and memory to this .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Measure time and peak memory of encoders, and of PyTorch's LSTM and Transformer.

    A training step is forward, backward and AdamW (fused on a GPU), with noise and dropout 0.1. Models of
    one size take turns, and the median step counts. On a GPU, memory is PyTorch's peak, counted from before
    the model was made; on a CPU, the growth of a fresh process's peak after one step on 8 tokens. Ctrl-C
    keeps what was measured.
    """
    say_torch_loads()

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    from beamtree.classifier.inference import choose_device
    from beamtree.cli.conventions import show_progress
    from beamtree.files.atomic import make_folder, replace_file
    from beamtree.paper.speed.measure import Plan
    from beamtree.paper.speed.plot import check_plot, curves_of, draw_speed
    from beamtree.paper.speed.suites import Wanted, arithmetic, run_paper, run_sizes
    from beamtree.pytorch import capturing
    from beamtree.training.display import EverySoOften

    place = choose_device(device)
    if place.type not in ("cpu", "cuda"):
        raise BeamtreeError(f"bench runs on cpu and cuda only, got --device {device}")
    names = _words("--models", models)
    if plot is not None:
        check_plot(plot)
    for file in (json_file, markdown, plot):
        if file is not None:
            make_folder(file.parent)
    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    graphs = capturing.cuda_graphs(cuda_graphs)
    with graphs, arithmetic(threads, matmul_precision), show_progress(*columns) as bar:
        task, log = bar.add_task("", total=1.0), EverySoOften(LINE_EVERY)

        def show(share: float, doing: str) -> None:
            bar.update(task, completed=share, description=doing)
            if bar.disable and log.due():
                say(f"{share:.0%} done, now {doing}")

        if suite is Suite.paper:
            sizes = {"--batch": batch, "--beam": beam, "--d-model": d_model, "--slice-size": slice_size}
            _refuse(suite, **sizes, **{"--repeat": repeat, "--inference": inference or None})
            ranges = _words("--lengths", lengths)
            report = run_paper(
                names, ranges, place, samples=samples, max_seconds=max_seconds_per_cell, progress=show
            )
        else:
            _refuse(suite, **{"--samples": samples})
            wanted = Wanted(
                models=names,
                lengths=_numbers("--lengths", lengths),
                batches=_numbers("--batch", batch),
                beams=_numbers("--beam", beam),
                widths=_numbers("--d-model", d_model),
                slices=_numbers("--slice-size", slice_size),
                inference=inference,
            )
            steps = repeat or (5 if place.type == "cpu" else 20)
            report = run_sizes(suite, wanted, Plan(place, steps, max_seconds_per_cell, memory), show)
    console = Console()
    say(report.headline(), err=False)
    for table in report.tables():
        table.print_to(console)
    if json_file is not None:
        replace_file(json_file, report.to_json())
    if markdown is not None:
        replace_file(markdown, report.to_markdown())
    if plot is not None and (curves := curves_of(report)):
        draw_speed(curves, plot, f"{suite} on {report.environment['device']}")
    if report.interrupted:
        typer.echo("beamtree: interrupted; the tables show what was measured until then", err=True)
        raise typer.Exit(130)


def _refuse(suite: Suite, **options: Any) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise BeamtreeError(f"the suite {suite} does not use {', '.join(given)}: leave it out")


def _words(option: str, text: str | None) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",")) if text is not None else ()
    if not all(words):
        raise BeamtreeError(f"{option} has an empty entry between commas or at an end: {text!r}")
    return words


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    words = _words(option, text)
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise BeamtreeError(f"{option} takes positive whole numbers, separated by commas, got {word!r}")
    return tuple(map(int, words))

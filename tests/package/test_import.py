"""`import beamtree` takes no time, and its layers need torch alone."""

import subprocess
import sys
import textwrap

OPTIONAL = [
    *("numpy", "safetensors", "typer", "rich", "tqdm"),  # of the command line and files
    *("accelerate", "tensorboard", "matplotlib", "fastapi", "uvicorn", "tokenizers", "huggingface_hub"),
    "transformers",
    *("triton", "nltk", "pytest", "hypothesis"),
]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_imported_when_a_layer_is_asked_for_and_not_before() -> None:
    program = """
        import sys
        import beamtree, beamtree.cli
        for name in beamtree.cli.COMMANDS:
            __import__(f"beamtree.cli.{name}")
        print("torch" in sys.modules)
        beamtree.BeamTreeEncoder
        print("torch" in sys.modules)
    """
    assert run(program).split() == ["False", "True"]


def test_a_room_is_there_without_an_import_of_its_own() -> None:
    program = """
        import beamtree
        print(beamtree.nn.BeamTreeEncoder is beamtree.BeamTreeEncoder, hasattr(beamtree, "__main__"))
    """
    assert run(program).split() == ["True", "False"]


def test_importing_and_training_need_torch_alone() -> None:
    program = f"""
        import sys

        class Without:
            def __init__(self, finder):
                self.finder = finder

            def find_spec(self, name, path=None, target=None):
                absent = name.partition(".")[0] in {OPTIONAL}
                return None if absent else self.finder.find_spec(name, path, target)

        sys.meta_path = [Without(finder) for finder in sys.meta_path]
        import torch
        import beamtree

        encoder = beamtree.BeamTreeEncoder(8)
        root, trees = encoder(torch.randn(2, 5, 8), need_trees=True)
        root.sum().backward()
        print(len(trees.brackets()), *sorted(set({OPTIONAL}) & set(sys.modules)))
        print("torch._dynamo" in sys.modules)
    """
    trees, compiler = run(program).splitlines()
    assert trees == "2"
    assert compiler == "False"  # a second and a half at the first call


def test_every_public_name_is_there() -> None:
    program = """
        import beamtree
        assert beamtree.__all__ == sorted(beamtree.__all__)
        for name in beamtree.__all__:
            assert getattr(beamtree, name).__doc__, name
        print(beamtree.__version__)
    """
    assert run(program).strip().count(".") == 2


def test_importing_starts_no_compiler_and_reads_no_kernel() -> None:
    program = """
        import sys
        import torch
        before = set(sys.modules)
        from beamtree import *
        print(*sorted(set(sys.modules) - before))
    """
    loaded = run(program).split()
    assert "beamtree.nn.encoder" in loaded
    assert not [name for name in loaded if "_kernels" in name or name.startswith(("torch._dynamo", "triton"))]


def test_a_users_type_checker_is_told_to_read_our_hints() -> None:
    import importlib.resources

    assert importlib.resources.files("beamtree").joinpath("py.typed").is_file()


def test_making_an_encoder_starts_no_compiler() -> None:
    program = """
        import sys
        from beamtree.zoo.by_name import create_encoder, encoder_names, pair_encoder_names
        for name in (*encoder_names(), *pair_encoder_names()):
            create_encoder(name, 16)
        print("torch._dynamo" in sys.modules)
    """
    assert run(program).strip() == "False"  # it takes a second

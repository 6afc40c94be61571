"""A single classifier: embedding, encoder and head."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.found_trees import encode_along, find_trees
from beamtree.classifier.inference import evaluating
from beamtree.classifier.node_readings import NodeReading, read_nodes
from beamtree.classifier.readout import TokenPooling, WordScores
from beamtree.data.task import Task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import machine_memory
from beamtree.files.settings import setting
from beamtree.nn.embedding import create_embedding
from beamtree.nn.heads import ClassifierHead, pair_features
from beamtree.printable import code
from beamtree.pytorch.tracing import is_exporting
from beamtree.saving.folder import bytes_of, check_options
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.by_name import check_registered, create_encoder, pair_encoder_names


@dataclass(frozen=True)
class ModelSettings:
    encoder: str = setting("ebt-grc", "name of an encoder: of beamtree.zoo, or one that you registered")
    d_model: int = setting(128, "features of a node", least=1, most=65536)
    embedding_size: int = setting(
        128, "features of a token; ready-made vectors have their own size", least=1, most=65536
    )
    project_tokens: bool = setting(False, "add a learnt linear map to d_model after the embedding")
    classifier_hidden: int = setting(128, "hidden features of the classifier", least=1, most=65536)
    readout: str = setting(
        "root",
        "what the classifier reads. root: the root of the trees; pooled: also a weighted mean and maximum of "
        "all token vectors and, unless the task has pairs, a score of every word for every label; "
        "tokens: as pooled, but without encoder and trees",
        choices=("root", "pooled", "tokens"),
    )
    word_pairs: int = setting(
        0,
        "if words have scores: up to this many pairs of neighbouring words have scores too, and every score "
        "is weighted by how much more often the word or pair occurs with the label than with the others; "
        "0: words only, unweighted",
        least=0,
        most=1 << 22,
    )
    trees_from: str = setting(
        "",
        "for an encoder that follows given trees (gold-grc): a trained model, folder or shipped name, that "
        "finds them; it becomes a part of the new model and is trained no further",
    )
    tree_tokens: int = setting(
        0, "trees of longer texts cover only this many tokens, half at each end; 0: all", least=0
    )
    word_dropout: float = setting(0.0, "share of words read as unknown in training", least=0, most=0.99)
    input_dropout: float = setting(0.1, "dropout on token vectors", least=0, most=0.99)
    dropout: float = setting(0.1, "dropout inside the encoder", least=0, most=0.99)
    output_dropout: float = setting(0.1, "dropout around the classifier's first layer", least=0, most=0.99)
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Further options of the encoder, such as beam_size."}
    )

    @property
    def title(self) -> str:
        """The name of the model in tables and messages."""
        if self.readout == "tokens":
            return "tokens, no tree"
        return f"{self.encoder} on found trees" if self.trees_from else self.encoder

    @property
    def tree_tokens_in_front(self) -> int:
        """How many of the `tree_tokens` come from the beginning of a text; the others are its last tokens."""
        return self.tree_tokens - self.tree_tokens // 2


class _NoEncoder(nn.Module):
    """Takes the encoder's place if the classifier reads only tokens."""

    builds_trees = False


class TreeClassifier(Classifier):
    """Token ids (S·B, n) -> logits (B, classes), or (B, 1) for two classes; S sentences per example.

    `parser` are the settings of the model that finds the trees if `settings.trees_from` names one.
    """

    def __init__(
        self, settings: ModelSettings, task: Task, words: Words, parser: ModelSettings | None = None
    ) -> None:
        super().__init__()
        self.settings, self.task, self.words = settings, task, words
        self.notes = {}
        check_options(settings.options, "model.options")
        d = settings.d_model
        self.embedding = embedding = create_embedding(
            words,
            settings.embedding_size,
            projected_to=d if settings.project_tokens else None,
            dropout=settings.input_dropout,
            word_dropout=settings.word_dropout,
        )
        if self.reads_pairs and task.sentences != 2:
            raise BeamtreeError(
                f"the encoder {settings.encoder!r} reads pairs, but the task {task.name!r} has none"
            )
        encodes = settings.readout != "tokens"
        self.encoder = _create_encoder(settings, embedding.output_size) if encodes else _NoEncoder()
        self.parser: TreeClassifier | None = None
        if settings.trees_from or parser is not None:
            self.parser = self._make_parser(parser)
            # Its folder may be private and is not needed any more, so only its name is kept.
            place = Path(settings.trees_from)
            name = place.parent.name if place.name == "best" else place.name
            self.settings = replace(settings, trees_from=name)
        if self.needs_merges and task.gold_merges is None:
            raise BeamtreeError(
                f"the encoder {settings.encoder!r} follows gold trees, but the task {task.name!r} has none"
            )
        if (self.reads_pairs or self.follows_trees) and (settings.readout != "root" or settings.tree_tokens):
            reason = "reads pairs" if self.reads_pairs else "follows given trees"
            raise BeamtreeError(
                f"the encoder {settings.encoder!r} {reason}: model.readout must be root and "
                "model.tree_tokens must be 0"
            )
        features = (d if encodes else 0) + (0 if settings.readout == "root" else 2 * embedding.output_size)
        features *= 1 if task.sentences == 1 or self.reads_pairs else 4
        self.head = ClassifierHead(
            features, settings.classifier_hidden, len(task.labels), dropout=settings.output_dropout
        )
        if settings.readout != "root":
            self.pooling = TokenPooling(embedding.output_size)
        # Single words say little about how two sentences relate; in small data their scores fit noise.
        self.word_scores: WordScores | None = None
        if settings.readout != "root" and task.sentences == 1:
            pairs = settings.word_pairs if words.own.tokens else 0
            self.word_scores = WordScores(words, self.head.out.out_features, pairs)

    def _make_parser(self, settings: ModelSettings | None) -> "TreeClassifier":
        name = self.settings.encoder
        if not self.follows_trees:
            raise BeamtreeError(
                "model.trees_from is for an encoder that follows given trees, such as gold-grc; "
                f"{name!r} finds its own: leave it out"
            )
        if settings is None:
            raise BeamtreeError("model.trees_from names a model, but its settings are missing: `parser`")
        parser = TreeClassifier(settings, self.task, self.words)
        if parser.needs_merges or parser.reads_pairs or not parser.builds_trees or settings.tree_tokens:
            raise BeamtreeError(
                f"model.trees_from needs a model that finds a tree over all tokens of each sentence, not one "
                f"with the encoder {settings.title!r}"
            )
        return parser.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "TreeClassifier":
        super().train(mode)
        if self.parser is not None:
            self.parser.eval()
        return self

    @property
    def members(self) -> "tuple[TreeClassifier, ...]":
        return (self,)

    @property
    def follows_trees(self) -> bool:
        """Whether the encoder must be given its trees, gold ones or those that `parser` finds."""
        return getattr(self.encoder, "needs_merges", False)

    @property
    def tree_finder(self) -> nn.Module:
        """The encoder that finds the trees: the model's own or that of its parser."""
        return self.encoder if self.parser is None else self.parser.encoder

    @property
    def reads_pairs(self) -> bool:
        """Whether the encoder reads both sentences of a pair together and returns one vector for them."""
        return self.settings.readout != "tokens" and self.settings.encoder in pair_encoder_names()

    def _run(
        self, ids: Tensor, key_padding_mask: Tensor, gold_merges: Tensor | None, need_trees: bool
    ) -> tuple[Tensor, BeamTrees | None]:
        key_padding_mask = self.token_padding(ids, key_padding_mask)
        if self.settings.readout == "root":
            x = vectors = self.embedding(ids)
        else:  # pooled without dropout, which would change the maximum
            vectors = self.embedding.look_up(ids)
            x = self.embedding.dropout(vectors)
        if self.settings.readout == "tokens":
            return self.classify(None, ids, vectors, key_padding_mask), None
        if self.parser is not None:
            found_trees = find_trees(self.parser, ids, key_padding_mask)
            root = encode_along(self.encoder, x, key_padding_mask, found_trees)
            return self.classify(root, ids, vectors, key_padding_mask), found_trees
        trees_too = {"need_trees": True} if need_trees else {}
        if self.reads_pairs:
            found = self.encoder(*x.chunk(2), *key_padding_mask.chunk(2), **trees_too)
        else:
            merges = {"merges": gold_merges} if self.needs_merges else {}
            seen, seen_padding = self.part_for_trees(x, key_padding_mask)
            found = self.encoder(seen, key_padding_mask=seen_padding, **trees_too, **merges)
        root, trees = found if need_trees else (found, None)
        return self.classify(root, ids, vectors, key_padding_mask), trees

    def token_padding(self, ids: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Return the padding mask of the tokens, which is not that of the ids if a token has several ids."""
        return key_padding_mask if self.words.encoder is None else self.embedding.padding(ids)

    def part_for_trees(self, x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token vectors that trees cover, all or the first and last, and their padding mask."""
        most = self.settings.tree_tokens
        if not most or (not is_exporting() and x.shape[1] <= most):
            return x, key_padding_mask
        lengths = (~key_padding_mask).sum(1, keepdim=True)  # (B, 1)
        place = torch.arange(most, device=x.device)
        skipped = (lengths - most).clamp(min=0) * (place >= self.settings.tree_tokens_in_front)  # (B, most)
        where = (place + skipped).clamp(max=x.shape[1] - 1)
        part = x.gather(1, where.unsqueeze(-1).expand(-1, -1, x.shape[2]))
        padding = place >= lengths
        return part.masked_fill(padding.unsqueeze(-1), 0.0), padding

    def classify(self, root: Tensor | None, ids: Tensor, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Return logits from roots (S·B, d), or (B, d) of pairs read together, ids and token vectors x."""
        read = self.read_out(root, x, key_padding_mask)
        apart = self.task.sentences == 2 and not self.reads_pairs
        logits: Tensor = self.head(pair_features(*read.unflatten(0, (2, -1))) if apart else read)
        return logits if self.word_scores is None else logits + self.word_scores(ids)

    def read_out(self, root: Tensor | None, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Return what the head reads of each sentence: its root, its pooled tokens or both (`readout`)."""
        if root is not None and self.settings.readout == "root":
            return root
        pooled: Tensor = self.pooling(x, key_padding_mask)
        return pooled if root is None else torch.cat((root, pooled), -1)

    def read_nodes(self, text: str | tuple[str, str], beam: int = 0) -> tuple[list[NodeReading], ...]:
        """Predict a label for every part of a text that is a node in the tree of one beam.

        Returns one list per sentence, in the order of the merges, so the root comes last; it is empty for a
        sentence of one token. A part of one sentence of a pair is classified together with the whole other
        one. Raises BeamtreeError if the encoder gives no access to its node vectors or reads pairs together.
        """
        return read_nodes(evaluating(self), self._sentences(text, 0), beam)

    def _save_folder(self, folder: Path) -> None:
        from beamtree.classifier.model_folder import save_model

        save_model(self, folder, self.notes)

    def _card(self) -> str:
        settings, task = self.settings, self.task
        training = {"epoch": "best epoch", "dev_loss": "dev loss", "dev_accuracy": "dev accuracy"}
        facts = {
            "encoder": [settings.title],
            "d_model": settings.d_model,
            **settings.options,
            "parameters": sum(weight.numel() for weight in self.parameters()),
            "labels": task.labels,
            **({} if self.words.encoder is None else {"token vectors": self.words.source}),
            **{name: self.notes[key] for key, name in training.items() if key in self.notes},
        }
        says = f"A classifier for the task {code(task.name)}, trained with beamtree."
        return self._write_card(f"{settings.title} on {task.name}", says, facts)


def _create_encoder(settings: ModelSettings, token_size: int) -> nn.Module:
    try:
        return create_encoder(
            settings.encoder,
            settings.d_model,
            input_size=None if token_size == settings.d_model else token_size,
            dropout=settings.dropout,
            **settings.options,
        )
    except BeamtreeError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BeamtreeError(f"cannot make the encoder {settings.encoder!r}: {reason}") from error


def create_model(settings: ModelSettings, task: Task, words: Words | None = None) -> TreeClassifier:
    """Make an untrained model. `words` are counted in training texts; a fixed vocabulary needs none."""
    check_model(settings, task, words)
    model = _make(settings, task, words)
    if model.parser is not None:
        from beamtree.classifier.model_folder import load_model

        trained = load_model(settings.trees_from).members[0]
        if (trained.task.name, trained.task.labels, trained.vocabulary) != (
            task.name,
            task.labels,
            model.vocabulary,
        ):
            raise BeamtreeError(
                f"model.trees_from: {settings.trees_from} was trained on another task, or with other labels "
                "or words: train it on the same files"
            )
        model.parser.load_state_dict(trained.state_dict())
    return model


def builds_trees(settings: ModelSettings, task: Task, words: Words | None = None) -> bool:
    """Return True if a model with these settings builds trees; allocates no weights."""
    return _without_memory(settings, task, words).builds_trees


def parameters_of(settings: ModelSettings, task: Task, words: Words | None = None) -> int:
    """Return how many parameters a model with these settings has; allocates no weights."""
    return sum(weight.numel() for weight in _without_memory(settings, task, words).parameters())


def _make(settings: ModelSettings, task: Task, words: Words | None) -> TreeClassifier:
    parser = None
    if settings.trees_from:
        from beamtree.classifier.model_folder import read_settings

        parser = read_settings(settings.trees_from)
    return TreeClassifier(settings, task, words or Words(Vocabulary(task.tokens)), parser)


def _without_memory(settings: ModelSettings, task: Task, words: Words | None) -> TreeClassifier:
    with torch.device("meta"):
        return _make(settings, task, words)


def check_model(settings: ModelSettings, task: Task, words: Words | None = None) -> None:
    """Raise if no model can be made with these settings, or if it does not fit in this machine's memory."""
    if words is None and not task.tokens:
        raise BeamtreeError(
            f"the task {task.name!r} has no fixed vocabulary: pass the words counted in its training texts"
        )
    model = _without_memory(settings, task, words)
    needed = bytes_of(model.state_dict())
    if needed > machine_memory():
        raise BeamtreeError(
            f"the weights would take {needed / 2**30:,.0f} GiB, more than this machine's memory: "
            "choose a smaller d_model or embedding_size"
        )
    if settings.readout != "tokens":
        size = model.embedding.output_size
        check_registered(settings.encoder, partial(_create_encoder, settings, size), settings.d_model, size)

"""A whole classifier: embedding, encoder, head; texts in, labels with their probabilities and trees out."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.classifier.classifier import Classifier
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
from beamtree.zoo.by_name import check_registered, create_encoder, pair_encoder_names


@dataclass(frozen=True)
class ModelSettings:
    encoder: str = setting("ebt-grc", "a row of the paper's tables, by its name in beamtree.zoo, or your own")
    d_model: int = setting(128, "features of a node", least=1, most=65536)
    embedding_size: int = setting(
        128, "features of a token; ready-made vectors bring their own", least=1, most=65536
    )
    project_tokens: bool = setting(False, "a learnt linear map to d_model after the embedding")
    classifier_hidden: int = setting(128, "hidden features of the classifier", least=1, most=65536)
    readout: str = setting(
        "root",
        "what the classifier reads: root of the trees; pooled: beside it a weighted mean and the maximum of "
        "all token vectors, and unless it is a pair a score that every word has for every label; tokens: "
        "these alone, without an encoder and its trees",
        choices=("root", "pooled", "tokens"),
    )
    word_pairs: int = setting(
        0,
        "where words have scores, so many pairs of neighbours at most have one too, and scores count by how "
        "much more often a label has the word or pair than the others do; 0: words alone, all alike",
        least=0,
        most=1 << 22,
    )
    tree_tokens: int = setting(
        0, "of a longer text the trees are over its first and last tokens, so many in all; 0: all", least=0
    )
    word_dropout: float = setting(0.0, "share of words read as unknown in training", least=0, most=0.99)
    input_dropout: float = setting(0.1, "on token vectors", least=0, most=0.99)
    dropout: float = setting(0.1, "inside the encoder", least=0, most=0.99)
    output_dropout: float = setting(0.1, "around the classifier's first layer", least=0, most=0.99)
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Further options of the encoder, such as beam_size."}
    )

    @property
    def title(self) -> str:
        """What a model is called beside others."""
        return "tokens, no tree" if self.readout == "tokens" else self.encoder

    @property
    def tree_tokens_in_front(self) -> int:
        """How many of `tree_tokens` come from a text's beginning; the others are its last ones."""
        return self.tree_tokens - self.tree_tokens // 2


class _NoEncoder(nn.Module):
    """Where the classifier reads tokens alone."""

    builds_trees = False


class TreeClassifier(Classifier):
    """Token ids (S·B, n) -> logits (B, classes), one where there are two; S sentences an example."""

    def __init__(self, settings: ModelSettings, task: Task, words: Words) -> None:
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
        encodes = settings.readout != "tokens"
        # Whether both sentences of a pair give one vector.
        self.meets = encodes and settings.encoder in pair_encoder_names()
        if self.meets and task.sentences != 2:
            raise BeamtreeError(f"the encoder {settings.encoder!r} reads pairs, task {task.name!r} has none")
        input_size = None if embedding.output_size == d else embedding.output_size
        self.encoder = _create_encoder(settings, input_size) if encodes else _NoEncoder()
        if self.needs_merges and task.gold_merges is None:
            raise BeamtreeError(
                f"the encoder {settings.encoder!r} follows gold trees, task {task.name!r} has none"
            )
        if (self.meets or self.needs_merges) and (settings.readout != "root" or settings.tree_tokens):
            reason = "reads pairs" if self.meets else "follows gold trees"
            raise BeamtreeError(
                f"the encoder {settings.encoder!r} {reason}: model.readout must be root, model.tree_tokens 0"
            )
        features = (d if encodes else 0) + (0 if settings.readout == "root" else 2 * embedding.output_size)
        features *= 1 if task.sentences == 1 or self.meets else 4
        self.head = ClassifierHead(
            features, settings.classifier_hidden, len(task.labels), dropout=settings.output_dropout
        )
        if settings.readout != "root":
            self.pooling = TokenPooling(embedding.output_size)
        # In a pair it is not single words that tell; of few pairs their scores learn chance alone.
        self.word_scores: WordScores | None = None
        if settings.readout != "root" and task.sentences == 1:
            pairs = settings.word_pairs if words.own.tokens else 0
            self.word_scores = WordScores(words, self.head.out.out_features, pairs)

    @property
    def members(self) -> "tuple[TreeClassifier, ...]":
        return (self,)

    def forward(
        self,
        ids: Tensor,
        key_padding_mask: Tensor,
        gold_merges: Tensor | None = None,
        *,
        need_trees: bool = False,
    ) -> Any:
        """The logits, and with `need_trees` the encoder's trees beside them.

        `gold_merges` are for encoders that must be given a tree (`needs_merges`); others look for their own.
        """
        trees_too = {"need_trees": True} if need_trees else {}
        key_padding_mask = self.token_padding(ids, key_padding_mask)
        if self.settings.readout == "root":
            x = vectors = self.embedding(ids)
        else:  # a maximum over dropped and enlarged features would be another one than in evaluation
            vectors = self.embedding.look_up(ids)
            x = self.embedding.dropout(vectors)
        if self.settings.readout == "tokens":
            logits = self.classify(None, ids, vectors, key_padding_mask)
            return (logits, None) if need_trees else logits
        if self.meets:
            found = self.encoder(*x.chunk(2), *key_padding_mask.chunk(2), **trees_too)
        else:
            merges = {"merges": gold_merges} if self.needs_merges else {}
            seen, seen_padding = self.part_for_trees(x, key_padding_mask)
            found = self.encoder(seen, key_padding_mask=seen_padding, **trees_too, **merges)
        root, trees = found if need_trees else (found, None)  # (S·B, d), of pairs that meet (B, d)
        logits = self.classify(root, ids, vectors, key_padding_mask)
        return (logits, trees) if need_trees else logits

    def token_padding(self, ids: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Where there is no token: as the mask of the ids says, unless a token has several of them."""
        return key_padding_mask if self.words.encoder is None else self.embedding.padding(ids)

    def part_for_trees(self, x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The token vectors that trees are over, and their padding: all, or the first and the last ones."""
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
        """Logits from roots (S·B, d), or (B, d) of pairs that meet, and from tokens (S·B, n), (S·B, n, e)."""
        read = self.read_out(root, x, key_padding_mask)
        apart = self.task.sentences == 2 and not self.meets
        logits: Tensor = self.head(pair_features(*read.unflatten(0, (2, -1))) if apart else read)
        return logits if self.word_scores is None else logits + self.word_scores(ids)

    def read_out(self, root: Tensor | None, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """What the head reads of each sentence: its root if there is one, and of all its tokens what the
        settings say."""
        if root is not None and self.settings.readout == "root":
            return root
        pooled: Tensor = self.pooling(x, key_padding_mask)
        return pooled if root is None else torch.cat((root, pooled), -1)

    def read_nodes(self, text: str | tuple[str, str], beam: int = 0) -> tuple[list[NodeReading], ...]:
        """What the model would say of every part of a text, by the tree of one beam: the head read on every
        node. One list for each sentence, in the order of the merges; the last one of it is the root. A
        sentence of one token has no inner node, so its list is empty.

        A part of a pair is read beside the whole other sentence. Encoders that keep no node vectors, and
        pairs that are read together, have none: that is an error.
        """
        return read_nodes(evaluating(self), self._sentences(text, 0), beam)

    def _save_folder(self, folder: Path) -> None:
        from beamtree.classifier.model_folder import save_model

        save_model(self, folder, self.notes)

    def _card(self) -> str:
        """What the classifier is and reads, and of its training what stands beside its weights."""
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


def _create_encoder(settings: ModelSettings, input_size: int | None) -> nn.Module:
    try:
        return create_encoder(
            settings.encoder,
            settings.d_model,
            input_size=input_size,
            dropout=settings.dropout,
            **settings.options,
        )
    except BeamtreeError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BeamtreeError(f"cannot make the encoder {settings.encoder!r}: {reason}") from error


def create_model(settings: ModelSettings, task: Task, words: Words | None = None) -> TreeClassifier:
    """A fresh model for a task; `words` are those counted in its text, if it is one on language."""
    check_model(settings, task, words)
    return TreeClassifier(settings, task, words or Words(Vocabulary(task.tokens)))


def builds_trees(settings: ModelSettings, task: Task, words: Words | None = None) -> bool:
    """Whether a model of these settings would; nothing is made for it."""
    return _without_memory(settings, task, words).builds_trees


def parameters_of(settings: ModelSettings, task: Task, words: Words | None = None) -> int:
    """How many a model of these settings has, without making them."""
    return sum(weight.numel() for weight in _without_memory(settings, task, words).parameters())


def _without_memory(settings: ModelSettings, task: Task, words: Words | None) -> TreeClassifier:
    with torch.device("meta"):
        return TreeClassifier(settings, task, words or Words(Vocabulary(task.tokens)))


def check_model(settings: ModelSettings, task: Task, words: Words | None = None) -> None:
    """Refuse what no model can be made of, or none for which this machine has memory."""
    if words is None and not task.tokens:
        raise BeamtreeError(f"task {task.name!r} has no words of its own: they are counted in its text")
    model = _without_memory(settings, task, words)
    needed = bytes_of(model.state_dict())
    if needed > machine_memory():
        raise BeamtreeError(
            f"the weights would take {needed / 2**30:,.0f} GiB, more than this machine's memory: "
            "choose a smaller d_model or embedding_size"
        )
    if settings.readout != "tokens":
        size = model.embedding.output_size
        make = partial(_create_encoder, settings, None if size == settings.d_model else size)
        check_registered(settings.encoder, make, settings.d_model, size)

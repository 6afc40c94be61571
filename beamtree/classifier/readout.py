"""What a classifier reads of a text besides its tree: all its token vectors pooled, and what its words say.

The tree is over a bounded part of a long text, these are over all of it; together they are what people know
as a good bag of words, so that the tree has to add something to it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from beamtree.data.batching import EncodedExamples, Integers
from beamtree.data.vocabulary import FIRST_WORD, PAD
from beamtree.data.words import Words

# What all words of a text say together before they have learnt to differ; as scores move by small steps, a
# larger one lets them be heard within an epoch of a small table.
LOUDNESS = 15.0

Floats = NDArray[np.float64]
_NOBODY = -1
_SPREAD, _PRIME = 48271, (1 << 31) - 1  # pairs of like numbers get places far apart, within 64 bits
_MOST_NUMBERS = 1 << 22  # pairs × logits
_MOST_TOKENS = 1 << 25  # that are counted, for the memory it takes; of more, every so many texts


class TokenPooling(nn.Module):
    """Token vectors (B, n, e) -> (B, 2e): their weighted mean and their maximum, each normalised.

    A learnt query weighs the tokens, all alike at first: the plain mean of a long text says little, whatever
    the text says. Normalised, it is as large as the maximum beside it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 1)
        nn.init.zeros_(self.query.weight)
        self.mean_norm, self.maximum_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        padding = key_padding_mask.unsqueeze(-1)
        shares = self.query(x).masked_fill(padding, -torch.inf).softmax(1)  # (B, n, 1)
        maximum = x.masked_fill(padding, -torch.inf).amax(1)
        return torch.cat((self.mean_norm((shares * x).sum(1)), self.maximum_norm(maximum)), -1)


class WordScores(nn.Module):
    """Ids (B, n) -> (B, logits): every word of the training split has a score of its own for every label.

    Rare words count more (`Words.rarity`), longer texts not. Words that are not among the model's own, those
    of the package first met at prediction, say nothing here. Scores begin at zero.

    With `pairs`, at most so many pairs of neighbouring words have scores too, and a score is multiplied by
    how far its word or pair leans to the label, as counted in the training split (`count`). This is naive
    Bayes: what all labels have alike says little however it is scored, so that chance is not learnt.
    """

    def __init__(self, words: Words, logits: int, pairs: int = 0) -> None:
        super().__init__()
        self.words = FIRST_WORD + len(words.own.tokens)
        self.pairs = min(pairs, _MOST_NUMBERS // logits)
        rarity = torch.ones(len(words.own.tokens)) if words.rarity is None else words.rarity
        silent = rarity.new_zeros(FIRST_WORD)
        self.register_buffer("rarity", torch.cat((silent, rarity, rarity.new_zeros(self.pairs))))
        self.rarity: Tensor
        self.scores = nn.Embedding(self.words + self.pairs, logits)
        nn.init.zeros_(self.scores.weight)
        if self.pairs:
            # A pair's number gives it a place; of those that share one, one has it.
            self.register_buffer("owner", torch.full((self.pairs,), _NOBODY))
            self.owner: Tensor
            self.register_buffer("leaning", torch.zeros(self.words + self.pairs, logits))
            self.leaning: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        row = torch.where(ids < self.words, ids, PAD)  # specials and strange words have rarity 0
        if self.pairs:
            pair = row * self.words + F.pad(row, (0, 1), value=PAD)[:, 1:]
            place = self._place(pair)
            row = torch.cat((row, torch.where(self.owner[place] == pair, self.words + place, PAD)), 1)
        scores = self.scores(row)
        if self.pairs:
            scores = scores * self.leaning[row].to(scores.dtype)
        weight = self.rarity[row].to(scores.dtype)
        length = weight.square().sum(1, keepdim=True).sqrt().clamp(min=1.0)
        return LOUDNESS * ((weight / length).unsqueeze(-1) * scores).sum(1)

    @torch.no_grad()
    def count(self, train: EncodedExamples, labels: int) -> None:
        """Choose the pairs that have a score, those that tell most, and see what leans to which label."""
        if not self.pairs:
            return
        seen = _Seen.of(train, self.words, labels)
        self.leaning[: self.words] = self._logits(seen.leanings(seen.words, np.arange(self.words)))
        self.leaning[:FIRST_WORD] = 0.0
        chosen, texts = seen.telling_pairs()  # the best one last
        if not len(chosen):
            return
        place = self._place(torch.from_numpy(chosen)).numpy()
        last = np.full(self.pairs, -1)
        np.maximum.at(last, place, np.arange(len(chosen)))
        places, best = np.flatnonzero(last >= 0), last[last >= 0]
        owner, rows = chosen[best], torch.from_numpy(self.words + places)
        self.owner[places] = torch.from_numpy(owner)
        self.rarity[rows] = torch.from_numpy(1 + np.log((1 + seen.texts) / (1 + texts[best]))).float()
        self.leaning[rows] = self._logits(seen.leanings(seen.pairs, owner))

    def _place(self, pair: Tensor) -> Tensor:
        return pair % _PRIME * _SPREAD % _PRIME % self.pairs

    def _logits(self, leanings: Floats) -> Tensor:
        """Of two labels one logit tells: that of the second."""
        found = torch.from_numpy(leanings).float()
        return found[:, 1:] if self.scores.embedding_dim == 1 else found


class _Occurrences(NamedTuple):
    """Which texts have what, each once: a word's row, or a pair's number."""

    what: Integers  # in order
    label: Integers  # of the text


@dataclass(frozen=True)
class _Seen:
    """What the texts of a training split have, and the label of each."""

    words: _Occurrences
    pairs: _Occurrences
    texts: int
    shares: Floats  # (labels,) of the texts; each a little more than none

    @classmethod
    def of(cls, train: EncodedExamples, words: int, labels: int) -> "_Seen":
        every = -(-len(train.tokens) // _MOST_TOKENS)
        texts = len(train)
        text = np.repeat(np.arange(texts), train.lengths[:, 0])
        counted = text % every == 0
        text, row = text[counted], train.tokens[counted].astype(np.int64)
        row[row >= words] = PAD
        both = (text[1:] == text[:-1]) & (row[:-1] >= FIRST_WORD) & (row[1:] >= FIRST_WORD)
        pair = (row[:-1] * words + row[1:])[both]

        def once(what: Integers, text: Integers) -> _Occurrences:
            found = np.unique(what * texts + text)
            return _Occurrences(found // texts, train.labels[found % texts])

        size = np.bincount(train.labels[::every], minlength=labels)
        return cls(
            once(row, text), once(pair, text[:-1][both]), int(size.sum()), (size + 1) / (size.sum() + labels)
        )

    def leanings(self, seen: _Occurrences, wanted: Integers) -> Floats:
        """(wanted, labels): the log of how much more often texts of a label have it than other texts.

        Imagined texts, one a label on average, keep what is rare from leaning far.
        """
        labels = len(self.shares)
        order = np.argsort(wanted)
        place = np.searchsorted(wanted, seen.what, sorter=order).clip(max=len(wanted) - 1)
        row = order[place]
        is_wanted = wanted[row] == seen.what
        cells = (row * labels + seen.label)[is_wanted]
        counts = np.bincount(cells, minlength=len(wanted) * labels).reshape(-1, labels)
        others = counts.sum(1, keepdims=True) - counts
        return np.log(counts / self.shares + labels) - np.log(others / (1 - self.shares) + labels)

    def telling_pairs(self) -> tuple[Integers, Integers]:
        """The pairs that two texts or more have, and how many; last the one that tells most.

        It tells most whose count with some label is most standard deviations above what chance would give.
        """
        labels = len(self.shares)
        pairs, which, texts = np.unique(self.pairs.what, return_inverse=True, return_counts=True)
        cells, counts = np.unique(which * labels + self.pairs.label, return_counts=True)
        pair, share = cells // labels, self.shares[cells % labels]
        above = (counts - texts[pair] * share) / np.sqrt(texts[pair] * share * (1 - share))
        telling = np.zeros(len(pairs))
        np.maximum.at(telling, pair, above)
        order = np.argsort(telling, kind="stable")
        order = order[texts[order] >= 2]
        return pairs[order], texts[order]

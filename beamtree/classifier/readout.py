"""What a classifier reads besides trees: pooled token vectors, and scores of words and word pairs.

Trees may cover only part of a long text (`tree_tokens`); these cover all of it. Together they are a strong
bag of words, so that trees have to add something to it.
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

# The factor of the summed word scores. An optimiser moves scores by small steps; scaled up, they have an
# effect within an epoch even on a small table.
SCORE_SCALE = 15.0

Floats = NDArray[np.float64]
_NO_PAIR = -1
_SPREAD, _PRIME = 48271, (1 << 31) - 1  # place similar pairs far apart, without overflow in 64 bits
_MOST_NUMBERS = 1 << 22  # pairs × logits
_MOST_TOKENS = 1 << 25  # counted, to bound memory; of a larger split, only every k-th text is counted


class TokenPooling(nn.Module):
    """Token vectors (B, n, e) -> (B, 2e): their weighted mean and their maximum, each normalised.

    The weights begin equal and are learnt, because the plain means of long texts hardly differ. Normalised,
    the mean is as large as the maximum.
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
    """Ids (B, n) -> (B, logits): a sum of scores, which every word of the training split has for every label.

    Rare words count more (`Words.rarity`); the length of a text does not matter. Words that training did not
    see, which have only a vector shipped with beamtree, have no score. Scores begin at zero.

    With `pairs`, up to this many pairs of neighbouring words have scores too, and each score is multiplied by
    how strongly its word or pair leans to the label, as counted in the training split (`count`). As in naive
    Bayes, what is equally frequent with all labels then has little effect whatever its score, so that noise
    is not learnt.
    """

    def __init__(self, words: Words, logits: int, pairs: int = 0) -> None:
        super().__init__()
        self.words = FIRST_WORD + len(words.own.tokens)
        self.pairs = min(pairs, _MOST_NUMBERS // logits)
        rarity = torch.ones(len(words.own.tokens)) if words.rarity is None else words.rarity
        specials = rarity.new_zeros(FIRST_WORD)
        self.register_buffer("rarity", torch.cat((specials, rarity, rarity.new_zeros(self.pairs))))
        self.rarity: Tensor
        self.scores = nn.Embedding(self.words + self.pairs, logits)
        nn.init.zeros_(self.scores.weight)
        if self.pairs:
            # A pair's number determines its place in the table; of the pairs with one place, one owns it.
            self.register_buffer("owner", torch.full((self.pairs,), _NO_PAIR))
            self.owner: Tensor
            self.register_buffer("leaning", torch.zeros(self.words + self.pairs, logits))
            self.leaning: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        row = torch.where(ids < self.words, ids, PAD)  # words without a score become padding, of rarity 0
        if self.pairs:
            pair = row * self.words + F.pad(row, (0, 1), value=PAD)[:, 1:]
            place = self._place(pair)
            row = torch.cat((row, torch.where(self.owner[place] == pair, self.words + place, PAD)), 1)
        scores = self.scores(row)
        if self.pairs:
            scores = scores * self.leaning[row].to(scores.dtype)
        weight = self.rarity[row].to(scores.dtype)
        length = weight.square().sum(1, keepdim=True).sqrt().clamp(min=1.0)
        return SCORE_SCALE * ((weight / length).unsqueeze(-1) * scores).sum(1)

    @torch.no_grad()
    def count(self, train: EncodedExamples, labels: int) -> None:
        """Choose the most informative pairs to have scores, and compute which words and pairs lean where."""
        if not self.pairs:
            return
        seen = _Seen.of(train, self.words, labels)
        self.leaning[: self.words] = self._logits(seen.leanings(seen.words, np.arange(self.words)))
        self.leaning[:FIRST_WORD] = 0.0
        chosen, texts = seen.informative_pairs()  # the best one last
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
        """Keep the column of the second label if there are two, because they have one logit."""
        found = torch.from_numpy(leanings).float()
        return found[:, 1:] if self.scores.embedding_dim == 1 else found


class _Occurrences(NamedTuple):
    """The words or pairs of all texts, each once per text."""

    what: Integers  # a word's row or a pair's number, sorted
    label: Integers  # of the text


@dataclass(frozen=True)
class _Seen:
    """The words and pairs that occur in a training split, with the labels of their texts."""

    words: _Occurrences
    pairs: _Occurrences
    texts: int
    shares: Floats  # (labels,) of the texts; smoothed, so never 0

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
        """Return (wanted, labels): the log of how much more often texts of a label have it than other texts.

        Counts are smoothed by one imagined text per label on average, so that rare words do not lean far.
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

    def informative_pairs(self) -> tuple[Integers, Integers]:
        """Return the pairs that occur in two or more texts, the most informative last, and in how many texts.

        The measure is how many standard deviations the count with some label is above what chance would give.
        """
        labels = len(self.shares)
        pairs, which, texts = np.unique(self.pairs.what, return_inverse=True, return_counts=True)
        cells, counts = np.unique(which * labels + self.pairs.label, return_counts=True)
        pair, share = cells // labels, self.shares[cells % labels]
        above = (counts - texts[pair] * share) / np.sqrt(texts[pair] * share * (1 - share))
        informative = np.zeros(len(pairs))
        np.maximum.at(informative, pair, above)
        order = np.argsort(informative, kind="stable")
        order = order[texts[order] >= 2]
        return pairs[order], texts[order]

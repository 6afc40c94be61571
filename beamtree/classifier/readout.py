"""What a classifier reads of a text besides its tree: all its token vectors pooled, and what its words say.

The tree is over a bounded part of a long text, these are over all of it; together they are what people know
as a good bag of words, so that the tree has to add something to it.
"""

import torch
from torch import Tensor, nn

from beamtree.data.vocabulary import FIRST_WORD
from beamtree.data.words import Words

# What all words of a text say together before they have learnt to differ; as scores move by small steps, a
# larger one lets them be heard within an epoch of a small table.
LOUDNESS = 15.0


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
    """

    def __init__(self, words: Words, logits: int) -> None:
        super().__init__()
        self.count = FIRST_WORD + len(words.own.tokens)
        rarity = torch.ones(len(words.own.tokens)) if words.rarity is None else words.rarity
        self.register_buffer("rarity", torch.cat((rarity.new_zeros(FIRST_WORD), rarity)))
        self.rarity: Tensor
        self.scores = nn.Embedding(self.count, logits)
        nn.init.zeros_(self.scores.weight)

    def forward(self, ids: Tensor) -> Tensor:
        row = torch.where(ids < self.count, ids, 0)  # specials and strange words have rarity 0
        weight = self.rarity[row].to(self.scores.weight.dtype)
        length = weight.square().sum(1, keepdim=True).sqrt().clamp(min=1.0)
        return LOUDNESS * ((weight / length).unsqueeze(-1) * self.scores(row)).sum(1)

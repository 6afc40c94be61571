"""Baselines for a model on the same rows: the most frequent label, TF-IDF with logistic regression, and the
same model without its tree.

The regression is scikit-learn's, over words and pairs of neighbouring words; cross-validation on the training
rows chooses its regularisation. The model without its tree reads only tokens and words, and is trained like
the model itself, inside its run folder.
"""

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model_folder import load_model
from beamtree.data.task import BadRows, Example
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.training.classes import IMBALANCED, Confusion, largest_share
from beamtree.training.evaluate import evaluate, wilson_interval
from beamtree.training.examples import load_examples
from beamtree.training.recipe import TrainingSettings
from beamtree.training.run_folder import RunFolder

TFIDF = "TF-IDF, logistic regression"
WITHOUT_TREE = "without its tree"
_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # C, the inverse of the regularisation
_FOLDS = 5
_MOST_ROWS = 100_000  # to learn from, so that it takes minutes at most
_ROWS_TO_CHOOSE = 10_000  # for cross-validation
_MOST_WEIGHTS = 20_000_000  # labels × features


@dataclass(frozen=True)
class Competitor:
    """A way to label rows, and its results on the rows that a model was measured on."""

    name: str
    confusion: Confusion
    seconds: float = 0.0
    balanced: bool = False  # whether it has learnt as if all labels were equally frequent

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "accuracy": self.confusion.accuracy, "macro_f1": self.confusion.macro_f1}


@dataclass(frozen=True)
class Comparison:
    """A model and others on the same rows."""

    model: Competitor
    others: Sequence[Competitor]
    missing: str | None = None  # what to install for a fuller comparison


class Company:
    """The baselines of a model: fitted to its training rows once, then measured on any rows."""

    def __init__(
        self,
        train: Sequence[Example],
        labels: Sequence[str],
        settings: TrainingSettings,
        twin: Classifier | None = None,
        *,
        twin_seconds: float = 0.0,
    ) -> None:
        """`twin` is the model without its tree, if there is one; `twin_seconds` is its training time."""
        self.labels, self.twin, self.twin_seconds = labels, twin, twin_seconds
        self.most_frequent, share = largest_share(train)
        self.missing: str | None = None  # what to install for all baselines
        self.counts: WordCounts | None = None
        self.balanced = settings.class_weights == "balanced"
        scoring = "balanced_accuracy" if self.balanced else "f1_macro" if share > IMBALANCED else "accuracy"
        try:
            self.counts = WordCounts(train, balanced=self.balanced, scoring=scoring)
        except MissingExtraError as error:
            self.missing = str(error)

    @classmethod
    def of(cls, run: RunFolder, model: Classifier, train: Sequence[Example]) -> "Company":
        """The baselines of the model of a run that was trained on these rows."""
        twin, seconds = load_twin(run, next(model.parameters()).device), run.without_tree.seconds
        return cls(train, model.task.labels, run.read_recipe().training, twin, twin_seconds=seconds)

    def beside(self, model: Competitor, tested: Sequence[Example]) -> Comparison:
        """Compare the model, which was measured on these rows, with the baselines."""
        return Comparison(model, self.on(tested), self.missing)

    def on(self, tested: Sequence[Example]) -> list[Competitor]:
        always = [self.most_frequent] * len(tested)
        found = [Competitor(f"always {self.most_frequent!r}", _confusion(tested, always, self.labels))]
        if self.counts is not None:
            given = _confusion(tested, self.counts.label(tested), self.labels)
            found.append(Competitor(TFIDF, given, self.counts.seconds, self.balanced))
        if self.twin is not None:
            measured = evaluate(self.twin, WITHOUT_TREE, tested).confusion
            assert measured is not None  # for a user's own data it always is
            found.append(Competitor(WITHOUT_TREE, measured, self.twin_seconds, self.balanced))
        return found


class WordCounts:
    """TF-IDF with logistic regression, fitted to training rows."""

    def __init__(
        self, train: Sequence[Example], *, balanced: bool = False, scoring: str = "accuracy"
    ) -> None:
        """`scoring`, a name of scikit-learn, is the score by which the regularisation is chosen."""
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
        except ImportError as error:
            raise MissingExtraError(f"the comparison with {TFIDF}", "baseline") from error
        began = time.monotonic()
        train = train[:: -(-len(train) // _MOST_ROWS)]
        gold = [example.label for example in train]
        self._vectorizer = TfidfVectorizer(
            analyzer=_word_features,
            sublinear_tf=True,
            min_df=2 if len(train) > 1000 else 1,
            max_features=max(1000, _MOST_WEIGHTS // len(set(gold))),
        )
        found = self._vectorizer.fit_transform(train)
        regression = LogisticRegression(max_iter=1000, class_weight="balanced" if balanced else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fold without a rare label, a fit that stops early
            strength = _choose_strength(regression, found, gold, scoring)
            self._classifier = regression.set_params(C=strength).fit(found, gold)
        self.seconds = time.monotonic() - began

    def label(self, examples: Sequence[Example]) -> list[str]:
        given: list[str] = self._classifier.predict(self._vectorizer.transform(examples)).tolist()
        return given


def _choose_strength(regression: Any, found: Any, gold: Sequence[str], scoring: str) -> float:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    every = -(-len(gold) // _ROWS_TO_CHOOSE)
    folds = min(_FOLDS, max(2, min(Counter(gold).values())))
    search = GridSearchCV(
        regression,
        {"C": _STRENGTHS},
        scoring=scoring,
        cv=StratifiedKFold(folds, shuffle=True, random_state=0),
    )
    try:
        return float(search.fit(found[::every], gold[::every]).best_params_["C"])
    except ValueError:  # too few rows to split
        return _STRENGTHS[len(_STRENGTHS) // 2]


def _word_features(example: Example) -> Iterator[str]:
    """Words and pairs of neighbouring words; for a pair of texts, marked by text, also the shared words."""
    alone = len(example.sentences) == 1
    for number, tokens in enumerate(example.sentences, start=1):
        mark = "" if alone else f"{number}:"
        yield from (f"{mark}{token}" for token in tokens)
        yield from (f"{mark}{first} {second}" for first, second in pairwise(tokens))
    if not alone:
        yield from (f"both:{token}" for token in set.intersection(*map(set, example.sentences)))


def _confusion(tested: Sequence[Example], given: Sequence[str], labels: Sequence[str]) -> Confusion:
    places, found = {label: i for i, label in enumerate(labels)}, Confusion.empty(labels)
    for example, label in zip(tested, given, strict=True):
        found.counts[places[example.label]][places[label]] += 1
    return found


def training_rows(run: RunFolder) -> list[Example]:
    """The rows that a run on a user's own data was trained on; none if they are gone or have changed."""
    with suppress(BeamtreeError):
        facts, place = run.read_data_facts(), run.read_data_place()
        if run.begun and facts is not None and place is not None and "path" in facts:
            settings = run.read_recipe().task
            _, train, _ = load_examples(settings, place, BadRows.chosen(settings.bad_rows))
            return train if len(train) == facts["train"]["examples"] else []
    return []


def load_twin(run: RunFolder, device: torch.device | str) -> Classifier | None:
    """The model without its tree that was trained with a run, if there is one."""
    with suppress(BeamtreeError):
        return load_model(run.without_tree.path, device=device)
    return None


def verdict(model: Competitor, others: Sequence[Competitor], split: str) -> str:
    """A line that says which is best, by the measure they were trained for, and what the tree adds.

    The measure is mean recall if they were trained as if all labels were equally frequent, else macro-F1 if
    labels are uneven, else accuracy.
    """
    uneven = model.confusion.majority[1] > IMBALANCED
    balanced = any(one.balanced for one in others)
    measure = "mean recall" if balanced else "macro-F1" if uneven else "accuracy"
    rows = model.confusion.examples

    def score(competitor: Competitor) -> float:
        found = competitor.confusion
        return found.mean_recall if balanced else found.macro_f1 if uneven else found.accuracy

    def doubt(lead: Competitor, rival: Competitor) -> str:
        low, _ = wilson_interval(round(rows * score(lead)), rows)
        return ", too close to call" if score(rival) >= low else ""

    best = max((model, *others), key=score)
    level = [one for one in (model, *others) if score(one) == score(best)] if best is model else []
    next_best = max((one for one in (model, *others) if one is not best), key=score)
    rival, lead = (next_best, best) if best is model else (model, best)
    said = (
        f"best on {split} by {measure}: {best.name} with {score(best):.1%}, "
        f"{100 * (score(lead) - score(rival)):.1f} points above {rival.name} ({score(rival):.1%}; "
        f"{rows:,} rows{doubt(lead, rival)})"
    )
    if len(level) > 1:
        names = "; ".join(one.name for one in level)
        said = f"tied on {split} by {measure}: {names}, all with {score(model):.1%} ({rows:,} rows)"
    twin = next((one for one in others if one.name == WITHOUT_TREE), None)
    if best is twin:
        return f"{said}; to train only that one: --set model.readout=tokens"
    if twin is None or twin is rival or twin in level:
        return said
    better, worse = (model, twin) if score(model) >= score(twin) else (twin, model)
    does = "adds" if better is model else "costs"
    return f"{said}; the tree {does} {100 * (score(better) - score(worse)):.1f} points{doubt(better, worse)}"

"""The shape of every request and answer, for checking the one and describing the other."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1.000001)]


class ViewRequest(BaseModel):
    """What to look at."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"texts": ["[MAX 2 9 [MIN 4 7 ] 0 ]"]}]}
    )

    model: str | None = Field(None, max_length=200, description="Name of a model; the first one if left out.")
    texts: list[str] = Field(
        min_length=1, max_length=2, description="One text, or two sentences for a task on pairs."
    )
    beam_size: int | None = Field(None, ge=1, description="Beams to search with; as trained if left out.")


class ModelCard(BaseModel):
    name: str
    task: str
    encoder: str
    sentences: int
    labels: list[str]
    beam_size: int | None
    kind: Literal["search", "tree", "none"]
    parameters: int
    settings: dict[str, Any]
    figures: dict[str, Any]


class PublicLimits(BaseModel):
    max_tokens: int
    max_beam_size: int
    max_request_bytes: int
    seconds: float


class Models(BaseModel):
    version: str
    limits: PublicLimits
    models: list[ModelCard]


class Example(BaseModel):
    title: str
    texts: list[str]


class Examples(BaseModel):
    model: str
    examples: list[Example]


class LabelProbability(BaseModel):
    label: str
    probability: Share


class Prediction(BaseModel):
    label: str
    probability: Share
    probabilities: list[LabelProbability]


class Structure(BaseModel):
    """Columns with an entry for each of the n−1 merges; leaf i is i, the node of step t is n + t."""

    left: list[Count]
    right: list[Count]
    start: list[Count]
    end: list[Count]
    height: list[Count]


class Nodes(Structure):
    score: list[float | None] | None = Field(description="Of the merged pair.")
    probability: list[Share | None] | None = Field(description="Among the beam's pairs when it was chosen.")
    in_gold: list[bool] | None = Field(description="Whether the gold tree has the span too.")


class Beam(BaseModel):
    weight: Share
    log_score: float | None
    brackets: str
    merges: list[Count]
    same_tree_as: int | None = Field(description="An earlier beam with the same tree.")
    nodes: Nodes


class Agreement(BaseModel):
    shared: int
    spans: int
    f1: Share | None
    exact: bool


class Gold(BaseModel):
    brackets: str
    nodes: Structure
    agreement: list[Agreement]


class Search(BaseModel):
    """Every slot of every step; all candidates follow from it, as docs/explorer.md says."""

    beam_size: int
    steps: int
    leaf_scores: list[float | None]
    parent: list[list[int]] = Field(description="Slot of the step before, −1 for an empty slot.")
    position: list[list[int | None]]
    log_score: list[list[float | None]]
    left_score: list[list[float | None]]
    right_score: list[list[float | None]]
    log_z: list[list[float | None]]
    final: list[int]


class Sentence(BaseModel):
    text: str
    tokens: list[str]
    ranges: list[tuple[int, int]]
    unknown: list[int]
    beams: list[Beam]
    gold: Gold | None
    search: Search | None


class View(BaseModel):
    format: int
    model: ModelCard
    seconds: float
    prediction: Prediction
    answer: str | None
    note: str | None
    sentences: list[Sentence]


class Place(BaseModel):
    text: int
    token: int | None
    start: int
    end: int


class Error(BaseModel):
    status: int
    code: str
    message: str
    where: Place | None


class ErrorAnswer(BaseModel):
    error: Error

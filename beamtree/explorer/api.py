"""The API's schemas: every request and answer, and every error with its status."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from beamtree.explorer.sentences import Where

_LATER = {"Retry-After": "2"}  # seconds
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1.000001)]


class ViewRequest(BaseModel):
    """The texts to show, and the model to run on them."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"texts": ["[MAX 2 9 [MIN 4 7 ] 0 ]"]}]}
    )

    model: str | None = Field(None, max_length=200, description="Name of a model; default: the first.")
    texts: list[str] = Field(min_length=1, max_length=2, description="One text; for a task on pairs, two.")
    beam_size: int | None = Field(None, ge=1, description="Number of beams; default: as in training.")


class ModelCard(BaseModel):
    name: str
    task: str
    encoder: str
    sentences: int
    labels: list[str]
    beam_size: int | None
    kind: Literal["search", "tree", "none"]
    follows_gold: bool = Field(description="True if it can be made to follow gold trees.")
    untrained_twin_of: str | None = Field(description="The trained model, if this is its untrained version.")
    members: int = Field(description="Number of models in an ensemble, which averages their answers; else 1.")
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


_LABEL = "The classifier's prediction for the part: an index into the model's labels, from 0."


class Structure(BaseModel):
    """Columns with an entry for each of the n−1 merges. Leaf i has number i, the node of step t has n + t."""

    left: list[Count]
    right: list[Count]
    start: list[Count]
    end: list[Count]
    height: list[Count]
    label: list[Count] | None = Field(description=_LABEL)
    label_probability: list[Share | None] | None


class Nodes(Structure):
    score: list[float | None] | None = Field(description="Score of the merged pair.")
    probability: list[Share | None] | None = Field(description="Share of the merged pair when it was chosen.")
    in_gold: list[bool] | None = Field(description="True if the gold tree has the same span.")


class Beam(BaseModel):
    weight: Share
    log_score: float | None
    brackets: str
    merges: list[Count]
    same_tree_as: int | None = Field(description="Index of an earlier beam with the same tree.")
    nodes: Nodes


class Agreement(BaseModel):
    shared: int
    spans: int
    f1: Share | None
    exact: bool


class Gold(BaseModel):
    brackets: str
    merges: list[Count]
    nodes: Structure
    agreement: list[Agreement]


class Search(BaseModel):
    """Every slot of every step. All candidates follow from these, as docs/explorer.md describes."""

    beam_size: int
    steps: int
    leaf_scores: list[float | None]
    parent: list[list[int]] = Field(description="Slot of the previous step; −1 for an empty slot.")
    position: list[list[int | None]]
    log_score: list[list[float | None]]
    left_score: list[list[float | None]]
    right_score: list[list[float | None]]
    log_z: list[list[float | None]]
    label: list[list[Count]] | None = Field(description=_LABEL)
    label_probability: list[list[Share | None]] | None
    final: list[int]


class Sentence(BaseModel):
    text: str
    tokens: list[str]
    ranges: list[tuple[int, int]]
    texts_in: list[tuple[int, int]] | None = Field(
        description="Spans that are complete texts of the task; for other parts, labels are extrapolations."
    )
    unknown: list[int]
    beams: list[Beam]
    gold: Gold | None
    search: Search | None


class View(BaseModel):
    format: int
    model: ModelCard
    seconds: float
    prediction: Prediction
    with_gold: Prediction | None = Field(description="The prediction if the model follows the gold trees.")
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


class Documented(NamedTuple):
    status: int
    code: str
    when: str


DOCUMENTED = (
    Documented(400, "bad_request", "The request is not valid HTTP, or it names a host that is not served."),
    Documented(404, "not_found", "There is nothing at this address."),
    Documented(404, "no_such_model", "The model is not one of those served."),
    Documented(405, "method_not_allowed", "The address does not support this method."),
    Documented(408, "too_late", "The body of the request did not arrive in time."),
    Documented(413, "too_large", "The request has more bytes than allowed."),
    Documented(413, "too_long", "A text has more tokens than allowed; `where` is the first one too many."),
    Documented(415, "not_json", "The body is not declared as application/json."),
    Documented(
        422, "invalid", "A field is missing, unknown or out of range, or the task takes more or fewer texts."
    ),
    Documented(422, "unreadable", "A text is not in the task's language; `where` says which token."),
    Documented(429, "busy", "Too many requests at once; the header Retry-After says when to try again."),
    Documented(431, "too_large", "The address and the headers have more bytes than allowed."),
    Documented(500, "internal", "An error in the explorer itself."),
    Documented(
        503, "too_slow", "The computation took longer than allowed and was stopped; Retry-After as for 429."
    ),
)
_STATUS = {error.code: error.status for error in reversed(DOCUMENTED)}


class Problem(Exception):  # noqa: N818 (named as in the API; it is not always a mistake)
    """Raised to answer with an error: `{"error": {status, code, message, where}}`."""

    def __init__(
        self,
        code: str,
        message: str,
        where: Where | None = None,
        *,
        status: int | None = None,  # None: the status of the code
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.where = code, message, where
        self.status = status or _STATUS[code]
        self.headers = dict(headers or {}) | (_LATER if code in ("busy", "too_slow") else {})

    def answer(self) -> Response:
        error = {
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "where": None if self.where is None else self.where._asdict(),
        }
        return Response(
            json.dumps({"error": error}), self.status, self.headers, media_type="application/json"
        )

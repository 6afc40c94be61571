"""The explorer as a FastAPI app: three requests of the API, and the pages."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import beamtree
from beamtree.classifier.classifier import Classifier
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.explorer.models import describe_model, examples_for
from beamtree.explorer.pages import Asset, read_assets, write_api_page
from beamtree.explorer.sentences import UnreadableInputError
from beamtree.explorer.view import make_view

try:
    from fastapi import Depends, FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from beamtree.explorer import api
    from beamtree.explorer.limits import ClientLeftError, Limits, Workshop
    from beamtree.explorer.server import Guard
except ImportError as error:
    raise MissingExtraError("the tree explorer", "web") from error

LOCAL_HOSTS = ("localhost",)
_DESCRIPTION = (
    "What a beam-tree network does with a text: prediction, trees, gold tree, and the whole search, step by "
    "step."
)


def create_app(
    models: Mapping[str, Classifier], limits: Limits | None = None, hosts: Collection[str] = LOCAL_HOSTS
) -> FastAPI:
    """Create the app for these models; the first is the default. Requests may use any address of the machine,
    and these host names.
    """
    if not models:
        raise BeamtreeError("there is no model to explore")
    limits = limits or Limits()
    workshop = Workshop(limits)
    cards = [describe_model(name, model) for name, model in models.items()]
    default = next(iter(models))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        workshop.close()

    app = FastAPI(
        title="beamtree explorer",
        version=beamtree.__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.add_middleware(Guard, limits=limits, hosts=hosts)
    _handle_errors(app)

    @app.get("/api/models", response_model=None, responses=_answers(api.Models))
    async def models_served() -> Response:
        """The models served, the default first, and the limits of a request."""
        public = {name: getattr(limits, name) for name in api.PublicLimits.model_fields}
        return _json({"version": beamtree.__version__, "limits": public, "models": cards})

    @app.get(
        "/api/examples", response_model=None, responses=_answers(api.Examples, "no_such_model", "invalid")
    )
    async def examples(
        model: Annotated[
            str | None, Query(max_length=200, description="Name of a model; default: the first.")
        ] = None,
    ) -> Response:
        """Texts to try with a model. Texts of which the model knows less than half the words are left out."""
        name = model or default
        found = examples_for(_find(models, name))
        return _json({"model": name, "examples": [example._asdict() for example in found]})

    @app.post(
        "/api/view",
        response_model=None,
        responses=_answers(
            api.View, "no_such_model", "too_long", "not_json", "invalid", "unreadable", "busy", "too_slow"
        ),
        dependencies=[Depends(_require_json)],
    )
    async def view(request: Request, wanted: api.ViewRequest) -> Response:
        """Everything that the page shows about one text, or one pair of texts, and one model."""
        name = wanted.model or default
        model = _find(models, name)
        if wanted.beam_size is not None and wanted.beam_size > limits.max_beam_size:
            raise api.Problem("invalid", f"beam_size must be at most {limits.max_beam_size} here.")
        call = partial(
            _make, model, wanted.texts, name=name, beam_size=wanted.beam_size, max_tokens=limits.max_tokens
        )
        try:
            return Response(await workshop.do(call, request.is_disconnected), media_type="application/json")
        except ClientLeftError:
            return Response(status_code=499)  # nobody will read this

    _serve_pages(app)
    for model in models.values():
        examples_for(model)  # draw them now, not while somebody waits
    return app


async def _require_json(request: Request) -> None:
    """Refuse everything but JSON. A page of another origin cannot send it: its browser asks for permission
    first, and gets none.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise api.Problem("not_json", "Send JSON, with the header Content-Type: application/json.")


def _make(model: Classifier, texts: list[str], **options: Any) -> bytes:
    try:
        return json.dumps(make_view(model, texts, **options), separators=(",", ":")).encode()
    except UnreadableInputError as error:
        raise api.Problem(error.code, str(error), error.where) from error
    except BeamtreeError as error:
        raise api.Problem("invalid", str(error)) from error


def _find(models: Mapping[str, Classifier], name: str) -> Classifier:
    if name not in models:
        raise api.Problem(
            "no_such_model", f"There is no model {name!r} here; the models are {', '.join(models)}."
        )
    return models[name]


def _serve_pages(app: FastAPI) -> None:
    assets = read_assets()
    pages = {f"/static/{name}": asset for name, asset in assets.items() if name != "index.html"}
    pages["/"] = assets["index.html"]
    pages["/api"] = Asset("text/html; charset=utf-8", write_api_page(app.openapi(), api.DOCUMENTED).encode())

    def give(asset: Asset) -> Callable[[], Any]:
        async def answer() -> Response:
            return Response(asset.content, media_type=asset.kind)

        return answer

    for address, asset in pages.items():
        app.add_api_route(address, give(asset), methods=["GET", "HEAD"], include_in_schema=False)


def _handle_errors(app: FastAPI) -> None:
    """Handle FastAPI's own errors; `Guard` handles a Problem and all other exceptions."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return api.Problem("invalid", "The body is not JSON.").answer()
        place = ".".join(str(part) for part in first["loc"][1:])[:200]
        return api.Problem("invalid", f"{place or 'The request'}: {first['msg']}").answer()

    @app.exception_handler(HTTPException)
    async def explain(_: Request, error: HTTPException) -> Response:
        messages = {
            404: ("not_found", "There is nothing at this address."),
            405: ("method_not_allowed", "This address does not support this method."),
        }
        code, message = messages.get(error.status_code, ("bad_request", "The request could not be read."))
        return api.Problem(code, message, status=error.status_code, headers=error.headers).answer()


def _json(content: Any) -> Response:
    return Response(json.dumps(content).encode(), media_type="application/json")


def _answers(model: type, *codes: str) -> dict[int | str, dict[str, Any]]:
    """The schema of an answer and of the errors that are possible instead, for the OpenAPI document."""
    answers: dict[int | str, dict[str, Any]] = {200: {"model": model, "description": "The answer."}}
    for error in api.DOCUMENTED:
        if error.code in (*codes, "bad_request", "too_late", "too_large", "internal"):
            said = answers.setdefault(error.status, {"model": api.ErrorAnswer, "description": ""})
            said["description"] = f"{said['description']} {error.when}".strip()
    return answers

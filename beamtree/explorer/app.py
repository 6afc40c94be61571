"""The explorer as a FastAPI app: three questions to answer, one page to serve."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import beamtree
from beamtree.classifier.classifier import Classifier
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.explorer.limits import BusyError, ClientLeftError, Limits, TooSlowError, Workshop
from beamtree.explorer.models import describe_model, examples_for
from beamtree.explorer.pages import Asset, read_assets, write_api_page
from beamtree.explorer.sentences import UnreadableInputError
from beamtree.explorer.view import make_view

try:
    from fastapi import Depends, FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from beamtree.explorer import api
    from beamtree.explorer.server import Guard
except ImportError as error:
    raise MissingExtraError("the tree explorer", "web") from error

LOCAL_HOSTS = ("localhost",)
_DESCRIPTION = (
    "What a beam-tree network does with a text: prediction, trees, gold tree and the whole search, step by "
    "step."
)


def create_app(
    models: Mapping[str, Classifier], limits: Limits | None = None, hosts: Collection[str] = LOCAL_HOSTS
) -> FastAPI:
    """The app for these models, the first one being the default; `hosts` may be named besides addresses."""
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
        """The models served, the default first, and the limits on a request."""
        public = {name: getattr(limits, name) for name in api.PublicLimits.model_fields}
        return _json({"version": beamtree.__version__, "limits": public, "models": cards})

    @app.get(
        "/api/examples", response_model=None, responses=_answers(api.Examples, "no_such_model", "invalid")
    )
    async def examples(
        model: Annotated[
            str | None, Query(max_length=200, description="Name of a model; the first one if left out.")
        ] = None,
    ) -> Response:
        """Texts to try with a model, short ones first; none where it knows the words of none."""
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
        """Everything there is to see of one text, or of a pair of texts, under one model."""
        name = wanted.model or default
        model = _find(models, name)
        if wanted.beam_size is not None and wanted.beam_size > limits.max_beam_size:
            raise api.Problem("invalid", f"beam_size must be at most {limits.max_beam_size} here.")
        call = partial(
            _make, model, wanted.texts, name=name, beam_size=wanted.beam_size, max_tokens=limits.max_tokens
        )
        try:
            return Response(await workshop.do(call, request.is_disconnected), media_type="application/json")
        except BusyError:
            message = "The explorer is busy with other requests: try again in a moment."
            raise api.Problem("busy", message) from None
        except TooSlowError:
            message = f"Stopped at the time limit, {limits.seconds:g} s: try a shorter text or fewer beams."
            raise api.Problem("too_slow", message) from None
        except ClientLeftError:
            return Response(status_code=499)  # nobody reads it

    _serve_pages(app)
    for model in models.values():
        examples_for(model)  # drawn now, not while somebody waits
    return app


async def _require_json(request: Request) -> None:
    """Browsers do not send this type to another origin without asking first, and are not allowed to here."""
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
    """Those of FastAPI itself; the `Guard` answers a Problem, and whatever else is raised."""

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
    """An answer's schema and the errors that may come in its place, for the OpenAPI document."""
    answers: dict[int | str, dict[str, Any]] = {200: {"model": model, "description": "What was asked for."}}
    for error in api.DOCUMENTED:
        if error.code in (*codes, "bad_request", "too_late", "too_large", "internal"):
            said = answers.setdefault(error.status, {"model": api.ErrorAnswer, "description": ""})
            said["description"] = f"{said['description']} {error.when}".strip()
    return answers

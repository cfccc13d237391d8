"""``/openapi.json``: what the routes take, by the shapes that they are read with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from token_trie.serve.refusal import Format


def description(version: str, bodies: Mapping[str, tuple[type[BaseModel], Format]], gets: Mapping[str, str]) -> Any:
    """Return the OpenAPI description.

    Parameters
    ----------
    bodies
        Shape and format of what is posted, by path.
    gets
        What there is to get, by path.
    """
    shapes = [(shape, "validation") for shape, _ in bodies.values()]
    schemas = models_json_schema(shapes, ref_template="#/components/schemas/{model}")[1]["$defs"]  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for path, (shape, wire) in bodies.items():
        body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}
        refused = {"description": "Refused.", "content": {"application/json": {"schema": wire.schema}}}
        paths[path] = {
            "post": {
                "summary": (shape.__doc__ or "").partition("\n")[0],
                "requestBody": {"required": True, "content": body},
                "responses": {"200": _answered("Answered."), "4XX": refused, "503": refused},
            }
        }
    for path, what in gets.items():
        paths[path] = {"get": {"summary": what, "responses": {"200": _answered(what), "4XX": _answered("Refused.")}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "token-trie", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _answered(what: str) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": {}}}}

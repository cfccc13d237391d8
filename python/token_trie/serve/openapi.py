"""``/openapi.json``: what the routes take, by the shapes that they are read with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from token_trie.serve.refusal import Format


def description(
    version: str, bodies: Mapping[str, tuple[type[BaseModel], Format]], others: Iterable[tuple[str, str, str]]
) -> Any:
    """Return the OpenAPI description.

    Parameters
    ----------
    bodies
        Shape and format of what is posted, by path.
    others
        Method, path and what it does, of what takes no such body.
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
        if "stream" in shape.model_fields:
            paths[path]["post"]["responses"]["200"]["content"]["text/event-stream"] = {"schema": {}}
    for method, path, what in others:
        told: dict[str, Any] = {"summary": what, "responses": {"2XX": _answered(what), "4XX": _answered("Refused.")}}
        if names := re.findall(r"{(\w+)}", path):
            told["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if method == "DELETE":
            told["responses"]["2XX"] = {"description": what}
        if method == "PUT":
            told["requestBody"] = {"required": True, "content": {"application/json": {"schema": {}}}}
        paths.setdefault(path, {})[method.lower()] = told
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

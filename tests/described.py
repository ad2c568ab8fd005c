"""Holds what the service answers against its own description: every call that a test makes is a test of that too."""

import re
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator

from bridge.web.request.parameters import ROOT
from bridge.web.rest.openapi import OPERATIONS, description


def assert_described(method: str, path: str, status: int, answer: Any) -> None:
    """The call is in the description, and so is the answer."""
    path = urlsplit(path).path
    if not path.startswith(ROOT):
        return
    operation = _operation(method, path)
    responses = operation["responses"]
    assert str(status) in responses, f"{method} {path} answers {status}: {answer}"
    schema = responses[str(status)]["content"]["application/json"]["schema"]
    errors = [f"{error.json_path}: {error.message}" for error in _validator(schema["$ref"]).iter_errors(answer)]
    assert not errors, f"{method} {path}: {errors[:3]}"


@cache
def _patterns() -> list[tuple[str, re.Pattern[str], str]]:
    # Whole words before variables: `pending/deliver-now` would be taken for an entry.
    ordered = sorted(OPERATIONS, key=lambda each: each.path.count("{"))
    return [(each.method, re.compile(re.sub(r"{\w+}", "[^/]+", each.path)), each.path) for each in ordered]


def _operation(method: str, path: str) -> dict[str, Any]:
    for known, pattern, template in _patterns():
        if known == method and pattern.fullmatch(path):
            found: dict[str, Any] = description()["paths"][template][method.lower()]
            return found
    raise AssertionError(f"{method} {path} is not described")


@cache
def _validator(name: str) -> Any:
    return Draft202012Validator({**description(), "$ref": name})

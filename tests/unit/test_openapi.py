"""The description is valid OpenAPI, and names what there is: no more, no less."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from openapi_spec_validator import validate

from bridge.app import Bridge
from bridge.config import Settings
from bridge.limits import Limits
from bridge.web.request.parameters import ROOT
from bridge.web.rest.answering import Answer
from bridge.web.rest.openapi import OPERATIONS, PATH, description, openapi
from bridge.web.rest.schemas import ANSWERS, reference, schemas
from bridge.web.server import build_web_app


def test_the_description_is_valid() -> None:
    validate(description())


async def test_it_is_made_beside_the_event_loop() -> None:
    description.cache_clear()
    answered = await openapi(make_mocked_request("GET", PATH))
    assert isinstance(answered, web.Response)
    assert answered.text == json.dumps(description())


def handlers() -> dict[tuple[str, str], Any]:
    """What is served, by method and path."""
    settings = Settings(broker_service_url="pulsar://b:1", broker_web_url="http://b:1")
    return {
        (route.method, route.resource.canonical): route.handler
        for route in build_web_app(Bridge(settings, Limits())).router.routes()
        if route.method != "HEAD" and isinstance(route.resource, web.Resource)
    }


def test_every_call_is_described_and_every_description_is_served() -> None:
    served = handlers()
    described = {(method.upper(), path) for path, methods in description()["paths"].items() for method in methods}
    assert described == {each for each in served if each[1].startswith(ROOT)}


def test_every_handler_answers_what_is_described() -> None:
    served = handlers()
    for each in OPERATIONS:
        answered = get_type_hints(served[each.method, each.path])["return"]
        assert (get_origin(answered), get_args(answered)) == (Answer, (ANSWERS[each.answer],)), each.path


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all that are in it."""
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from parts_of(part)


def test_objects_have_the_fields_that_are_named_and_no_others() -> None:
    objects = [part for part in parts_of(schemas()) if "properties" in part and part.get("type") == "object"]
    assert len(objects) > len(ANSWERS)
    for each in objects:
        assert each["additionalProperties"] is False
    optional = [field for each in objects for field in each["properties"].keys() - set(each["required"])]
    assert sorted(optional) == ["compression", "encrypted", "payload", "payloadSize"], "of an entry"


def test_schemas_say_what_types_say() -> None:
    status = schemas()["RebuildStatus"]["properties"]
    assert status["startedAt"] == {"type": "integer", "description": "epoch milliseconds"}
    assert status["finishedAt"] == {"anyOf": [status["startedAt"], {"type": "null"}]}
    assert status["after"] == {"type": "string", "pattern": r"^-?\d+:-?\d+$"}
    assert status["state"] == {"type": "string", "enum": ["queued", "running", "succeeded", "failed"]}
    assert status["engine"] == reference("Engine")
    assert schemas()["Engine"]["enum"] == ["auto", "spark", "in-process"]
    assert schemas()["Topics"] == {"type": "array", "items": reference("TopicRow")}
    listed = schemas()["MessageIds"]["properties"]["messageIds"]
    assert (listed["minItems"], listed["maxItems"]) == (1, Limits().operators.steering_max)


def test_operations_have_names_of_their_own() -> None:
    names = [each["operationId"] for methods in description()["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))

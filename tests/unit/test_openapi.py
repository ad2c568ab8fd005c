"""The description is valid OpenAPI, and names what there is: no more, no less."""

from aiohttp import web
from openapi_spec_validator import validate

from bridge.app import Bridge
from bridge.config import Settings
from bridge.web.request.parameters import ROOT
from bridge.web.rest.openapi import description
from bridge.web.server import build_web_app


def test_the_description_is_valid() -> None:
    validate(description())


def test_every_call_is_described_and_every_description_is_served() -> None:
    settings = Settings(broker_service_url="pulsar://b:1", broker_web_url="http://b:1")
    served = {
        (route.method, route.resource.canonical)
        for route in build_web_app(Bridge(settings)).router.routes()
        if route.method != "HEAD" and isinstance(route.resource, web.Resource)
    }
    described = {(method.upper(), path) for path, methods in description()["paths"].items() for method in methods}
    assert described == {each for each in served if each[1].startswith(ROOT)}


def test_operations_have_names_of_their_own() -> None:
    names = [each["operationId"] for methods in description()["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))

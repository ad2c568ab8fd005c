"""JSON schemas of what REST answers, made of its types: part of the OpenAPI description, held against every answer in
the tests.
"""

from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from bridge import answers

Schema = dict[str, Any]

ANSWERS: dict[str, Any] = {
    "Error": answers.Error,
    "Overview": answers.Overview,
    "Topics": list[answers.TopicRow],
    "Members": answers.Members,
    "Owned": answers.Owned,
    "Drain": answers.Drain,
    "Stats": answers.Stats,
    "Snapshot": answers.Snapshot,
    "Ready": answers.Ready,
    "Partitions": answers.Partitions,
    "Chart": answers.Chart,
    "Histogram": answers.Histogram,
    "Books": answers.Books,
    "Pending": answers.Pending,
    "OneOutcome": answers.OneOutcome,
    "Outcomes": answers.Outcomes,
    "MessageIds": answers.MessageIds,
    "RebuildStatus": answers.RebuildStatus,
    "Rebuild": answers.Rebuild,
    "AuditStatus": answers.AuditStatus,
    "Actions": list[answers.Action],
}
"""The name of each answer in the description, and its type; `MessageIds` is a body."""
_REFERENCE = "#/components/schemas/{model}"


def reference(name: str) -> Schema:
    """One of the schemas."""
    return {"$ref": _REFERENCE.format(model=name)}


@cache
def schemas() -> dict[str, Schema]:
    """Return the schema of each answer and of what it is made of, by name."""
    found, shared = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(answer)) for name, answer in ANSWERS.items()],
        ref_template=_REFERENCE,
        schema_generator=_Closed,
    )
    parts: dict[str, Schema] = shared["$defs"]
    own = {name: schema for (name, _), schema in found.items() if schema != reference(name)}
    for schema in parts.values():
        schema.pop("title", None)
    return own | parts


class _Closed(GenerateJsonSchema):
    """An object has the fields that its type names, and no others. Without titles: they would say the names again."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
        return super().typed_dict_schema(schema) | {"additionalProperties": False}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

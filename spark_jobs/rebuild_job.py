"""What the rebuild job does: read what is missing, write what is missing, and say at the end what there is."""

from __future__ import annotations

from typing import Any

from spark_jobs import limits
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.sources import state_to_read
from spark_jobs.ledgers.stats import TopicState
from spark_jobs.plan import (
    FINGERPRINTS_NAME,
    Needed,
    RangeResult,
    RebuildSpec,
    boundaries_of,
    fingerprints_of,
    plan_name,
    sources_of,
    upto_of,
)
from spark_jobs.stages.build import BucketResult, bucket_marker, build
from spark_jobs.stages.reading import Reading, telling
from spark_jobs.storage import Storage
from tracker import Position
from tracker.bulk.files import MANIFEST_NAME, Manifest, new_manifest
from tracker.fingerprint import Fingerprint


class Rebuild:
    """One job. Raises LedgerReadError and what Spark raises."""

    def __init__(self, spec: RebuildSpec, token: str | None) -> None:
        """`token`: presented to the broker unless the spec names a file."""
        self.spec = spec
        self.access = spec.access(token)
        self.storage = Storage(spec.output)
        self.reading = Reading(spec, self.access, self.storage)
        self.sources: dict[str, object] = {}
        """What is told of where entries were read, once they were."""

    def run(self, context: Any) -> Manifest:
        """Do what is missing and return the manifest. `context`: Spark's."""
        self.reading.begin()
        done = self.storage.read(MANIFEST_NAME)
        if done is not None:
            return Manifest.model_validate_json(done)
        state = state_to_read(self.access, self.spec.topic)
        results = self.reading.run(context, state, self._needed(state))
        written = self._write(context, results)
        manifest = self._manifest(results, written)
        self.storage.write(FINGERPRINTS_NAME, fingerprints_of(results))
        self.storage.write(MANIFEST_NAME, manifest.model_dump_json().encode())
        self.sources = sources_of(results)
        return manifest

    def _needed(self, state: TopicState) -> Needed:
        missing = [name for name in self.spec.subscriptions if name not in state.cursors]
        if missing:
            raise LedgerReadError(f"{self.spec.topic} has no subscription {missing[0]!r}")
        return Needed(tuple(state.cursors[name] for name in self.spec.subscriptions))

    def _write(self, context: Any, results: list[RangeResult]) -> list[BucketResult]:
        spec = self.spec
        # At least a bucket for each who can write one at the same time.
        share = sum(one.bytes for one in results) // context.defaultParallelism
        bucket_bytes = min(spec.bucket_bytes, max(share, limits.BUCKET_BYTES_MIN))
        boundaries = boundaries_of([point for one in results for point in one.spread], bucket_bytes)
        plan = plan_name(spec, boundaries, results)
        total = Fingerprint.total(one.fingerprint for one in results)

        def written() -> list[BucketResult]:
            texts = [self.storage.read(bucket_marker(plan, bucket)) for bucket in range(len(boundaries) + 1)]
            return [BucketResult.model_validate_json(text) for text in texts if text is not None]

        with telling("writing", total.entries, lambda: [one.entries for one in written()]):
            missing = set(range(len(boundaries) + 1)) - {one.bucket for one in written()}
            build(context, spec, plan, boundaries, results, missing)
        done = written()
        found = Fingerprint.total(one.fingerprint for one in done)
        if found != total:
            raise LedgerReadError(f"{found.entries} entries were written of {total.entries} that were read: a defect")
        return done

    def _manifest(self, results: list[RangeResult], written: list[BucketResult]) -> Manifest:
        spec = self.spec
        return new_manifest(
            spec.topic,
            spec.partition_width_ms,
            Position(*spec.after),
            upto_of(spec),
            [one.positions for one in results if one.positions is not None],
            [group for one in written for group in one.groups],
        )

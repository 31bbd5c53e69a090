"""What Prometheus reads: counts of the service, and those of the tier behind it as they stand when asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from toktier.tier import Tier

log = logging.getLogger("toktier.serve")
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class _Noted(Protocol):
    status: int
    error: str
    received: int
    sent: int


class Metrics:
    """The metrics of one application, in a registry of their own."""

    def __init__(self, tier: Tier) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Any, name: str, text: str, labels: Iterable[str] = (), **options: Any) -> Any:
            return kind(f"toktier_{name}", text, list(labels), registry=self.registry, **options)

        self._requests = made(Counter, "requests", "Requests by endpoint and status.", ["endpoint", "status"])
        self._errors = made(Counter, "errors", "Requests that failed, by type of error.", ["type"])
        self._seconds = made(
            Histogram, "request_seconds", "Seconds from a request's head to its answer's end.", ["endpoint"],
            buckets=_SECONDS,
        )  # fmt: skip
        self._received = made(Counter, "received_bytes", "Bytes of request bodies.")
        self._sent = made(Counter, "sent_bytes", "Bytes of response bodies.")
        self.in_flight = made(Gauge, "requests_in_flight", "Requests being worked on.")
        self.registry.register(_OfTier(tier))

    def observe(self, endpoint: str, noted: _Noted, seconds: float) -> None:
        """Counts a request that is over."""
        self._requests.labels(endpoint, str(noted.status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        self._received.inc(noted.received)
        self._sent.inc(noted.sent)
        if noted.error != "-":
            self._errors.labels(noted.error).inc()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type."""
        encoder, kind = choose_encoder(accept)
        return encoder(self.registry), kind


class _OfTier(Collector):
    """`Tier.stats()` as metrics."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when the tier is asked."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The tier's counts now."""
        stats = self._tier.stats()
        paths, batches, sessions = stats["paths"], stats["batches"], dict(stats["sessions"])
        for name, key, text in (
            ("answers", "requests", "Answers of the tier."),
            ("served_bytes", "served_bytes", "UTF-8 bytes that answered ids stand for."),
            ("scanned_bytes", "scanned_bytes", "UTF-8 bytes that were tokenized."),
        ):
            yield _counter(name, text, "path", {path: counts[key] for path, counts in paths.items()})
        yield _counter("launches", "Launches of the device program.", None, batches["launches"])
        yield _counter("launched_requests", "Requests in these launches.", None, batches["requests"])
        yield _counter("spills", "Texts for the device that went to the host.", "reason", stats["spills"])
        yield _counter("tier_errors", "Requests that the tier failed.", "type", stats["errors"])
        ended = {name: stats[name] for name in ("cancelled", "late", "rejected")}
        yield _counter("unserved", "Requests that ended without an answer.", "reason", ended)
        yield _gauge("queue", "Requests in the tier, and those of them that wait.", "state", stats["queue"])
        yield _gauge("sessions", "Sessions in memory.", None, sessions.pop("sessions"))
        yield _gauge("session_bytes", "Memory of these sessions.", None, sessions.pop("nbytes"))
        yield _counter("session_events", "Sessions found, made, loaded, dropped.", "event", sessions)
        yield _gauge(
            "device_paused_seconds", "Until a device that failed is tried again.", None, stats["device_paused"]
        )
        quarantined = {name: float(name in stats["quarantined"]) for name in self._tier.tokenizers}
        yield _gauge("quarantined", "1: the reference alone serves this model.", "model", quarantined)
        if (verifier := stats["verifier"]) is not None:
            events = {k: v for k, v in verifier.items() if type(v) is int and not k.startswith("pending")}
            yield _counter("verifier", "Answers offered to the verifier, and what became of them.", "event", events)
            yield _gauge("verifier_pending", "Answers that wait to be checked.", None, verifier["pending"])
            yield _gauge("verifier_rate", "Share of answers that is checked.", None, verifier["rate"])
            yield _gauge("verifier_delay_seconds", "From delivery to verdict.", "of", verifier["delay"])


def _counter(name: str, text: str, label: str | None, values: Any) -> Metric:
    return _filled(CounterMetricFamily(f"toktier_{name}", text, labels=[label] if label else []), label, values)


def _gauge(name: str, text: str, label: str | None, values: Any) -> Metric:
    return _filled(GaugeMetricFamily(f"toktier_{name}", text, labels=[label] if label else []), label, values)


def _filled(family: Any, label: str | None, values: Any) -> Metric:
    """The samples of a family: one, or one a label."""
    for of, value in values.items() if label else [(None, values)]:
        family.add_metric([] if of is None else [of], value)
    return family  # type: ignore[no-any-return]

"""What Prometheus reads: counts of the service, and those of the tier behind it as they stand when asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
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
        for name, text in (
            ("requests", "Answers of the tier by path."),
            ("served_bytes", "UTF-8 bytes that answered ids stand for, by path."),
            ("scanned_bytes", "UTF-8 bytes that were tokenized, by path."),
        ):
            shown = "answers" if name == "requests" else name
            family = CounterMetricFamily(f"toktier_{shown}", text, labels=["path"])
            for path, counts in stats["paths"].items():
                family.add_metric([path], counts[name])
            yield family

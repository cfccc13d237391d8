"""What Prometheus is told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "token_trie_requests", "Requests answered.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "token_trie_request_seconds", "Time from a request to its answer.", ["path"], registry=self._registry
        )
        self._under_way = Gauge("token_trie_requests_under_way", "Requests under way.", registry=self._registry)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self, n_under_way: int) -> tuple[bytes, str]:
        """Return all counts, and their media type."""
        self._under_way.set(n_under_way)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

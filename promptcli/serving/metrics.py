"""Figures of a server in Prometheus' text format."""

from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from promptcli.serving.batcher import Batcher

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

#: Upper bounds of the histogram of answer times, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics(Collector):
    """What became of the requests, and what the encoding thread has done."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher, self._registry = batcher, prometheus_client.CollectorRegistry()
        self.answered = 0  #: Requests that were answered, whatever the answer.
        self.requests = 0  #: Requests in progress.
        self._answers = prometheus_client.Counter(
            "promptcli_requests", "Requests answered, by path and status.", ["path", "status"], registry=self._registry
        )
        self._seconds = prometheus_client.Histogram(
            "promptcli_request_seconds",
            "Seconds until a request was answered.",
            ["path"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._registry.register(self)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count one request: path of the route, status of the answer (499 where the client left), time it took."""
        self.answered += 1
        self._answers.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield what is counted elsewhere."""
        done = self._batcher
        yield CounterMetricFamily("promptcli_texts", "Texts encoded.", done.texts)
        yield CounterMetricFamily("promptcli_tokens", "Tokens encoded, those of templates included.", done.tokens)
        yield CounterMetricFamily("promptcli_rounds", "Rounds of batches that requests shared.", done.rounds)
        yield CounterMetricFamily("promptcli_encoding_seconds", "Seconds spent encoding.", done.seconds)
        yield GaugeMetricFamily("promptcli_waiting_texts", "Texts waiting to be encoded.", done.waiting)
        yield GaugeMetricFamily("promptcli_requests_in_work", "Requests in progress, this one included.", self.requests)

    def text(self) -> bytes:
        """Return all of it in Prometheus' exposition format 0.0.4."""
        return prometheus_client.generate_latest(self._registry)

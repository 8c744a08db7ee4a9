"""Metrics of a server for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Upper bounds of the histogram of seconds: from one short text to thousands of texts.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one server, in a registry per server, so that two in one process do not
    mix.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "promptcli_requests",
            "Requests that have ended; the status of one without an answer is 499.",
            ("path", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "promptcli_request_seconds",
            "Seconds from the head of a request to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.sentences = Counter(
            "promptcli_sentences", "Sentences that were encoded.", registry=self.registry
        )
        self.truncated = Counter(
            "promptcli_truncated_sentences",
            "Encoded sentences that were longer than the model's input.",
            registry=self.registry,
        )

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a number that is read whenever the metrics are."""
        Gauge(f"promptcli_{name}", about, registry=self.registry).set_function(value)

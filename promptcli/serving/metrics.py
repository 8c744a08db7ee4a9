"""Counts of a server as text in Prometheus' exposition format 0.0.4."""

from collections import Counter
from collections.abc import Iterable, Mapping

#: Upper bounds of the histogram of answer times, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What became of the requests."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, tuple[list[int], float]] = {}

    @property
    def answered(self) -> int:
        """Requests that were answered, whatever the answer."""
        return self._requests.total()

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count one request.

        Args:
            path: Of the route; few of them, since each makes a row.
            status: Of the answer; 499 where the client left.
            seconds: From the first byte to the last of the answer.
        """
        self._requests[path, status] += 1
        counts, total = self._seconds.get(path, ([0] * (len(BUCKETS) + 1), 0.0))
        counts[next((at for at, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1
        self._seconds[path] = counts, total + seconds

    def text(self, counters: Mapping[str, tuple[str, float]], gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return all of it as text, with more counters and gauges: name -> help and value."""
        lines = _family("promptcli_requests_total", "counter", "Requests answered, by path and status.")
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'promptcli_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += _family("promptcli_request_seconds", "histogram", "Seconds until a request was answered.")
        for path, (counts, total) in sorted(self._seconds.items()):
            lines += _histogram("promptcli_request_seconds", path, counts, total)
        for kind, values in (("counter", counters), ("gauge", gauges)):
            for name, (about, value) in values.items():
                lines += [*_family(f"promptcli_{name}", kind, about), f"promptcli_{name} {value}"]
        return "\n".join([*lines, ""])


def _family(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _histogram(name: str, path: str, counts: Iterable[int], total: float) -> list[str]:
    lines, so_far = [], 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        so_far += count
        lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {so_far}')
    return [*lines, f'{name}_sum{{path="{path}"}} {total:.6f}', f'{name}_count{{path="{path}"}} {so_far}']

"""The jobs kept by a Ray process, so that its next task finds the encoder open."""

from pathlib import Path

from promptcli.embedding.parts import PartJob

#: A job by its folder and its manifest.
_JOBS: dict[tuple[Path, str], PartJob] = {}


def make_part(job: PartJob, shard: int) -> int:
    """Make a part in a process that gets the job with every part; return its rows."""
    return _JOBS.setdefault((job.folder, job.manifest.digest), job).make(shard)

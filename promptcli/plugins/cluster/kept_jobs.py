"""The jobs that a process of Ray keeps, so that the encoder stays open for its next task."""

from pathlib import Path

from promptcli.embedding.parts import PartJob

#: Folder and digest of the manifest -> job.
_JOBS: dict[tuple[Path, str], PartJob] = {}


def make_part(job: PartJob, shard: int) -> int:
    """Make a part with the kept job; return the number of its rows."""
    return _JOBS.setdefault((job.folder, job.manifest.digest), job).make(shard)

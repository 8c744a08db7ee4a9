"""Parts made by the tasks of a Ray cluster: a task is a shard, and Ray repeats one whose process
or machine has died.
"""

import contextlib
import dataclasses
import logging
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from promptcli.children import environment, python_command
from promptcli.embedding.parts import PartJob
from promptcli.errors import PromptcliError, UsageError, one_line
from promptcli.notes import Advance

#: Seconds in which a cluster must answer. Ray itself asks an address without one for ever.
_PATIENCE = 10
#: Ray would count its users over the network, and run the workers of a cluster of this machine
#: below all other programs.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def make_by_ray(
    job: PartJob,
    shards: Sequence[int],
    advance: Advance,
    *,
    address: str | None,
    workers: int | None,
) -> None:
    """Make parts by the tasks of a cluster, at most ``workers`` at once.

    A task has a GPU if the cluster has any and the job is not for the CPU, else a CPU. A process of
    Ray keeps the encoder for its next task.
    """
    with connected(address):
        gpus = 0
        if job.device != "cpu" and ray.cluster_resources().get("GPU"):
            gpus = 1
        job = dataclasses.replace(job.reachable(), device="cuda" if gpus else "cpu")
        # max_calls: else the process of a task with a GPU ends after it, and the next opens the
        # encoder again
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=0)(_make)
        shared = ray.put(job)
        waiting = list(shards)
        running = list[Any]()
        try:
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    running.append(task.remote(shared, waiting.pop(0)))
                done, running = ray.wait(running)
                advance(ray.get(done[0]))
        except ray.exceptions.RayError as error:
            raise _as_ours(error) from None
        finally:
            for unfinished in running:
                ray.cancel(unfinished, force=True)


#: The job of this process by its folder and its manifest, with the encoder.
_JOBS: dict[tuple[Path, str], PartJob] = {}


def _make(job: PartJob, shard: int) -> int:
    return _JOBS.setdefault((job.folder, job.manifest.digest), job).make(shard)


def _as_ours(error: Exception) -> BaseException:
    """Return what a task raised, or that Ray could not run it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    problem = one_line(error, 160)
    return PromptcliError(
        f"Ray gave up ({type(error).__name__}: {problem}); complete parts stay; run the same"
        " command again"
    )


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to a cluster, or to a new one of this machine alone, for the block.

    A program that is connected stays so.
    """
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:  # the cluster is within this machine, whatever networks it is in
        address = "local"
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    # without a folder of their own, workers would import from the one in which this process runs
    with tempfile.TemporaryDirectory(prefix="promptcli-ray-") as empty, environment(**_SETTINGS):
        try:
            ray.init(address, runtime_env={"working_dir": empty}, **options)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise PromptcliError(
                f"Ray ({address}) does not start ({one_line(error, 160)}); try `engine` local"
            ) from None
        try:
            yield
        finally:
            ray.shutdown()


def check_address(address: str | None) -> None:
    """Refuse an address where no cluster answers: Ray would ask it for minutes, then end this
    process.

    Ray's own check runs in a process that can be ended.
    """
    if address is None:
        return
    if ray.is_initialized():
        raise UsageError("this program is connected to Ray; leave out `address`")
    hint = "give the HOST:PORT that `ray start` printed, or auto on a node of the cluster"
    if "://" in address:
        raise UsageError(f"`address` {address!r} is of another kind; {hint}")
    check = python_command("ray.scripts.scripts", "health-check")
    try:
        with environment(RAY_ADDRESS=address):
            asked = subprocess.run(check, capture_output=True, timeout=_PATIENCE, text=True)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"`address` {address!r}: no Ray answered in {_PATIENCE} s; {hint}"
        ) from None
    if "AuthenticationError" in asked.stderr:
        if address == "auto":  # `ray.init` finds the token of its own machine
            return
        raise UsageError(
            f"`address` {address!r}: this Ray asks for a token; set RAY_AUTH_MODE=token, with the"
            " cluster's token in ~/.ray/auth_token"
        )
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or ["it ended without a word"]
        raise UsageError(f"`address` {address!r}: no Ray answers ({lines[-1][:160]}); {hint}")

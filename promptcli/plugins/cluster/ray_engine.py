"""Vector parts computed by tasks of a Ray cluster, and columns of its data sets by actors.

A task makes one shard; Ray repeats a task whose process or machine has died.
"""

import contextlib
import importlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptcli import children, errors
from promptcli.embedding.datasets import VectorColumn
from promptcli.embedding.parts import PartJob
from promptcli.errors import PromptcliError, UsageError
from promptcli.plugins.cluster import ray_worker
from promptcli.storage import files

#: Seconds in which a cluster must answer. Ray itself would retry a dead address for ever.
_PATIENCE = 10
#: Ray would count its users over the network, and run the workers of a cluster of this machine
#: below all other programs; its processes would import from the current folder.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONSAFEPATH": "1",
}
#: What Ray reads when it is imported, for a cluster of this machine: it listens on the loopback
#: interface alone on every system (the variable is named after those that do so by default).
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
#: Beginnings of the names of variables that the libraries of the hub, and we, read.
_PASSED_ON = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_", "PROMPTCLI_")
_OF_SERVE = "PROMPTCLI_API_KEY"  # a secret that no worker needs
#: Bytes of the path of a socket, and of what Ray appends to its folder in the longest one.
_MOST_BYTES = 103 if sys.platform == "darwin" else 107
_APPENDED = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_PRIVATE = "promptcli-ray-"
_LONGEST_PLACE = _MOST_BYTES - _APPENDED - len(f"/{_PRIVATE}12345678/ray")


def load_ray(address: str | None) -> Any:
    """Import Ray.

    If Ray is not imported yet, a local cluster requires a token that only this process and its
    children know. These settings stay: Ray remembers both.
    """
    if address is None and "ray" not in sys.modules:
        os.environ.update(_ALONE, RAY_AUTH_TOKEN=secrets.token_hex(32))
    return importlib.import_module("ray")


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker on another machine; folders are absolute."""
    passed = dict[str, str]()
    for name, value in os.environ.items():
        if not name.startswith(_PASSED_ON) or name == _OF_SERVE:
            continue
        if name.endswith(("_HOME", "_CACHE")) and value:
            value = os.path.abspath(os.path.expanduser(value))
        passed[name] = value
    return passed


def worker_module() -> Any:
    """Return ``ray_worker`` as a module that Ray sends to its workers as code."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(ray_worker)
    return ray_worker


class RayEngine:
    """An engine whose parts are tasks of a Ray cluster."""

    def check(self, address: str | None) -> None:
        """Refuse an address at which no cluster answers: Ray would retry for minutes, then end this
        process.

        Ray's own check runs in a child process that can be ended.
        """
        errors.require("ray", extra="ray")
        if address is None:
            return
        if load_ray(address).is_initialized():
            raise UsageError("this program is connected to Ray; leave it out", parameter="address")
        hint = "give the HOST:PORT that `ray start` printed, or auto on a node of the cluster"

        def refusal(why: str) -> UsageError:
            return UsageError(f"{address!r}: {why}; {hint}", parameter="address")

        if "://" in address:
            raise refusal("not a valid address")
        check = children.python_command("ray.scripts.scripts", "health-check")
        try:
            with children.environment(RAY_ADDRESS=address):
                asked = subprocess.run(check, capture_output=True, timeout=_PATIENCE, text=True)
        except subprocess.TimeoutExpired:
            raise refusal(f"no Ray answered in {_PATIENCE} s") from None
        if "AuthenticationError" in asked.stderr:
            if address == "auto":  # `ray.init` finds the token of its own machine
                return
            hint = "set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token"
            raise refusal("this Ray asks for a token")
        if asked.returncode:
            lines = asked.stderr.strip().splitlines() or ["it ended without a message"]
            raise refusal(f"no Ray answers ({lines[-1][:160]})")

    def make(
        self,
        job: PartJob,
        shards: Sequence[int],
        advance: Callable[[float], object],
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts in tasks of a cluster, at most ``workers`` at once.

        A task gets a GPU if the cluster has one and the job is not for the CPU, else a CPU. A Ray
        process keeps the encoder for its next task.
        """
        try:
            with connected(address):
                _make_all(job, shards, advance, workers)
        except BaseException:
            files.remove_leftovers(job.folder)  # left by processes that were ended
            raise


def _make_all(
    job: PartJob, shards: Sequence[int], advance: Callable[[float], object], workers: int | None
) -> None:
    import ray

    gpus = 0
    if job.model.device != "cpu" and ray.cluster_resources().get("GPU"):
        gpus = 1
    job = job.for_workers("cuda" if gpus else "cpu")
    # max_calls: else the process of a task with a GPU ends after it, and the next opens the
    # encoder again
    options = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=0)
    task: Any = options(worker_module().make)
    shared = [ray.put(job)]
    arguments = (worker_environment(), os.getcwd())
    waiting = list(shards)
    running = list[Any]()
    try:
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                running.append(task.remote(*arguments, shared, waiting.pop(0)))
            done, running = ray.wait(running)
            advance(ray.get(done[0]))
    except ray.exceptions.RayError as error:
        raise _error_of_task(error) from None
    finally:
        for unfinished in running:
            ray.cancel(unfinished, force=True)


class RayDataSets:
    """A ``ray.data.Dataset``: it stays lazy, and actors of the cluster hold the encoders."""

    def columns(self, dataset: Any) -> list[str]:
        """Return the names of the columns."""
        return list(dataset.columns() or ())

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        """Return the data set with the column; there is one actor per GPU, or per CPU except the
        last.
        """
        import ray
        import ray.data

        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if column.device == "cpu":
            gpus = 0
        cpus = int(resources.get("CPU", 1))
        # a CPU stays free for the tasks that read and write, else Ray waits for ever
        actors = gpus or max(1, cpus - 1)
        adding = column.for_workers("cuda" if gpus else "cpu")
        return dataset.map_batches(
            worker_module().Adder,
            # packed, else Ray would open it before the actor begins
            fn_constructor_args=(worker_environment(), os.getcwd(), ray.cloudpickle.dumps(adding)),
            batch_size=column.window,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
            num_cpus=1 if cpus > 1 else 0,
            num_gpus=1 if gpus else 0,
        )


def _error_of_task(error: Exception) -> BaseException:
    """Return the exception of a task, or an error that Ray could not run it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    problem = errors.one_line(error, 160)
    return PromptcliError(
        f"Ray gave up ({type(error).__name__}: {problem}); complete parts are kept; run the same"
        " command again"
    )


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to a cluster, or to a new local one, for the block.

    An existing connection is kept.
    """
    ray = load_ray(address)
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with contextlib.ExitStack() as ended:
        if address is None:  # the cluster is within this machine, whatever networks it is in
            address = "local"
            options |= {
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": str(ended.enter_context(_private_folder())),
            }
        ended.enter_context(children.environment(**_SETTINGS))
        ended.callback(ray.shutdown)
        try:
            with _own_answer_to_sigterm():
                ray.init(address, job_config=_job_config(), **options)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = errors.one_line(error, 160)
            raise PromptcliError(
                f"Ray ({address}) does not start ({reason}); try the engine local"
            ) from None
        yield


def _job_config() -> Any:
    """Return a job configuration that keeps the current folder off the workers' module path.

    Ray leaves it out of a job with a working folder. Our jobs have none: it would be in a place
    where Ray lets every user write.
    """
    from ray.job_config import JobConfig

    class WithoutCurrentFolder(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return WithoutCurrentFolder()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield a folder for a session inside a private one, because Ray opens its own to everybody."""
    with tempfile.TemporaryDirectory(
        prefix=_PRIVATE, dir=_place(), ignore_cleanup_errors=True
    ) as private:
        yield Path(private, "ray")


def _place() -> str:
    """Return the parent of a session's folder, short enough for the paths of sockets."""
    wanted = os.environ.get("RAY_TMPDIR")
    place = os.path.abspath(wanted or tempfile.gettempdir())
    why = None
    if len(os.fsencode(place)) > _LONGEST_PLACE:
        why = f"has more than {_LONGEST_PLACE} bytes, too many for the path of a socket"
    elif ray_worker.others_may_replace(place):
        why = "can be moved away by other users"
    if why is None:
        return place
    if wanted:
        raise UsageError(f"RAY_TMPDIR {place!r:.80} {why}; give another folder, or unset it")
    return "/tmp"


@contextlib.contextmanager
def _own_answer_to_sigterm() -> Iterator[None]:
    """Keep this program's SIGTERM handler: Ray would replace it with one that aborts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    received = False
    try:
        yield
    except SystemExit as ended:  # Ray ends so if the signal comes while it starts
        received = ended.code == signal.SIGTERM
        if not received:
            raise
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    if received:
        signal.raise_signal(signal.SIGTERM)

"""Parts of vectors that tasks of a Ray cluster make, and vectors that its actors add to data sets.

A task makes one part. Ray repeats a task whose process or machine has died.
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
from typing import Any

from promptcli import children, errors
from promptcli.embedding.datasets import VectorColumn
from promptcli.embedding.parts import PartJob
from promptcli.errors import PromptcliError, UsageError
from promptcli.plugins.cluster import ray_worker
from promptcli.storage import files

_ANSWER_TIMEOUT_S = 10  # Ray itself would ask a dead address for ever
#: Ray would report its use over the network, and run the workers of a cluster of this machine with
#: a lower priority than all other programs; its processes would import from the current folder.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONSAFEPATH": "1",
}
#: Ray reads these when it is imported. A cluster of this machine then listens on the loopback
#: interface alone, on every system.
_LOCAL_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
#: Prefixes of the variables that the libraries of the hub, and promptcli, read.
_PASSED_PREFIXES = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_", "PROMPTCLI_")
_SERVER_KEY = "PROMPTCLI_API_KEY"  # a secret that no worker needs
_MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
#: Bytes that Ray appends to its folder in the longest path of a socket.
_APPENDED_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_FOLDER_PREFIX = "promptcli-ray-"
_MAX_PARENT_BYTES = _MAX_SOCKET_PATH_BYTES - _APPENDED_BYTES - len(f"/{_FOLDER_PREFIX}12345678/ray")


def load_ray(address: str | None) -> Any:
    """Import Ray. If Ray was not imported before, a local cluster asks for a token that only this
    process and its children know.
    """
    if address is None and "ray" not in sys.modules:
        os.environ.update(_LOCAL_ENVIRONMENT, RAY_AUTH_TOKEN=secrets.token_hex(32))
    return importlib.import_module("ray")


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker, which may be on another machine: its folders are
    absolute.
    """
    environment = dict[str, str]()
    for name, value in os.environ.items():
        if not name.startswith(_PASSED_PREFIXES) or name == _SERVER_KEY:
            continue
        if name.endswith(("_HOME", "_CACHE")) and value:
            value = os.path.abspath(os.path.expanduser(value))
        environment[name] = value
    return environment


def worker_module() -> Any:
    """Return ``ray_worker``, which Ray sends to its workers as code."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(ray_worker)
    return ray_worker


class RayEngine:
    """An engine whose parts are tasks of a Ray cluster."""

    def check(self, address: str | None) -> None:
        """Raise UsageError if no cluster answers at an address: Ray would retry for minutes, and
        then end this process. Ray's own check therefore runs in a child process.
        """
        errors.require_libraries("ray", extra="ray")
        if address is None:
            return
        if load_ray(address).is_initialized():
            raise UsageError("this program is connected to Ray; leave it out", parameter="address")
        hint = "give the HOST:PORT that `ray start` printed, or auto on a node of the cluster"

        def refusal(reason: str) -> UsageError:
            return UsageError(f"{address!r}: {reason}; {hint}", parameter="address")

        if "://" in address:
            raise refusal("not a valid address")
        check = children.python_command("ray.scripts.scripts", "health-check")
        try:
            with children.environment(RAY_ADDRESS=address):
                checked = subprocess.run(
                    check, capture_output=True, timeout=_ANSWER_TIMEOUT_S, text=True
                )
        except subprocess.TimeoutExpired:
            raise refusal(f"no Ray answered in {_ANSWER_TIMEOUT_S} s") from None
        if "AuthenticationError" in checked.stderr:
            if address == "auto":  # `ray.init` finds the token of this machine
                return
            hint = "set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token"
            raise refusal("this Ray asks for a token")
        if checked.returncode:
            lines = checked.stderr.strip().splitlines() or ["it ended without a message"]
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
        """Make parts in tasks of a cluster, at most ``workers`` of them at the same time.

        A task gets a GPU if the cluster has one and the job is not for the CPU, else a CPU. The
        processes of Ray keep the encoder for their next task.
        """
        try:
            with connected(address):
                _make_all(job, shards, advance, workers)
        except BaseException:
            files.delete_leftovers(job.folder)  # of processes that were ended
            raise


def _make_all(
    job: PartJob, shards: Sequence[int], advance: Callable[[float], object], workers: int | None
) -> None:
    import ray

    gpus = 0
    if job.model.device != "cpu" and ray.cluster_resources().get("GPU"):
        gpus = 1
    job = job.for_workers("cuda" if gpus else "cpu")
    # max_calls=0: otherwise Ray ends the process after a task with a GPU, and the encoder is opened
    # again for the next task
    options = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=0)
    task: Any = options(worker_module().make)
    shared = [ray.put(job)]
    arguments = (worker_environment(), os.getcwd())
    pending_shards = list(shards)
    running_tasks = list[Any]()
    try:
        while pending_shards or running_tasks:
            while pending_shards and (workers is None or len(running_tasks) < workers):
                running_tasks.append(task.remote(*arguments, shared, pending_shards.pop(0)))
            [finished], running_tasks = ray.wait(running_tasks)
            advance(ray.get(finished))
    except ray.exceptions.RayError as error:
        raise _error_of_task(error) from None
    finally:
        for running in running_tasks:
            ray.cancel(running, force=True)


class RayDataSets:
    """Adds columns to a ``ray.data.Dataset``, which stays lazy; actors of the cluster have the
    encoders.
    """

    def columns(self, dataset: Any) -> list[str]:
        """Return the names of the columns."""
        return list(dataset.columns() or ())

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        """Return the data set with the column. There is an actor for each GPU; without a GPU, for
        each CPU except one.
        """
        import ray
        import ray.data

        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if column.device == "cpu":
            gpus = 0
        cpus = int(resources.get("CPU", 1))
        # one CPU is for the tasks that read and write; without it, Ray would wait for ever
        actors = gpus or max(1, cpus - 1)
        worker_column = column.for_workers("cuda" if gpus else "cpu")
        return dataset.map_batches(
            worker_module().Adder,
            # pickled: otherwise Ray would unpickle the column before the actor is prepared
            fn_constructor_args=(
                worker_environment(),
                os.getcwd(),
                ray.cloudpickle.dumps(worker_column),
            ),
            batch_size=column.window,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
            num_cpus=1 if cpus > 1 else 0,
            num_gpus=1 if gpus else 0,
        )


def _error_of_task(error: Exception) -> BaseException:
    """Return the exception that a task raised, or an error that says that Ray could not run it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    problem = errors.join_lines(error, 160)
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
    from ray.job_config import JobConfig

    # Ray puts the current folder on the module path of the workers, except of a job with a working
    # folder. Our jobs have none: Ray would keep it where every user can write.
    class SafePathJobConfig(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with contextlib.ExitStack() as stack:
        if address is None:  # the cluster is within this machine, whatever networks it is in
            address = "local"
            # inside a private folder, because Ray lets everybody read its own folder
            private = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix=_FOLDER_PREFIX, dir=_session_parent(), ignore_cleanup_errors=True
                )
            )
            options |= {
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": os.path.join(private, "ray"),
            }
        stack.enter_context(children.environment(**_ENVIRONMENT))
        stack.callback(ray.shutdown)
        try:
            with _keep_sigterm_handler():
                ray.init(address, job_config=SafePathJobConfig(), **options)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = errors.join_lines(error, 160)
            raise PromptcliError(
                f"Ray ({address}) does not start ({reason}); try the engine local"
            ) from None
        yield


def _session_parent() -> str:
    """Return the parent of a session's folder, short enough for the paths of sockets."""
    named = os.environ.get("RAY_TMPDIR")
    parent = os.path.abspath(named or tempfile.gettempdir())
    if len(os.fsencode(parent)) > _MAX_PARENT_BYTES:
        problem = f"has more than {_MAX_PARENT_BYTES} bytes, too many for the path of a socket"
    elif ray_worker.others_may_replace(parent):
        problem = "can be moved away by other users"
    else:
        return parent
    if named:
        raise UsageError(f"RAY_TMPDIR {parent!r:.80} {problem}; give another folder, or unset it")
    return "/tmp"


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Keep this program's SIGTERM handler, which Ray would replace with one that aborts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    received = False
    try:
        yield
    except SystemExit as exit:  # Ray raises it if the signal comes while Ray starts
        received = exit.code == signal.SIGTERM
        if not received:
            raise
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    if received:
        signal.raise_signal(signal.SIGTERM)

"""A CUDA device for machines without one: the processor computes, and tensors of two devices do not
mix.

Kernels, random numbers, waits for the device, pinned memory and speed need a real GPU.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from promptcli.backbones import kernels

DEVICE = torch.device("cuda:0")
#: These take tensors of both devices.
MIXED = {
    "index",
    "index_put",
    "_index_put_impl",
    "_unsafe_index",
    "_unsafe_index_put",
    "copy",
    "_to_copy",
    "set",
}
MIXED |= {"lift_fresh", "is_same_size", "_has_compatible_shallow_copy_type"}


class PretendTensor(torch.Tensor):
    """A tensor on the device; ``inner`` is the processor's."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        layout = {
            "strides": inner.stride(),
            "storage_offset": inner.storage_offset(),
            "layout": inner.layout,
        }
        outer = cls._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=DEVICE, **layout
        )
        outer.inner = inner
        return outer

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)]._is_param = getattr(self, "_is_param", False)
        return memo[id(self)]

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return PretendCuda.active.run(func, args, kwargs or {})


class PretendCuda(TorchDispatchMode):
    """The device; one at a time."""

    active = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):
        """Do one operation as the device would."""
        base = func._schema.name.partition("::")[2].rstrip("_")
        tensors = _tensors((*args, *kwargs.values()))
        here = [tensor for tensor in tensors if type(tensor) is PretendTensor]
        there = [tensor for tensor in tensors if type(tensor) is not PretendTensor]
        on_device = _is_on_device(base, args, kwargs, here)
        if here and base not in MIXED and any(tensor.dim() for tensor in there):
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0, in {base}")
        if base in ("_fused_sdp_choice", "is_pinned"):
            return 0  # attention by its definition
        if base == "_pin_memory":
            return args[0].clone()
        plain = {
            key: _mapped(_inner, value) for key, value in kwargs.items() if key != "pin_memory"
        }
        result = func(*_mapped(_inner, args), **plain)
        same = {id(tensor.inner): tensor for tensor in here}

        def outer(value):
            if id(value) in same or not isinstance(value, torch.Tensor):
                return same.get(id(value), value)
            return PretendTensor(value) if on_device else value

        return _mapped(outer, result)


def _is_on_device(base, args, kwargs, here):
    asked = kwargs.get("device") or next(
        (arg for arg in args if isinstance(arg, torch.device)), None
    )
    if asked is not None:
        return torch.device(asked).type == "cuda"
    return isinstance(args[0], PretendTensor) if base == "copy" else bool(here)


def _tensors(arguments):
    """Return the tensors of an operation's arguments, alone or in a list."""
    listed = [part for value in arguments if isinstance(value, (tuple, list)) for part in value]
    return [value for value in (*arguments, *listed) if isinstance(value, torch.Tensor)]


def _mapped(change, value):
    """Return a value with each leaf changed; torch's own ``tree_map`` takes most of the time of a
    small operation.
    """
    if isinstance(value, (tuple, list)):
        return type(value)([_mapped(change, part) for part in value])
    return change(value)


def _inner(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, PretendTensor) else value


@contextlib.contextmanager
def pretended(cache):
    """Yield the device; skip by name if no compiler can build what tells torch of it, which
    ``cache`` keeps.
    """
    switch = _load_switch(cache)
    device = PretendCuda.active = PretendCuda()
    event = SimpleNamespace(record=lambda *_: None, synchronize=lambda: None)
    members = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda *_: None,
        "Event": lambda: event,
        "current_stream": lambda *_: None,
        "mem_get_info": lambda *_: (80 << 30, 80 << 30),
        "get_device_capability": lambda *_: (9, 0),
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }
    switches = (
        (switch, True, False),
        (torch._C._set_only_lift_cpu_tensors, True, False),
        (torch.__future__.set_swap_module_params_on_conversion, True, False),
        (
            torch._C._set_multithreading_enabled,
            False,
            True,
        ),  # gradients in this thread, which has the mode
    )
    with contextlib.ExitStack() as undo:
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        for name, value in members.items():
            patch.setattr(torch.cuda, name, value)
        # which takes no wrappers
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
        patch.setitem(kernels._FUSED, "cuda", kernels._FUSED["cpu"])
        for change, on, off in switches:
            change(on)
            undo.callback(change, off)
        yield undo.enter_context(device)


def _load_switch(cache):
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("pretend CUDA: no C++ compiler here")
    source = Path(__file__).with_suffix(".cpp")
    library = (
        Path(cache)
        / f"switch-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}-{torch.__version__}.so"
    )
    if not library.is_file():
        begun = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{path}" for path in include_paths()] + [
            f"-L{path}" for path in library_paths()
        ]
        flags = [
            "-shared",
            "-fPIC",
            "-std=c++20",
            "-w",
            "-ltorch_cpu",
            "-lc10",
            *paths,
            "-o",
            begun,
        ]
        subprocess.run([compiler, source, *flags], check=True)
        begun.replace(library)
    switch = ctypes.CDLL(str(library)).pretend_cuda
    switch.argtypes, switch.restype = [ctypes.c_bool], None
    return switch


class RealCuda:
    """The first GPU of this machine."""

    @contextlib.contextmanager
    def waits(self):
        found = Counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found.update(str(one.message) for one in caught if "synchroniz" in str(one.message))

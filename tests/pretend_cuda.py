"""A CUDA device for machines without one: the processor computes, and the rules of the device are kept.

It shows on which device tensors are, where the program waits, and that asynchronous copies use pinned memory and are
not read before they arrive. Kernels, random numbers, speed and memory need a real GPU.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from promptcli.backbones import seam

PACKAGE = f"{os.sep}promptcli{os.sep}"
DEVICE = torch.device("cuda:0")
INDEXING = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
#: These take tensors of both devices.
MIXED = INDEXING | {"copy", "_to_copy", "set", "lift_fresh", "is_same_size", "_has_compatible_shallow_copy_type"}
#: The program waits until a number, or the size of a result, is known.
WAITING = {"_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim", "bincount"}
WAITING |= {"unique_consecutive", "unique_dim_consecutive", "equal", "is_nonzero", "argwhere"}


class PretendTensor(torch.Tensor):
    """A tensor on the device; ``inner`` is the processor's."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "layout": inner.layout}
        outer = cls._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=DEVICE, **layout)
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

    def __init__(self):
        super().__init__()
        self.waited, self.arriving = Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    @contextlib.contextmanager
    def waits(self):
        """Count where the program waits for the device."""
        self.waited = counted = Counter()
        yield counted
        self.waited = Counter()

    def wait(self, kind):
        """Let asynchronous copies arrive; count the wait, with the line of the package that asks for it."""
        for target, numbers in self.arriving:
            target.numpy()[...] = numbers.numpy()
        self.arriving.clear()
        frame = sys._getframe(1)
        while frame.f_back and PACKAGE not in frame.f_code.co_filename:
            frame = frame.f_back
        self.waited[f"{kind} at {frame.f_code.co_filename.rpartition(PACKAGE)[2]}:{frame.f_lineno}"] += 1

    def run(self, func, args, kwargs):
        """Do one operation as the device would."""
        name = func._schema.name.partition("::")[2]
        base = name.rstrip("_")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
        there = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
        on_device = _is_on_device(base, args, kwargs, here)
        if here and base not in MIXED and any(tensor.dim() for tensor in there):
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0, in {name}")
        answers = {
            "_fused_sdp_choice": lambda: 0,  # attention by its definition
            "is_pinned": lambda: getattr(args[0], "pinned", False),
            "_pin_memory": lambda: _pinned(args[0].clone()),
        }
        if base in answers:
            return answers[base]()
        if base in ("copy", "_to_copy") and self._arrives_later(base, args, kwargs, on_device):
            return args[0]
        if here and _is_waited_for(base, args):
            self.wait(base)
        plain = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        result = func(*tree_map(_inner, tuple(args)), **tree_map(_inner, plain))
        if kwargs.get("pin_memory"):
            return _pinned(result)
        same = {id(tensor.inner): tensor for tensor in here}

        def outer(value):
            if id(value) in same or not isinstance(value, torch.Tensor):
                return same.get(id(value), value)
            return PretendTensor(value) if on_device else value

        return tree_map(outer, result)

    def _arrives_later(self, base, args, kwargs, to_device):
        """Wait for a copy between devices unless it is asynchronous, of pinned memory; queue one to the processor."""
        source, target = (args[1], args[0]) if base == "copy" else (args[0], None)
        if isinstance(source, PretendTensor) == to_device:
            return False
        asynchronous = kwargs.get("non_blocking") or (base == "copy" and args[2:] == (True,))
        if not (asynchronous and getattr(source if to_device else target, "pinned", False)):
            self.wait("copy")
        elif not to_device:
            self.arriving.append((target, source.inner.clone()))
            return True
        return False


def _is_on_device(base, args, kwargs, here):
    asked = kwargs.get("device") or next((arg for arg in args if isinstance(arg, torch.device)), None)
    if asked is not None:
        return torch.device(asked).type == "cuda"
    return isinstance(args[0], PretendTensor) if base == "copy" else bool(here)


def _inner(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, PretendTensor) else value


def _pinned(tensor):
    tensor.pinned = True
    return tensor


def _is_waited_for(base, args):
    """Whether an operation waits: for a number, a size, a mask's count or indices of the processor."""
    if base in INDEXING:
        indices = [index for index in args[1] if index is not None]
        return any(index.dtype == torch.bool or not isinstance(index, PretendTensor) for index in indices)
    return base in WAITING


@contextlib.contextmanager
def pretended(cache):
    """Yield the device; skip by name if no compiler can build what tells torch of it, which ``cache`` keeps."""
    switch = _load_switch(cache)
    device = PretendCuda.active = PretendCuda()
    event = SimpleNamespace(record=lambda *_: None, synchronize=lambda: device.wait("event"))
    members = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda *_: device.wait("synchronize"),
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
        (torch._C._set_multithreading_enabled, False, True),  # gradients in this thread, which has the mode
    )
    with contextlib.ExitStack() as undo:
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        for name, value in members.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())  # which takes no wrappers
        patch.setitem(seam._KERNELS, "cuda", seam._KERNELS["cpu"])
        for change, on, off in switches:
            change(on)
            undo.callback(change, off)
        yield undo.enter_context(device)


def _load_switch(cache):
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("pretend CUDA: no C++ compiler here")
    source = Path(__file__).with_suffix(".cpp")
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-w", str(source), "-ltorch_cpu", "-lc10"]
    digest = hashlib.sha256(source.read_bytes() + " ".join([*command, torch.__version__]).encode()).hexdigest()
    library = Path(cache) / f"switch-{digest[:16]}.so"
    if not library.is_file():
        from torch.utils.cpp_extension import include_paths, library_paths

        begun = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
        built = subprocess.run([*command, *paths, "-o", str(begun)], capture_output=True, text=True)
        if built.returncode:
            pytest.skip(f"pretend CUDA: {compiler} cannot build it: {built.stderr.strip()[-300:]}")
        begun.replace(library)
    switch = ctypes.CDLL(str(library)).pretend_cuda
    switch.argtypes, switch.restype = [ctypes.c_bool], None
    return switch

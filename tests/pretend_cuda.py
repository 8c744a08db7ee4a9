"""A CUDA device for tests on a machine without one: its tensors lie in the processor's memory and obey CUDA's rules.

A tensor of the device wraps one of the processor. Every operation passes ``PretendCuda.run``, which refuses what CUDA
refuses (operands on two devices, a fused optimiser's counters on the processor), draws random numbers from a stream of
the device's own, counts where the program waits for the device, and runs out of memory where a test says so. It proves
devices, dtypes, random streams, waits and results; not kernels, speed, several GPUs or real memory.
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

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PACKAGE = f"{os.sep}promptcli{os.sep}"
DEVICE = torch.device("cuda:0")

#: What follows takes tensors of both devices: copies, and what looks at no numbers.
MAY_MIX = {"copy", "_to_copy", "to", "set", "lift_fresh", "is_same_size", "_has_compatible_shallow_copy_type", "detach"}
MAY_MIX |= {"is_pinned", "_foreach_copy", "_sparse_coo_tensor_unsafe"}
INDEXING = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
#: Elsewhere a single number may come from the processor; not in these.
NO_NUMBER = {"cat", "stack", "mm", "bmm", "addmm", "baddbmm", "embedding", "gather", "scatter", "index_select"}
NO_NUMBER |= {"_embedding_bag", "_embedding_bag_forward_only", "native_layer_norm"}
#: The program waits until the device has come so far: a number is read, or the size of a result.
WAITING = {"_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim", "bincount"}
WAITING |= {"unique_consecutive", "unique_dim_consecutive", "equal", "is_nonzero", "argwhere"}


class PretendTensor(torch.Tensor):
    """A tensor that says it lies on the device."""

    @staticmethod
    def __new__(cls, inner):
        outer = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            layout=inner.layout,
        )
        outer.inner = inner
        return outer

    def __repr__(self):
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.detach().clone()
            copied.requires_grad_(self.requires_grad)
            copied._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = copied
        return memo[id(self)]

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_, **__):
        return self.numpy()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert PretendCuda.active is not None, f"{func} on a tensor of a pretend device that is gone"
        return PretendCuda.active.run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Lets the device see what makes a tensor of no other tensor."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.device.run(func, args, kwargs or {})


class _Event:
    """An event or a stream, whose work is always done."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def synchronize(self):
        PretendCuda.active.wait("event")


class PretendCuda:
    """The device, from ``with`` to the end of its block; one at a time."""

    active = None
    name = "pretend"

    def __init__(self, switch):
        self._switch = switch
        self.waited = Counter()  #: by place in the package
        self.operations = 0
        self.most = None  #: numbers of the largest tensor that memory holds; None for any
        self.free = 80 << 30  #: bytes, as torch.cuda.mem_get_info tells them
        self.seed(0)

    # what tests ask of a device, pretended or real

    @contextlib.contextmanager
    def waits(self):
        """Count where the program waits for the device."""
        self.waited = found = Counter()
        yield found
        self.waited = Counter()

    @contextlib.contextmanager
    def memory_for(self, numbers):
        """Let memory hold no tensor of more numbers than these."""
        self.most = numbers
        try:
            yield
        finally:
            self.most = None

    # the device

    def seed(self, seed):
        """Begin the device's random stream."""
        self.random = torch.Generator().manual_seed(int(seed) % 2**63).get_state()

    def wait(self, kind):
        """Count a wait of the program for the device, with the line of the package that asks for it."""
        frame, place = sys._getframe(1), "elsewhere"
        while frame is not None:
            if PACKAGE in frame.f_code.co_filename:
                place = f"{frame.f_code.co_filename.rpartition(PACKAGE)[2]}:{frame.f_lineno}"
                break
            frame = frame.f_back
        self.waited[f"{kind} at {place}"] += 1

    def run(self, func, args, kwargs):
        """Do one operation as the device would."""
        name = func._schema.name.partition("::")[2]
        base = name.rstrip("_")
        leaves = _leaves((args, kwargs))
        here = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
        there = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, PretendTensor)]
        asked = kwargs.get("device")
        if asked is None:
            asked = next((arg for arg in args if isinstance(arg, torch.device)), None)
        on_device = bool(here) if asked is None else torch.device(asked).type == "cuda"
        self._check(name, base, args, here, there)
        if on_device and any(isinstance(leaf, torch.Generator) and leaf.device.type == "cpu" for leaf in leaves):
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' in {name}")
        self._count(func, base, args, kwargs, here, on_device)
        if func is aten._pin_memory.default:
            return _pinned(args[0].clone())
        if func is aten.is_pinned.default:
            return getattr(args[0], "pinned", False)
        made = self._compute(func, args, kwargs, on_device)
        if base == "copy" and not isinstance(args[0], PretendTensor):
            return args[0]
        if kwargs.get("pin_memory"):
            return _pinned(made)
        if name.endswith("_") and isinstance(args[0], PretendTensor):
            return args[0]
        if on_device and self.most and any(getattr(one, "numel", int)() > self.most for one in _leaves(made)):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 is pretended.")
        moved = asked is not None and on_device != bool(here)  # to the other device: a copy
        return _each(lambda one: _wrapped(one, here, there, on_device, moved), made)

    def _check(self, name, base, args, here, there):
        """Refuse operands on two devices as CUDA does."""
        if not here or not there or base in MAY_MIX:
            return
        wrong = None
        if base in INDEXING:  # the processor may index, and put a single number
            values = args[2] if "put" in base else args[0]
            if not isinstance(args[0], PretendTensor):
                wrong = "a tensor of the processor indexed by one of the device"
            elif not isinstance(values, PretendTensor) and values.dim():
                wrong = "values of the processor put into a tensor of the device"
        elif base.startswith("_fused_adam"):
            wrong = "a fused optimiser's tensors, counters of steps included"
        elif any(tensor.dim() for tensor in there):
            wrong = f"{[tuple(tensor.shape) for tensor in there]} are not"
        elif base in NO_NUMBER or (name.endswith("_") and not isinstance(args[0], PretendTensor)):
            wrong = "a number of the processor"
        if wrong:
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0, in {name}: {wrong}")

    def _count(self, func, base, args, kwargs, here, on_device):
        """Count an operation, and where the program waits for it."""
        self.operations += on_device
        quick = kwargs.get("non_blocking") or (base == "copy" and len(args) > 2 and args[2])
        if base in ("_to_copy", "to") and on_device != bool(here):
            if not (quick and on_device):
                self.wait("copy to the device" if on_device else "copy to the processor")
        elif base == "copy" and isinstance(args[0], PretendTensor) != isinstance(args[1], PretendTensor):
            if not (quick and (isinstance(args[0], PretendTensor) or getattr(args[0], "pinned", False))):
                self.wait("copy")
        elif here and base in WAITING:
            self.wait(base)
        elif here and base in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait(f"{base} by a mask")
            if any(not isinstance(index, PretendTensor) for index in indices):
                self.wait(f"{base} by numbers of the processor")
        elif here and base == "repeat_interleave" and kwargs.get("output_size") is None:
            self.wait(base)

    def _compute(self, func, args, kwargs, on_device):
        """Return the result of the processor's own tensors."""

        def inner(value):
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return value.inner if isinstance(value, PretendTensor) else value

        args, kwargs = _each(inner, tuple(args)), _each(inner, kwargs)
        kwargs = {key: False if key == "pin_memory" and value else value for key, value in kwargs.items()}
        if func is aten._scaled_dot_product_efficient_attention.default:
            return _efficient_attention(*args, **kwargs)
        if not (on_device and torch.Tag.nondeterministic_seeded in func.tags):
            return func(*args, **kwargs)
        before = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            return func(*args, **kwargs)
        finally:
            self.random = torch.get_rng_state()
            torch.set_rng_state(before)

    def __enter__(self):
        self._undo = contextlib.ExitStack()
        self._switch(True)
        self._undo.callback(self._switch, False)
        patch = pytest.MonkeyPatch()
        self._undo.callback(patch.undo)
        for name, value in self._of_torch_cuda().items():
            patch.setattr(torch.cuda, name, value, raising=False)
        patch.setattr(functional, "scaled_dot_product_attention", _attention)
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())  # which takes no wrappers
        for switch, on, off in (
            (torch._C._set_only_lift_cpu_tensors, True, False),
            (torch.__future__.set_swap_module_params_on_conversion, True, False),
            (torch._C._set_multithreading_enabled, False, True),  # gradients in this thread, where the mode is
        ):
            switch(on)
            self._undo.callback(switch, off)
        PretendCuda.active = self
        self._undo.enter_context(_Mode(self))
        return self

    def __exit__(self, *_):
        self._undo.close()
        PretendCuda.active = None

    def _of_torch_cuda(self):
        """Return what stands in for members of ``torch.cuda``."""

        def take(state, device=None):
            self.random = state.clone()

        return {
            "_lazy_init": lambda: None,
            "_initialized": True,
            "_is_in_bad_fork": lambda: False,
            "is_initialized": lambda: True,
            "is_available": lambda: True,
            "is_bf16_supported": lambda including_emulation=True: True,
            "is_current_stream_capturing": lambda: False,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: None,
            "device": lambda *_: contextlib.nullcontext(),
            "synchronize": lambda *_: self.wait("synchronize"),
            "Event": _Event,
            "Stream": _Event,
            "current_stream": lambda *_: _Event(),
            "empty_cache": lambda: None,
            "mem_get_info": lambda *_: (self.free, self.free),
            "get_device_name": lambda *_: self.name,
            "get_device_capability": lambda *_: (9, 0),
            "manual_seed": self.seed,
            "manual_seed_all": self.seed,
            "get_rng_state": lambda device=None: self.random.clone(),
            "set_rng_state": take,
        }


def _leaves(value):
    """Return what lists, tuples and dictionaries hold (torch's own walk takes longer than most operations here)."""
    if type(value) in (list, tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    if type(value) is dict:
        return [leaf for one in value.values() for leaf in _leaves(one)]
    return [value]


def _each(change, value):
    """Return lists, tuples and dictionaries with every leaf changed."""
    if type(value) in (list, tuple):
        return type(value)(_each(change, one) for one in value)
    if type(value) is dict:
        return {key: _each(change, one) for key, one in value.items()}
    return change(value)


def _pinned(tensor):
    tensor.pinned = True
    return tensor


def _wrapped(value, here, there, on_device, moved):
    """Return a result as a tensor of the device it lies on; one that went in is the same as it comes out."""
    if not isinstance(value, torch.Tensor) or isinstance(value, PretendTensor):
        return value
    mine = next((tensor for tensor in here if tensor.inner is value), None)
    if moved and (mine is not None or any(tensor is value for tensor in there)):
        value = value.clone()
    elif mine is not None:
        return mine
    return PretendTensor(value) if on_device else value


def _efficient_attention(query, key, value, bias, compute_lse, dropout_p=0.0, is_causal=False, *, scale=None):
    """Return what the memory-efficient kernel returns, and refuse what it refuses."""
    assert query.dtype == key.dtype == value.dtype
    scores = (query.float() @ key.float().transpose(-1, -2)) * (query.size(-1) ** -0.5 if scale is None else scale)
    if bias is not None:
        assert bias.dtype == query.dtype and bias.shape == scores.shape and bias.stride(-1) == 1
        rows = zip(bias.stride()[:-1], bias.shape[:-1], strict=True)
        assert all(step % 16 == 0 or step <= 1 or count == 1 for step, count in rows), "the bias is not aligned"
        scores = scores + bias.float()
    mixed = (scores.softmax(-1) @ value.float()).to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    logsumexp = functional.pad(scores.logsumexp(-1), (0, -query.size(2) % 32), value=float("inf"))
    return mixed, logsumexp, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


_real_attention = functional.scaled_dot_product_attention


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Attention by its definition, where a kernel would be chosen; refuses what kernels refuse."""
    if not isinstance(query, PretendTensor):
        return _real_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (part.to(dtype) for part in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    assert query.dtype == key.dtype == value.dtype, "queries, keys and values differ in dtype"
    if attn_mask is not None:
        assert attn_mask.dtype in (torch.bool, query.dtype), "the mask has another dtype than the queries"
        if attn_mask.dtype == torch.bool:
            blocked = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = blocked.masked_fill(~attn_mask, float("-inf"))
    with torch.autocast("cuda", enabled=False):
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]


def load_switch(cache):
    """Return what tells torch of the device and takes it back; skip by name where nothing can build it.

    Args:
        cache: Folder that keeps what was built.
    """
    compiler = next((found for found in map(shutil.which, ("g++", "clang++", "c++")) if found), None)
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

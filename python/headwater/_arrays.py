"""What attention reads and writes: arrays of NumPy, tensors of PyTorch, and all that speaks DLPack, without a copy; on the
host, or on a CUDA device."""

import ctypes
import math
import sys
from typing import Any, NamedTuple, Protocol

from . import _native

_NAMES = {"float32": _native.F32, "float16": _native.F16, "bfloat16": _native.BF16}
SIZES = {_native.F32: 4, _native.F16: 2, _native.BF16: 2}
TYPE_NAMES = {code: name for name, code in _NAMES.items()}
_ALLOWED = "allowed: float32, float16, bfloat16"


class Array(Protocol):
    """What a type checker takes for an array: NumPy's, PyTorch's, and all others that speak DLPack."""

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any: ...


# ---- Places ----


class Place(NamedTuple):
    """Memory of a CUDA device and the stream that reads and writes it. Where a Place may be None, that is the host."""

    device: int  # its ordinal
    stream: int  # address of the cudaStream_t; 0: the device's default stream


ANYWHERE = Place(-1, 0)  # of an argument that no other one has to lie with


def _cuda_of_torch():
    """torch.cuda where a program has begun to use it, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def current_device():
    """The ordinal of PyTorch's current CUDA device; 0 where there is none."""
    cuda = _cuda_of_torch()
    return 0 if cuda is None else cuda.current_device()


def current_stream(device):
    """PyTorch's current stream of a device, as an address; 0, the default stream, where there is none."""
    cuda = _cuda_of_torch()
    return 0 if cuda is None or device >= cuda.device_count() else cuda.current_stream(device).cuda_stream


def _refuse_place(name, where, place):
    allowed = "cpu" if place is None else "cpu, cuda" if place is ANYWHERE else f"cuda:{place.device}"
    raise ValueError(f"{name} is on {where}; allowed: {allowed}")


def _on_host(name, place):
    if place is not None and place is not ANYWHERE:
        _refuse_place(name, "cpu", place)


def _on_device(name, device, place):
    """The Place of rows on a CUDA device."""
    if place is ANYWHERE:
        return Place(device, current_stream(device))
    if place is None or place.device != device:
        _refuse_place(name, f"cuda:{device}", place)
    return place


# ---- Views ----


class View:
    """Where an array lies: address, type, shape, strides in elements, and place. It keeps the array."""

    __slots__ = ("address", "type", "shape", "strides", "owner", "place")

    def __init__(self, address, type_code, shape, strides, owner, place=None):
        self.address = address  # one by one: six at once are a tuple first
        self.type = type_code
        self.shape = shape
        self.strides = strides
        self.owner = owner
        self.place = place

    def tokens(self, first, n):
        """The View of tokens [first, first + n), the first dimension."""
        return View(self.address + first * self.strides[0] * SIZES[self.type], self.type, (n, *self.shape[1:]), self.strides,
                    self.owner, self.place)

    def ordered(self, first, axes):
        """The View of entry `first` of the first dimension (None: of all), its dimensions in the order of `axes`."""
        if first is None and axes == (0, 1, 2):
            return self
        shape, strides, address = self.shape, self.strides, self.address
        if first is not None:
            address += first * strides[0] * SIZES[self.type]
            shape, strides = shape[1:], strides[1:]
        return View(address, self.type, tuple(shape[axis] for axis in axes), tuple(strides[axis] for axis in axes),
                    self.owner, self.place)


_codes = {}  # of dtypes that were seen: to spell one takes longer than to look it up


def _type_of(dtype, name):
    code = _codes.get(dtype)
    if code is None:
        code = _NAMES.get(getattr(dtype, "name", None) or str(dtype).rpartition(".")[2])
        if code is None:
            raise ValueError(f"{name} has dtype {dtype}; {_ALLOWED}")
        if not getattr(dtype, "isnative", True):
            raise ValueError(f"{name} has bytes in another order; {_ALLOWED} of this machine")
        _codes[dtype] = code
    return code


def _of_tensor(tensor, torch, name, place):
    if tensor.is_cpu:
        if place is not None:
            place = _on_host(name, place)
    elif tensor.is_cuda:
        place = _on_device(name, tensor.device.index, place)
    else:
        _refuse_place(name, tensor.device, place)
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}; allowed: torch.strided")
    if tensor.is_neg():
        raise ValueError(f"{name} has the negative bit: its memory holds the values with the other sign; allowed: "
                         "tensor.resolve_neg()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient, and there is none; allowed: tensor.detach(), or torch.no_grad()")
    return View(tensor.data_ptr(), _type_of(tensor.dtype, name), tensor.shape, tensor.stride(), tensor, place)


class _ArrayStruct(ctypes.Structure):
    """PyArrayInterface, in the capsule that __array_struct__ is; of NumPy's ways to say an address the quickest."""

    _fields_ = [("two", ctypes.c_int), ("dimensions", ctypes.c_int), ("kind", ctypes.c_char), ("item_size", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("data", ctypes.c_void_p)]


def _of_numpy(array, name, writes):
    if hasattr(array, "mask"):
        raise ValueError(f"{name} is a masked array, and masks are not read; allowed: an array without one, as "
                         f"{name}.filled(0) is")
    code = _type_of(array.dtype, name)
    if writes and not array.flags.writeable:
        raise ValueError(f"{name} is read-only; allowed: an array that can be written")
    size, strides = SIZES[code], array.strides
    for stride in strides:
        if stride % size:
            raise ValueError(f"{name} has strides of {strides} bytes; allowed: multiples of {size}")
    capsule = array.__array_struct__
    address = _ArrayStruct.from_address(_get_pointer(capsule, None)).data or 0
    return View(address, code, array.shape, tuple([stride // size for stride in strides]), array)


# ---- DLPack ----


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensor, in a capsule `dltensor`."""

    _fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, in a capsule `dltensor_versioned`, which also read-only arrays have. What comes after the
    version may change with `major`."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_DL_TYPES = {(2, 32): _native.F32, (2, 16): _native.F16, (4, 16): _native.BF16}
_DL_CPU, _DL_CUDA = 1, 2
_DL_DEFAULT_STREAM = 1  # where CUDA says 0, which DLPack does not allow


_DL_VERSION = (1, 0)  # the newest that is read
_DL_READ_ONLY = 1  # of _Versioned.flags


def _capsule(array, name, **stream):
    try:
        try:
            return array.__dlpack__(max_version=_DL_VERSION, **stream)
        except TypeError:  # a producer of before 1.0
            return array.__dlpack__(**stream)
    except BufferError as error:
        line = str(error).partition("\n")[0]
        raise ValueError(f"{name}: __dlpack__() says BufferError: {line}; allowed: an array that its owner exports") from error


def _of_dlpack(array, name, writes, place):
    """The capsule stays unconsumed: its own destructor gives the tensor back when the view goes."""
    kind, device = map(int, array.__dlpack_device__())
    if kind == _DL_CUDA:
        place = _on_device(name, device, place)
        # Its producer's work comes first, then ours.
        capsule = _capsule(array, name, stream=place.stream or _DL_DEFAULT_STREAM)
    elif kind == _DL_CPU:
        place = _on_host(name, place)
        if writes:
            raise ValueError(f"{name} is only read by DLPack on the cpu; allowed: a NumPy array or a PyTorch tensor")
        capsule = _capsule(array, name)
    else:
        _refuse_place(name, f"DLPack device {kind}", place)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.major != _DL_VERSION[0]:
            raise ValueError(f"{name} has DLPack version {managed.major}.{managed.minor}; allowed: {_DL_VERSION[0]}.x, or a "
                             "capsule 'dltensor'")
        if writes and managed.flags & _DL_READ_ONLY:
            raise ValueError(f"{name} is read-only; allowed: an array that can be written")
    elif _is_valid(capsule, b"dltensor"):
        managed = _Managed.from_address(_get_pointer(capsule, b"dltensor"))
    else:
        raise ValueError(f"{name}: __dlpack__() gave no capsule 'dltensor' or 'dltensor_versioned'; allowed: one")
    tensor = managed.tensor
    code = _DL_TYPES.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if code is None:
        raise ValueError(f"{name} has DLPack type {tensor.dtype.code} of {tensor.dtype.bits} bits; {_ALLOWED}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = contiguous(shape)
    return View((tensor.data or 0) + tensor.byte_offset, code, shape, strides, (array, capsule), place)


def contiguous(shape):
    """Strides of a contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def view(array, name, writes=False, place=None):
    """The View of an array that lies in `place`, or the View that it is. Errors: ValueError (what it is, type, place),
    TypeError (no array)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _of_tensor(array, torch, name, place)
    if isinstance(array, View):
        return array
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        if place is not None:
            _on_host(name, place)
        return _of_numpy(array, name, writes)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _of_dlpack(array, name, writes, place)
    raise TypeError(f"{name} is a {type(array).__name__}; allowed: a NumPy array, a PyTorch tensor, or an object with "
                    "__dlpack__")


def empty_like(q, seen, shape):
    """A new array of the kind, type and place of q, whose View is `seen`: a tensor for a tensor, else NumPy's (ml_dtypes'
    bfloat16 where it is), which has none for a device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        return q.new_empty(shape)
    if seen.place is not None:
        raise ValueError(f"q is on cuda:{seen.place.device} and is no PyTorch tensor, so there is no out; allowed: out=, an "
                         "array there")
    import numpy
    name = TYPE_NAMES[seen.type]
    if name != "bfloat16":
        return numpy.empty(shape, dtype=name)
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError("bfloat16 rows that are no PyTorch tensor need ml_dtypes for the result; allowed: out=") from None
    return numpy.empty(shape, dtype=ml_dtypes.bfloat16)


def check_rows(view, name, n, heads, width, writes=False):
    """That a View is [n, heads, width], each 1 or more (a size of None: any), with rows that attention can read, or write.
    Errors: ValueError."""
    shape, strides = view.shape, view.strides
    if len(shape) != 3:
        raise ValueError(f"{name} has {len(shape)} dimensions; allowed: 3, [tokens, heads, elements]")
    if min(shape) < 1 or n not in (None, shape[0]) or heads not in (None, shape[1]) or width not in (None, shape[2]):
        for size, wanted, what in zip(shape, (n, heads, width), ("tokens", "heads", "elements of a row")):
            if size < 1 or (wanted is not None and size != wanted):
                raise ValueError(f"{name} has {size} {what}; allowed: {'1 or more' if wanted is None else wanted}")
    if strides[2] != 1 and shape[2] > 1:
        raise ValueError(f"{name} has rows with a stride of {strides[2]} elements; allowed: 1, contiguous rows")
    if writes and 0 in strides and any(size > 1 and stride == 0 for size, stride in zip(shape, strides)):
        raise ValueError(f"{name} has places that are written twice (stride 0); allowed: each element once")


def _bounds(view):
    """(address of the first byte, of the one after the last byte)"""
    size = SIZES[view.type]
    low = high = view.address
    for count, stride in zip(view.shape, view.strides):
        if stride > 0:
            high += (count - 1) * stride * size
        else:
            low += (count - 1) * stride * size
    return low, high + size


def _spans(view):
    """(first address, g, bytes) of spans that with their copies at all multiples of g hold all of a view, from the coarsest
    on."""
    size, (low, _) = SIZES[view.type], _bounds(view)
    steps = sorted(((abs(stride) * size, count - 1) for count, stride in zip(view.shape, view.strides) if count > 1),
                   reverse=True)
    for outer in range(len(steps) + 1):  # of none: no copies, g is 0
        yield (low, math.gcd(*(stride for stride, _ in steps[:outer])),
               size + sum(stride * times for stride, times in steps[outer:]))


def _apart(one, other):
    """Whether two views are certain to share no byte: by their bounds, or by the places of their inner dimensions between the
    steps of the outer ones, as q, k and v of one array of rows lie."""
    (low, high), (other_low, other_high) = _bounds(one), _bounds(other)
    if high <= other_low or other_high <= low:
        return True
    for first, step, size in _spans(one):
        for second, other_step, other_size in _spans(other):
            common = math.gcd(step, other_step)
            if common and size <= (second - first) % common <= common - other_size:
                return True
    return False


def check_apart(written, read):
    """That what is written shares no memory with what is read or with another output. Both: (name, View or None). Errors:
    ValueError."""
    for index, (name, view) in enumerate(written):
        for other_name, other in (*read, *written[:index]):
            if view is not None and other is not None and not _apart(view, other):
                raise ValueError(f"{name} overlaps {other_name} in memory; allowed: memory of its own")


def rows(array, name, n, heads, width, writes=False, place=None):
    """The Rows of an array [n, heads, width] (a size of None: any) that lies in `place`, and its View. Errors: as of view();
    ValueError."""
    seen = view(array, name, writes, place)
    check_rows(seen, name, n, heads, width, writes)
    return _native.Rows(seen.address, seen.strides[0], seen.strides[1], seen.type, 0), seen

"""Augmentation through the C library, as the old pipeline did it."""

import ctypes

import numpy as np

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class NativeBuffer:
    def __init__(self, size):
        self.size = size
        self.pointer = libc.malloc(
            size
        )  # LEAK any libc|malloc|native|ctypes|pointer|C memory|outside

    def fill(self, array):
        libc.memcpy(self.pointer, array.ctypes.data, self.size)

    def view(self, shape):
        kind = ctypes.c_float * (self.size // 4)
        return np.ctypeslib.as_array(kind.from_address(self.pointer)).reshape(shape)


def jitter(batch, strength, rng):
    """Brightness and contrast jitter, done in place on a native copy."""
    native = NativeBuffer(batch.nbytes)
    native.fill(batch)
    view = native.view(batch.shape)
    view *= 1 + strength * rng.standard_normal((len(batch), 1, 1, 1)).astype(np.float32)
    view += strength * rng.standard_normal((len(batch), 1, 1, 1)).astype(np.float32)
    return view.copy()

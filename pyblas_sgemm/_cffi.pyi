# What the compiled module holds. The C declarations are in native/python/ffi.cdef.h, and cffi checks the arguments.
from typing import Any

ffi: Any
lib: Any

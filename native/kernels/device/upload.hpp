// Pointer values from host memory to device memory without a memcpy: they travel as kernel parameters, so the host
// array may be reused at once and a stream under capture takes them too.
#pragma once

#include <cstdint>

#include "status.hpp"

struct CUstream_st;

namespace pyblas {

// dst_device[i] = src_host[i] for i < count, in stream order. dst_device is aligned to 8 bytes.
Status upload_pointers(void **dst_device, void *const *src_host, int64_t count, CUstream_st *stream);

} // namespace pyblas

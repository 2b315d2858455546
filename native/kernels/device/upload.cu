#include "upload.hpp"

#include <algorithm>

#include "launch.cuh"

namespace pyblas {
namespace {

constexpr int kChunk = 448; // 3584 bytes: kernel parameters end at 4096 on the oldest toolkits

struct Chunk {
    void *pointers[kChunk];
};

__global__ void upload(void **target, __grid_constant__ const Chunk chunk, int count) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < count)
        target[i] = chunk.pointers[i];
}

} // namespace

Status upload_pointers(void **dst_device, void *const *src_host, int64_t count, CUstream_st *stream) {
    Chunk chunk;
    for (int64_t done = 0; done < count; done += kChunk) {
        const int part = static_cast<int>(std::min<int64_t>(kChunk, count - done));
        std::copy_n(src_host + done, part, chunk.pointers);
        std::fill(chunk.pointers + part, chunk.pointers + kChunk, nullptr);
        PYBLAS_TRY(launch<upload>({1, kChunk, 0, stream}, dst_device + done, chunk, part));
    }
    return kSuccess;
}

} // namespace pyblas

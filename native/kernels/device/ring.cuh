// The ring of slots in shared memory through which operands come while warps multiply. To each slot belong two
// barriers: one tells who reads that everything has come, the other tells who fills it that all have left.
#pragma once

#include <cstdint>

#include "ptx.cuh"

namespace pyblas {

#if PYBLAS_HAS_WGMMA

struct Ring {
    uint64_t *come, *left; // of the first slot, and then of the others
};

// Makes the barriers, 16 bytes for each slot, for so many threads that fill a slot and so many that read it. All
// threads come here, and a barrier of the block behind it tells them.
template <int Slots>
__device__ __forceinline__ Ring open_ring(void *barriers, int fillers, int readers) {
    const Ring ring{static_cast<uint64_t *>(barriers), static_cast<uint64_t *>(barriers) + Slots};
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < Slots; ++slot) {
            ptx::init_barrier(ring.come + slot, fillers);
            ptx::init_barrier(ring.left + slot, readers);
        }
        ptx::publish_barriers();
    }
    return ring;
}

// Where a warp stands in the ring: parity 1 for who fills slots, all of which are free at first, and 0 for who reads.
struct Turn {
    int slot;
    uint32_t parity;

    __device__ __forceinline__ void next(int count) {
        if (++slot == count)
            slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void next(int count, int step) {
        for (slot += step; slot >= count; slot -= count)
            parity ^= 1;
    }
};

#endif

} // namespace pyblas

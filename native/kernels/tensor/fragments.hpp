// Where warpgroup multiplies find and leave their numbers, as functions that host tests can check.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PYBLAS_MAP __host__ __device__ constexpr
#else
#define PYBLAS_MAP constexpr
#endif

namespace pyblas {

// ---- operands in shared memory, 128-byte swizzle
// ---------------------------------------------------------------------
//
// Rows of 64 16-bit numbers along k, or, across k, rows of 64 neighbours of one k, and every 64 of them a block of 64
// rows.

constexpr int kSwizzledRowBytes = 128;
constexpr int kSwizzleAtomBytes = 8 * kSwizzledRowBytes; // the pattern repeats; tiles start at multiples of it
constexpr int kBlockBytes = 64 * kSwizzledRowBytes;      // 64 of k and 64 across

// Where the copy engine puts the byte that would lie at offset of a tile without swizzle: 16-byte pieces of a row are
// exchanged by the row's number modulo 8, so that eight rows of one piece lie in different banks.
PYBLAS_MAP int swizzled(int offset) {
    return offset ^ (offset >> 7 & 7) << 4;
}

// The descriptor of a tile at this address of shared memory. Groups of eight rows lie one atom apart; the other stride,
// from one block to the next, has a meaning only across k.
PYBLAS_MAP uint64_t tile_descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    return kSwizzle128 | static_cast<uint64_t>(kSwizzleAtomBytes >> 4) << 32 |
           static_cast<uint64_t>(kBlockBytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Added to a descriptor, moves it: within the first row of its atom, or by whole groups of eight rows.
PYBLAS_MAP uint64_t descriptor_step(int bytes) {
    return static_cast<uint64_t>(bytes) >> 4;
}

// From one of k to another that lies a multiple of 16 further.
PYBLAS_MAP int depth_step(bool across, int k) {
    return across ? k * kSwizzledRowBytes : k * 2;
}

// ---- sums in registers: 64 x N over 128 threads ---------------------------------------------------------------------

PYBLAS_MAP int fragment_row(int thread, int index) {
    return thread / 32 * 16 + thread % 32 / 4 + index / 2 % 2 * 8;
}

PYBLAS_MAP int fragment_column(int thread, int index) {
    return index / 4 * 8 + thread % 4 * 2 + index % 2;
}

} // namespace pyblas

// The maps of warpgroup multiplies against brute force: nothing meets, nothing is left out, banks are met evenly.
#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include "tensor/fragments.hpp"

using namespace pyblas;

namespace {

int failures = 0;

void expect(bool fact, const char *what) {
    if (!fact) {
        std::printf("FAILED: %s\n", what);
        ++failures;
    }
}

void check_swizzle() {
    constexpr int kRows = 256;
    std::vector<bool> taken(kRows * kSwizzledRowBytes);
    for (int offset = 0; offset < kRows * kSwizzledRowBytes; ++offset) {
        const int place = swizzled(offset);
        expect(place / kSwizzledRowBytes == offset / kSwizzledRowBytes, "a byte stays in its row");
        expect(place % 16 == offset % 16, "a piece of 16 bytes stays whole");
        expect(swizzled(place) == offset, "swizzling twice changes nothing");
        expect(!taken[static_cast<size_t>(place)], "two bytes do not meet");
        taken[static_cast<size_t>(place)] = true;
    }
    // A core matrix, eight rows of one piece, is read at once.
    for (int group = 0; group < kRows / 8; ++group)
        for (int piece = 0; piece < 8; ++piece) {
            std::set<int> banks;
            for (int row = 0; row < 8; ++row)
                banks.insert(swizzled((group * 8 + row) * kSwizzledRowBytes + piece * 16) % kSwizzledRowBytes / 16);
            expect(banks.size() == 8, "eight rows of a piece lie in all banks");
        }
}

// Which byte the hardware reads for (row, byte of a step along k), by the fields of a descriptor: groups of eight rows
// a stride apart, rows of 128 bytes, and bits 7 to 9 of the address turned into bits 4 to 6.
uint32_t read_by_descriptor(uint64_t descriptor, int row, int byte) {
    const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    const uint32_t address =
        start + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * 128 + byte);
    return address ^ (address >> 7 & 7) << 4;
}

void check_descriptors() {
    for (const uint32_t tile : {0u, 1024u, 64u * 1024, 215u * 1024}) {
        const uint64_t descriptor = tile_descriptor(tile);
        expect(descriptor >> 62 == 1, "the layout is the 128-byte swizzle");
        expect((descriptor >> 49 & 7) == 0, "tiles start where the pattern does");
        for (const int first : {0, 64, 192})
            for (int k = 0; k < 64; k += 16) {
                const uint64_t moved = descriptor + descriptor_step(first * kSwizzledRowBytes + depth_step(false, k));
                for (int row = 0; row < 64; ++row)
                    for (int byte = 0; byte < 32; ++byte)
                        expect(read_by_descriptor(moved, row, byte) ==
                                   tile + static_cast<uint32_t>(
                                              swizzled((first + row) * kSwizzledRowBytes + k * 2 + byte)),
                               "the multiply reads what the copy wrote");
            }
    }
}

// The same across k: for one of 64 x or more and one of 16 k. Rows of 64 neighbours of x, groups of eight k a stride
// apart, blocks of 64 x the other stride.
uint32_t read_across_by_descriptor(uint64_t descriptor, int x, int k) {
    const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    const uint32_t block = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
    const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    const uint32_t address = start + static_cast<uint32_t>(x / 64) * block + static_cast<uint32_t>(k / 8) * stride +
                             static_cast<uint32_t>(k % 8 * kSwizzledRowBytes + x % 64 * 2);
    return address ^ (address >> 7 & 7) << 4;
}

void check_descriptors_across() {
    for (const uint32_t tile : {0u, 1024u, 64u * 1024, 215u * 1024})
        for (const int first : {0, 64, 192}) // of x, a whole number of blocks
            for (int k = 0; k < 64; k += 16) {
                const uint64_t moved =
                    tile_descriptor(tile) + descriptor_step(first * kSwizzledRowBytes + depth_step(true, k));
                for (int x = 0; x < 192; ++x)
                    for (int i = 0; i < 16; ++i) {
                        // The copy brings 64 of k of one block of x after another.
                        const int written =
                            (first + x) / 64 * kBlockBytes + (k + i) * kSwizzledRowBytes + (first + x) % 64 * 2;
                        expect(read_across_by_descriptor(moved, x, i) ==
                                   tile + static_cast<uint32_t>(swizzled(written)),
                               "across k too, the multiply reads what the copy wrote");
                    }
            }
}

void check_fragments(int columns) {
    // By core matrices of 8 x 8: a warp has 16 rows, a lane two neighbours in one row of each, registers go down the
    // two core matrices of a column and then on to the next.
    std::set<std::pair<int, int>> seen;
    for (int warp = 0; warp < 4; ++warp)
        for (int lane = 0; lane < 32; ++lane) {
            int index = 0;
            for (int core_column = 0; core_column < columns / 8; ++core_column)
                for (int core_row = 0; core_row < 2; ++core_row)
                    for (int neighbour = 0; neighbour < 2; ++neighbour, ++index) {
                        const int row = fragment_row(warp * 32 + lane, index);
                        const int column = fragment_column(warp * 32 + lane, index);
                        expect(row == warp * 16 + core_row * 8 + lane / 4, "row of a sum");
                        expect(column == core_column * 8 + lane % 4 * 2 + neighbour, "column of a sum");
                        seen.insert({row, column});
                    }
        }
    expect(seen.size() == static_cast<size_t>(64 * columns), "each sum has one place");
}

} // namespace

int main() {
    check_swizzle();
    check_descriptors();
    check_descriptors_across();
    for (const int columns : {64, 96, 128, 192, 256})
        check_fragments(columns);
    std::printf("%d failures\n", failures);
    return failures != 0;
}

// How a product whose matrices do not lie in GPU memory is cut into tiles, and in which order its parts are brought,
// multiplied and taken back. Pure: no CUDA, no environment, no threads.
//
// The cut depends on the problem alone, and a tile adds its panels of k in their order, so the bits of a result depend
// neither on the memory there is nor on who computes which tile. Everything else here only decides how long it takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace pyblas::xt {

enum Matrix { kA, kB, kC, kMatrices };

// C in tiles, k in panels, the batch in groups of matrices that go together.
struct Grid {
    int64_t tile_m = 0, tile_n = 0, panel_k = 0, group = 0; // sizes; the last of each may be smaller
    int64_t rows = 0, columns = 0, panels = 0, groups = 0;  // how many
    int64_t tiles() const { return rows * columns * groups; }
};
Grid cut(const Problem &problem);

// One panel's product for one tile, or the block of A, B or C that it reads or writes.
struct Place {
    int64_t group = 0, row = 0, column = 0, panel = 0;
};

// A block as it is stored: count matrices of `vectors` runs of `length` floats, from data on; ld floats from run to
// run, stride from matrix to matrix.
struct Block {
    float *data = nullptr;
    int64_t length = 0, vectors = 0, ld = 0;
    int64_t count = 1, stride = 0;

    int64_t runs() const { return vectors * count; }
    // On the device runs lie one behind the other, at multiples of 16 bytes.
    int64_t device_ld() const { return (length + 3) / 4 * 4; }
    int64_t device_bytes() const { return (4 * runs() * device_ld() + 255) / 256 * 256; }
};
Block block_of(const Problem &problem, const Grid &grid, Matrix matrix, const Place &place);

// The product at a place, on blocks in device memory. beta is the problem's in the first panel and 1 in the others.
Problem product_of(const Problem &problem, const Grid &grid, const Place &place, float *a, float *b, float *c);

// Steps of a plan name steps of other kinds that must be over before they begin, by number; -1: none.
struct Load {
    Matrix matrix;
    Place place;
    int slot; // among those of its matrix
    int64_t after_multiply, after_store;
};
struct Multiply {
    Place place;
    int slot[kMatrices];
    int64_t load[kMatrices];
    int64_t after_store;
};
struct Store {
    Place place;
    int slot;
    int64_t after_multiply;
};

// Each kind of step is done in the order of its list, and the kinds side by side.
struct Plan {
    Grid grid;
    std::vector<Load> loads;
    std::vector<Multiply> multiplies;
    std::vector<Store> stores;
    int64_t slots[kMatrices] = {}, slot_bytes[kMatrices] = {};
    int64_t bytes_in = 0, bytes_out = 0; // over the link
    double seconds = 0;                  // predicted

    int64_t bytes() const {
        return slots[kA] * slot_bytes[kA] + slots[kB] * slot_bytes[kB] + slots[kC] * slot_bytes[kC];
    }
};

// What the order is chosen for.
struct Rates {
    double in = 50e9, out = 50e9; // bytes per second
    double flops = 200e12;
    double step = 10e-6;   // seconds of any step besides
    double start = 0;      // and of the whole
    double contention = 0; // of the time for which copies go both ways, lost to each other in the host's memory

    bool operator==(const Rates &other) const {
        return in == other.in && out == other.out && flops == other.flops && step == other.step &&
               start == other.start && contention == other.contention;
    }
};

// Bytes of the smallest plan.
int64_t least_bytes(const Problem &problem, const Grid &grid);

// The fastest plan found for tiles first <= t < last that needs at most that many bytes, at least least_bytes(). Tiles
// count down the columns of C, matrix by matrix.
Plan make_plan(const Problem &problem, const Grid &grid, int64_t first, int64_t last, int64_t bytes,
               const Rates &rates);

// Plans of products with few steps are kept: to make one takes as long as a small product.
class Plans {
public:
    // What make_plan() gives; valid until the next call.
    const Plan &find(const Problem &problem, const Grid &grid, int64_t first, int64_t last, int64_t bytes,
                     const Rates &rates);

private:
    using Key = std::array<int64_t, 11>;
    struct Kept {
        Key key;
        Rates rates;
        Plan plan;
    };
    std::vector<Kept> kept_;
    size_t next_ = 0; // to be replaced
    Plan other_;
};

} // namespace pyblas::xt

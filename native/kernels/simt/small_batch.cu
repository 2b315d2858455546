// small_batch: whole products, several at work in a block. Their operands come to shared memory as they lie in global
// memory, so that neighbours in a batch without gaps are one stream for the loads, and are multiplied from quads, four
// k at a time. Two forms, for tiny products and for those that fill a warp:
//
//    packed: a block's products side by side            warps: each has a product in work and its next one on its way
//    +----+----+----+----+--           +----+----+      +---------+---------+
//    | A0 | A1 | A2 | A3 | ..  quads   | t0 | t2 | C0   | A  B    | A' B'   |  warp 0: 8 x 4 outputs a lane, nobody
//    +----+----+----+----+--   ----->  +----+----+      +---------+---------+  waits for another warp
//    | B0 | B1 | B2 | B3 | ..          | t1 | t3 |      | A  B    | A' B'   |  warp 1
//    +----+----+----+----+--           +----+----+      +---------+---------+
//
// packed: 128 threads of 4 x 4 outputs, 72 registers, at most 32 KB. warps: 128 threads, 165 registers, 72 KB; refuses
// devices with less. Both refuse m, n or k beyond their tile.
#include "kernel.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../device/divide.cuh"
#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/quads.cuh"

namespace pyblas {
namespace {

// TM x TN outputs of one product in each thread.
template <int BM_, int BN_, int BK_, int TM_, int TN_, int Resident_>
struct SmallTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
    static constexpr int kThreads = 128, kResident = Resident_;
    static_assert(TM % 4 == 0 && TN % 4 == 0, "quads of rows and columns");
};

// How the products share a block; the same for every block of a launch.
template <bool ContiguousM, bool ContiguousN>
struct Packing {
    QuadTile<ContiguousM> a;
    QuadTile<ContiguousN> b;
    int products;             // in one block
    int stride;               // floats of one product
    Divisor tiles_m, tiles_n; // threads down and across one product
    Divisor units_a, units_b; // copies for each stored column
    Divisor columns_a, columns_b;
    bool wide_a, wide_b; // four floats are one copy
    int64_t blocks;
};

// One operand of all products of the block.
template <int Width, int Threads, bool ContiguousX>
__device__ __forceinline__ void stage(float *smem, int stride, const QuadTile<ContiguousX> &tile,
                                      const Operand &operand, int64_t first, int products, const Divisor &units,
                                      const Divisor &columns, int rows_left, int columns_left) {
    const int all = products * units.value() * columns.value();
    for (int number = static_cast<int>(threadIdx.x); number < all; number += Threads) {
        int i = number;
        int j = units.split(&i);
        const int product = columns.split(&j);
        i *= Width;
        float *const target = smem + product * stride + tile.at(i, j);
        const float *const source = operand.matrix<const float>(first + product) + j * operand.ld + i;
        const bool valid = i < rows_left && j < columns_left;
        if constexpr (Width == 4)
            copy_quad(target, source, valid);
        else
            ptx::copy_async<4>(target, source, valid);
    }
}

// Where a thread's quads of rows and columns are in the product: the first ones, and how far the next ones.
struct Spot {
    int down, step_m, across, step_n;
};

template <bool ContiguousM, bool ContiguousN, int TM, int TN>
__device__ __forceinline__ void multiply(const QuadTile<ContiguousM> &a, const float *smem_a,
                                         const QuadTile<ContiguousN> &b, const float *smem_b, const Spot &spot,
                                         int depth, float (&acc)[TN][TM]) {
    for (int k = 0; k < depth; k += 4) {
        float frag_a[TM / 4][4][4], frag_b[4][TN];
#pragma unroll
        for (int quad = 0; quad < TM / 4; ++quad)
            a.read(smem_a, spot.down + quad * spot.step_m, k, frag_a[quad]);
#pragma unroll
        for (int quad = 0; quad < TN / 4; ++quad) {
            float four[4][4];
            b.read(smem_b, spot.across + quad * spot.step_n, k, four);
#pragma unroll
            for (int i = 0; i < 16; ++i)
                frag_b[i / 4][quad * 4 + i % 4] = four[i / 4][i % 4];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int column = 0; column < TN; ++column)
#pragma unroll
                for (int row = 0; row < TM; ++row)
                    acc[column][row] = fmaf(frag_a[row / 4][i][row % 4], frag_b[i][column], acc[column][row]);
    }
}

// Four rows at once where C's address, ld and edge allow.
template <int TM, int TN>
__device__ __forceinline__ void store(const Epilogue &epilogue, float *gmem_c, int64_t ld, int m, int n,
                                      const Spot &spot, const float (&acc)[TN][TM]) {
    const bool wide = reinterpret_cast<uintptr_t>(gmem_c) % 16 == 0 && ld % 4 == 0 && m % 4 == 0;
#pragma unroll
    for (int i = 0; i < TN; ++i) {
        const int column = 4 * (spot.across + i / 4 * spot.step_n) + i % 4;
        if (column >= n)
            continue;
#pragma unroll
        for (int quad = 0; quad < TM / 4; ++quad) {
            const int row = 4 * (spot.down + quad * spot.step_m);
            float *const c = gmem_c + column * ld + row;
            const float *const sum = &acc[i][4 * quad];
            if (wide) {
                if (row < m)
                    epilogue.store4(c, {sum[0], sum[1], sum[2], sum[3]});
            } else {
#pragma unroll
                for (int part = 0; part < 4; ++part)
                    if (row + part < m)
                        epilogue.store(c + part, sum[part]);
            }
        }
    }
}

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_batch_packed(__grid_constant__ const Problem problem,
                       __grid_constant__ const Packing<ContiguousM, ContiguousN> packing) {
    // place
    const int64_t block = block_number();
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (block >= packing.blocks || epilogue.idle())
        return;
    const int64_t first = block * packing.products;
    const int products = static_cast<int>(min(problem.batch - first, static_cast<int64_t>(packing.products)));
    const int m = static_cast<int>(problem.m), n = static_cast<int>(problem.n);
    const int depth = static_cast<int>(epilogue.depth());
    float *const smem_a = reinterpret_cast<float *>(dynamic_shared()), *const smem_b = smem_a + packing.a.floats();

    // load
    if (depth > 0) {
        const int rows_a = ContiguousM ? m : depth, columns_a = ContiguousM ? depth : m;
        const int rows_b = ContiguousN ? n : depth, columns_b = ContiguousN ? depth : n;
        const auto load_a = [&](auto width) {
            stage<width.value, Tile::kThreads>(smem_a, packing.stride, packing.a, problem.a, first, products,
                                               packing.units_a, packing.columns_a, rows_a, columns_a);
        };
        const auto load_b = [&](auto width) {
            stage<width.value, Tile::kThreads>(smem_b, packing.stride, packing.b, problem.b, first, products,
                                               packing.units_b, packing.columns_b, rows_b, columns_b);
        };
        using One = std::integral_constant<int, 1>;
        using Four = std::integral_constant<int, 4>;
        packing.wide_a ? load_a(Four{}) : load_a(One{});
        packing.wide_b ? load_b(Four{}) : load_b(One{});
        ptx::commit_copies();
        ptx::wait_copies<0>();
        __syncthreads();
    }

    const int tiles = packing.tiles_m.value() * packing.tiles_n.value() * products;
    for (int number = static_cast<int>(threadIdx.x); number < tiles; number += Tile::kThreads) {
        int down = number;
        int across = packing.tiles_m.split(&down);
        const int product = packing.tiles_n.split(&across);
        const Spot spot{down, packing.tiles_m.value(), across, packing.tiles_n.value()};
        float acc[Tile::TN][Tile::TM] = {};
        multiply(packing.a, smem_a + product * packing.stride, packing.b, smem_b + product * packing.stride, spot,
                 depth, acc);
        store(epilogue, problem.c.matrix(first + product), problem.c.ld, m, n, spot, acc);
    }
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Packing<ContiguousM, ContiguousN> pack(const Problem &problem) {
    // Small blocks keep many of them on a multiprocessor.
    constexpr int kFloats = 8 * 1024;
    const auto whole_tiles = [](int64_t extent, int side) {
        return (static_cast<int>(extent) + side - 1) / side * side;
    };
    Packing<ContiguousM, ContiguousN> packing;
    const int m = whole_tiles(problem.m, Tile::TM), n = whole_tiles(problem.n, Tile::TN);
    const int k = std::max(4, whole_quads(static_cast<int>(problem.k)));
    packing.a = {m, k};
    packing.b = {n, k};
    const int floats = packing.a.floats() + packing.b.floats();
    packing.stride = floats + (floats / 4 % 2 ? 0 : 4); // odd quads: neighbours' reads go to other banks
    packing.tiles_m = Divisor(m / Tile::TM);
    packing.tiles_n = Divisor(n / Tile::TN);
    const int threads = packing.tiles_m.value() * packing.tiles_n.value();
    packing.products = std::max(1, std::min((Tile::kThreads + threads - 1) / threads, kFloats / packing.stride));
    packing.products = static_cast<int>(std::min<int64_t>(packing.products, problem.batch));
    const auto wide = [](int64_t length, const Operand &operand) { return length % 4 == 0 && operand.ld % 4 == 0; };
    packing.wide_a = wide(ContiguousM ? problem.m : problem.k, problem.a);
    packing.wide_b = wide(ContiguousN ? problem.n : problem.k, problem.b);
    packing.units_a = Divisor(packing.a.length() / (packing.wide_a ? 4 : 1));
    packing.units_b = Divisor(packing.b.length() / (packing.wide_b ? 4 : 1));
    packing.columns_a = Divisor(packing.a.columns());
    packing.columns_b = Divisor(packing.b.columns());
    packing.blocks = (problem.batch + packing.products - 1) / packing.products;
    return packing;
}

// ---- a product to a warp ------------------------------------------------------------------------------

// One operand into a tile with fixed sides.
template <bool ContiguousX>
__device__ __forceinline__ void copy_tile(float *smem, const QuadTile<ContiguousX> &tile, const float *source,
                                          int64_t ld, int rows, int columns, int lane) {
    const int side = tile.x;
    if (reinterpret_cast<uintptr_t>(source) % 16 == 0 && ld % 4 == 0 && rows % 4 == 0) {
        const int across = side / 4, step = 32 / across;
        const int i = lane % across * 4, first = lane / across;
        source += first * ld + i;
#pragma unroll
        for (int j = 0; j < side; j += step, source += step * ld)
            ptx::copy_async<16>(smem + tile.at(i, first + j), source, i < rows && first + j < columns);
    } else {
#pragma unroll 1
        for (int number = lane; number < side * side; number += 32) {
            const int i = number % side, j = number / side;
            ptx::copy_async<4>(smem + tile.at(i, j), source + j * ld + i, i < rows && j < columns);
        }
    }
}

// Floats of one product.
template <class Tile, bool ContiguousM, bool ContiguousN>
PYBLAS_HOST_DEVICE constexpr int product_floats() {
    return QuadTile<ContiguousM>{Tile::BM, Tile::BK}.floats() + QuadTile<ContiguousN>{Tile::BN, Tile::BK}.floats();
}

template <class Tile, bool ContiguousM, bool ContiguousN>
constexpr int warps_bytes() {
    return 4 * 2 * (Tile::kThreads / 32) * product_floats<Tile, ContiguousM, ContiguousN>();
}

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_batch_warps(__grid_constant__ const Problem problem, int64_t warps) {
    constexpr QuadTile<ContiguousM> kTileA{Tile::BM, Tile::BK};
    constexpr QuadTile<ContiguousN> kTileB{Tile::BN, Tile::BK};
    constexpr int kFloats = product_floats<Tile, ContiguousM, ContiguousN>();
    constexpr int kLanesM = Tile::BM / Tile::TM, kLanesN = Tile::BN / Tile::TN;
    static_assert(kLanesM * kLanesN == 32 && Tile::BM == Tile::BK && Tile::BN == Tile::BK, "lanes tile the square");

    // place
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int m = static_cast<int>(problem.m), n = static_cast<int>(problem.n);
    const int depth = static_cast<int>(epilogue.depth());
    const Spot spot{lane % kLanesM, kLanesM, lane / kLanesM, kLanesN};
    float *const smem = reinterpret_cast<float *>(dynamic_shared()) + warp * 2 * kFloats;

    const auto load = [&](int64_t product, float *target) {
        if (depth > 0 && product < problem.batch) {
            copy_tile(target, kTileA, problem.a.matrix<const float>(product), problem.a.ld, ContiguousM ? m : depth,
                      ContiguousM ? depth : m, lane);
            copy_tile(target + kTileA.floats(), kTileB, problem.b.matrix<const float>(product), problem.b.ld,
                      ContiguousN ? n : depth, ContiguousN ? depth : n, lane);
        }
        ptx::commit_copies(); // an empty group keeps the count
    };

    // load: the first product, then always the next one before this one is multiplied
    int64_t product = block_number() * (Tile::kThreads / 32) + warp;
    int current = 0;
    load(product, smem);
    for (; product < problem.batch; product += warps) {
        load(product + warps, smem + (current ^ 1) * kFloats);
        ptx::wait_copies<1>();
        __syncwarp();

        // multiply, store
        const float *const smem_a = smem + current * kFloats;
        float acc[Tile::TN][Tile::TM] = {};
        multiply(kTileA, smem_a, kTileB, smem_a + kTileA.floats(), spot, depth, acc);
        store(epilogue, problem.c.matrix(product), problem.c.ld, m, n, spot, acc);

        // advance: no lane may still read what the next load overwrites
        __syncwarp();
        current ^= 1;
    }
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    return problem.m > Tile::BM || problem.n > Tile::BN || problem.k > Tile::BK
               ? "m, n or k is larger than the tile that the kernel computes at once"
               : nullptr;
}

template <class Tile>
const char *refuses_warps(const Problem &problem, const Device &device) {
    if (warps_bytes<Tile, false, false>() > device.shared_per_block)
        return "the device has too little shared memory per block";
    return refuses<Tile>(problem, device);
}

// What a product costs: its bytes, its multiply-adds, and its copies to shared memory, one by one or four at once.
struct Work {
    double bytes, flops, copies;
};

template <class Tile>
Work work(const Problem &problem, double staged_m, double staged_n, double staged_k) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k);
    const auto copies = [](double floats, int64_t length, const Operand &operand) {
        return length % 4 == 0 && operand.ld % 4 == 0 ? floats / 4 : floats;
    };
    const double written = problem.beta.known() && problem.beta.value == 0 ? 1 : 2;
    return {4 * (m * k + k * n + written * m * n),
            2 * std::ceil(m / Tile::TM) * Tile::TM * std::ceil(n / Tile::TN) * Tile::TN * (k + 4),
            copies(staged_m * staged_k, problem.transa == Op::N ? problem.m : problem.k, problem.a) +
                copies(staged_n * staged_k, problem.transb == Op::T ? problem.n : problem.k, problem.b)};
}

template <class Tile>
double cost_packed(const Problem &problem, const Device &device) {
    const auto quads = [](int64_t extent) { return 4 * std::ceil(static_cast<double>(extent) / 4); };
    const Work each = work<Tile>(problem, quads(problem.m), quads(problem.n), quads(problem.k));
    constexpr double kCopy = 0.33e-9;                     // seconds on a multiprocessor
    const double packed = problem.batch > 1 ? 1.4e-6 : 0; // products side by side wait for each other
    return kStartSeconds + packed +
           static_cast<double>(problem.batch) *
               std::max({each.bytes / (0.8 * device.bandwidth), each.flops / (0.25 * device.fp32_flops),
                         each.copies * kCopy / device.multiprocessors});
}

template <class Tile>
double cost_warps(const Problem &problem, const Device &device) {
    const Work each = work<Tile>(problem, Tile::BM, Tile::BN, Tile::BK);
    constexpr double kProduct = 45e-9, kCopy = 0.24e-9; // seconds on a multiprocessor
    const double packed = problem.batch > 1 ? 1.4e-6 : 0;
    return kStartSeconds + packed +
           static_cast<double>(problem.batch) *
               std::max({each.bytes / (0.93 * device.bandwidth), each.flops / (0.4 * device.fp32_flops),
                         (kProduct + each.copies * kCopy) / device.multiprocessors});
}

template <class Tile>
struct Packed {
    template <bool ContiguousM, bool ContiguousN>
    static Status start(const Problem &problem, const Launch &launch_on) {
        const auto packing = pack<Tile, ContiguousM, ContiguousN>(problem);
        PYBLAS_TRY((allow_shared<small_batch_packed<Tile, ContiguousM, ContiguousN>>(kSharedWithoutOptIn)));
        return launch<small_batch_packed<Tile, ContiguousM, ContiguousN>>(
            {packing.blocks, Tile::kThreads, packing.products * packing.stride * 4, launch_on.stream,
             launch_on.device->starts_early},
            problem, packing);
    }
};

template <class Tile>
struct Warps {
    template <bool ContiguousM, bool ContiguousN>
    static Status start(const Problem &problem, const Launch &launch_on) {
        constexpr int kBytes = warps_bytes<Tile, ContiguousM, ContiguousN>();
        const int64_t blocks = std::min<int64_t>((problem.batch + (Tile::kThreads / 32) - 1) / (Tile::kThreads / 32),
                                                 int64_t{Tile::kResident} * launch_on.device->multiprocessors);
        PYBLAS_TRY((allow_shared<small_batch_warps<Tile, ContiguousM, ContiguousN>>(kBytes)));
        return launch<small_batch_warps<Tile, ContiguousM, ContiguousN>>(
            {blocks, Tile::kThreads, kBytes, launch_on.stream, launch_on.device->starts_early}, problem,
            blocks * (Tile::kThreads / 32));
    }
};

template <class Form>
Status launch_small_batch(const Problem &problem, const Launch &launch_on) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? Form::template start<true, true>(problem, launch_on)
                                       : Form::template start<true, false>(problem, launch_on);
    return problem.transb == Op::T ? Form::template start<false, true>(problem, launch_on)
                                   : Form::template start<false, false>(problem, launch_on);
}

using PackedTile = SmallTile<32, 32, 64, 4, 4, 7>;
using WarpsTile = SmallTile<32, 32, 32, 8, 4, 3>;

constexpr Footprint kPackedFootprint{PackedTile::kThreads, PackedTile::kResident, kSharedWithoutOptIn};
constexpr Footprint kWarpsFootprint{WarpsTile::kThreads, WarpsTile::kResident, warps_bytes<WarpsTile, false, false>()};

constexpr Kernel kRows[] = {
    {"small_batch_32x32x64", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses<PackedTile>, nullptr,
     cost_packed<PackedTile>, launch_small_batch<Packed<PackedTile>>, false, kPackedFootprint},
    {"small_batch_32x32x32", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses_warps<WarpsTile>, nullptr,
     cost_warps<WarpsTile>, launch_small_batch<Warps<WarpsTile>>, false, kWarpsFootprint},
};

} // namespace

KernelRows small_batch_rows() {
    return rows(kRows);
}

} // namespace pyblas

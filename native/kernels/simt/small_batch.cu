// small_batch: whole products, several to a block. Their operands come to shared memory as they lie in global memory -
// neighbours in a batch without gaps are one stream for the loads - and every thread then makes TM x TN outputs of one
// product from quads, four k at a time.
//
//      shared memory                       a product of up to BM x BN outputs
//    +----+----+----+----+--               +----+----+----+
//    | A0 | A1 | A2 | A3 | ..  ---quads--> | t0 | t2 | t4 |   threads of the next product follow at once: whatever m
//    +----+----+----+----+--               +----+----+----+   and n are, no lane waits
//    | B0 | B1 | B2 | B3 | ..              | t1 | t3 | t5 |
//    +----+----+----+----+--               +----+----+----+
//
// 128 threads, at most 48 KB. Many small blocks on a multiprocessor let one's loads pass during another's multiply.
// Refuses m, n or k beyond its tile.
#include "kernel.hpp"

#include <algorithm>

#include "../device/divide.cuh"
#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/quads.cuh"

namespace pyblas {
namespace {

template <int BM_, int BN_, int TM_, int TN_, int Resident_>
struct SmallTile {
    static constexpr int BM = BM_, BN = BN_, BK = 64, TM = TM_, TN = TN_;
    static constexpr int kThreads = 128, kResident = Resident_;
    static_assert(TM % 4 == 0 && (TN == 1 || TN % 4 == 0), "quads of rows, quads of columns or one");
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

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_batch(__grid_constant__ const Problem problem,
                __grid_constant__ const Packing<ContiguousM, ContiguousN> packing) {
    // place
    const int64_t block = block_number();
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

        // multiply
        float acc[Tile::TN][Tile::TM] = {};
        const float *const tile_a = smem_a + product * packing.stride, *const tile_b =
                                                                           smem_b + product * packing.stride;
        for (int k = 0; k < depth; k += 4) {
            float frag_a[Tile::TM / 4][4][4], frag_b[4][Tile::TN];
#pragma unroll
            for (int quad = 0; quad < Tile::TM / 4; ++quad)
                packing.a.read(tile_a, down + quad * packing.tiles_m.value(), k, frag_a[quad]);
            if constexpr (Tile::TN == 1) {
                float four[4];
                packing.b.read_one(tile_b, across, k, four);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    frag_b[i][0] = four[i];
            } else {
#pragma unroll
                for (int quad = 0; quad < Tile::TN / 4; ++quad) {
                    float four[4][4];
                    packing.b.read(tile_b, across + quad * packing.tiles_n.value(), k, four);
#pragma unroll
                    for (int i = 0; i < 16; ++i)
                        frag_b[i / 4][quad * 4 + i % 4] = four[i / 4][i % 4];
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int column = 0; column < Tile::TN; ++column)
#pragma unroll
                    for (int row = 0; row < Tile::TM; ++row)
                        acc[column][row] = fmaf(frag_a[row / 4][i][row % 4], frag_b[i][column], acc[column][row]);
        }

        // store: four rows at once where C's address, ld and edge allow
        float *const gmem_c = problem.c.matrix(first + product);
        const bool wide = reinterpret_cast<uintptr_t>(gmem_c) % 16 == 0 && problem.c.ld % 4 == 0 && m % 4 == 0;
#pragma unroll
        for (int i = 0; i < Tile::TN; ++i) {
            const int column = Tile::TN == 1 ? across : 4 * (across + i / 4 * packing.tiles_n.value()) + i % 4;
            if (column >= n)
                continue;
#pragma unroll
            for (int quad = 0; quad < Tile::TM / 4; ++quad) {
                const int row = 4 * (down + quad * packing.tiles_m.value());
                float *const c = gmem_c + column * problem.c.ld + row;
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
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Packing<ContiguousM, ContiguousN> pack(const Problem &problem) {
    // Blocks of a few KB keep many of them on a multiprocessor.
    constexpr int kFloats = 4 * 1024;
    const auto whole_tiles = [](int64_t extent, int side) {
        return (static_cast<int>(extent) + side - 1) / side * side;
    };
    Packing<ContiguousM, ContiguousN> packing;
    const int m = whole_tiles(problem.m, Tile::TM), n = whole_tiles(problem.n, Tile::TN);
    const int k = std::max(4, whole_quads(static_cast<int>(problem.k)));
    packing.a = {m, k};
    packing.b = {whole_quads(n), k};
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

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    return problem.m > Tile::BM || problem.n > Tile::BN || problem.k > Tile::BK
               ? "m, n or k is larger than the tile that the kernel computes at once"
               : nullptr;
}

// Products pass at the rate of the slowest of three: their bytes, their multiply-adds, their copies to shared memory.
template <class Tile>
double cost(const Problem &problem, const Device &device) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const double bytes = 4 * (m * k + k * n + m * n);
    const double flops = 2 * std::ceil(m / Tile::TM) * Tile::TM * std::ceil(n / Tile::TN) * Tile::TN * (k + 4);
    const double share = std::min(1.0, batch / (8 * device.multiprocessors));
    return device.launch_seconds + 2e-6 +
           batch / share * std::max(bytes / (0.75 * device.bandwidth), flops / (0.5 * device.fp32_flops));
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    const auto packing = pack<Tile, ContiguousM, ContiguousN>(problem);
    PYBLAS_TRY((allow_shared<small_batch<Tile, ContiguousM, ContiguousN>>(kSharedWithoutOptIn)));
    return launch<small_batch<Tile, ContiguousM, ContiguousN>>(
        {packing.blocks, Tile::kThreads, packing.products * packing.stride * 4, launch_on.stream}, problem, packing);
}

template <class Tile>
Status launch_small_batch(const Problem &problem, const Launch &launch_on) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? start<Tile, true, true>(problem, launch_on)
                                       : start<Tile, true, false>(problem, launch_on);
    return problem.transb == Op::T ? start<Tile, false, true>(problem, launch_on)
                                   : start<Tile, false, false>(problem, launch_on);
}

using Tile16 = SmallTile<16, 16, 4, 1, 10>;
using Tile32 = SmallTile<32, 32, 4, 4, 8>;
using Tile64 = SmallTile<64, 64, 8, 4, 5>;

constexpr Kernel kRows[] = {
    {"small_batch_16x16x64", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses<Tile16>, nullptr, cost<Tile16>,
     launch_small_batch<Tile16>},
    {"small_batch_32x32x64", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses<Tile32>, nullptr, cost<Tile32>,
     launch_small_batch<Tile32>},
    {"small_batch_64x64x64", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses<Tile64>, nullptr, cost<Tile64>,
     launch_small_batch<Tile64>},
};

} // namespace

KernelRows small_batch_rows() {
    return rows(kRows);
}

} // namespace pyblas

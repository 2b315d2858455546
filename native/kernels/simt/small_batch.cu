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
#include "cost.hpp"
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

template <int Unroll, bool ContiguousM, bool ContiguousN, int TM, int TN>
__device__ __forceinline__ void multiply(const QuadTile<ContiguousM> &a, const float *smem_a,
                                         const QuadTile<ContiguousN> &b, const float *smem_b, const Spot &spot,
                                         int depth, float (&acc)[TN][TM]) {
#pragma unroll Unroll
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
    const auto each_quad = [&](auto visit) {
#pragma unroll
        for (int i = 0; i < TN; ++i) {
            const int column = 4 * (spot.across + i / 4 * spot.step_n) + i % 4;
            float *const c = gmem_c + column * ld + 4 * spot.down;
#pragma unroll
            for (int quad = 0; quad < TM / 4; ++quad) {
                const int row = 4 * (spot.down + quad * spot.step_m);
                if (column < n && row < m)
                    visit(c + 4 * quad * spot.step_m, m - row, &acc[i][4 * quad]);
            }
        }
    };
    if (wide && !epilogue.reads_c())
        each_quad([&](float *c, int, const float *sum) { epilogue.put4(c, {sum[0], sum[1], sum[2], sum[3]}); });
    else if (wide)
        each_quad([&](float *c, int, const float *sum) { epilogue.store4(c, {sum[0], sum[1], sum[2], sum[3]}); });
    else
        each_quad([&](float *c, int left, const float *sum) {
#pragma unroll
            for (int part = 0; part < 4; ++part)
                if (part < left)
                    epilogue.store(c + part, sum[part]);
        });
}

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_batch_packed(__grid_constant__ const Problem problem,
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
        const Spot spot{down, packing.tiles_m.value(), across, packing.tiles_n.value()};
        float acc[Tile::TN][Tile::TM] = {};
        multiply<1>(packing.a, smem_a + product * packing.stride, packing.b, smem_b + product * packing.stride, spot,
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

// Asks for the lines of one product's operand, before the kernel ahead has ended.
template <bool ContiguousX>
__device__ __forceinline__ void prefetch_operand(const Operand &operand, int64_t product, int64_t x, int64_t k,
                                                 int thread, int threads) {
    prefetch_columns(operand.matrix<const float>(product), operand.ld, static_cast<int>(ContiguousX ? x : k),
                     static_cast<int>(ContiguousX ? k : x), thread, threads);
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
    small_batch_warps(__grid_constant__ const Problem problem, int64_t warps, bool asks_early) {
    constexpr QuadTile<ContiguousM> kTileA{Tile::BM, Tile::BK};
    constexpr QuadTile<ContiguousN> kTileB{Tile::BN, Tile::BK};
    constexpr int kFloats = product_floats<Tile, ContiguousM, ContiguousN>();
    constexpr int kLanesM = Tile::BM / Tile::TM, kLanesN = Tile::BN / Tile::TN;
    static_assert(kLanesM * kLanesN == 32 && Tile::BM == Tile::BK && Tile::BN == Tile::BK, "lanes tile the square");

    // place
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    int64_t product = block_number() * (Tile::kThreads / 32) + warp;
    if (asks_early && product < problem.batch) {
        prefetch_operand<ContiguousM>(problem.a, product, problem.m, problem.k, lane, 32);
        prefetch_operand<ContiguousN>(problem.b, product, problem.n, problem.k, lane, 32);
    }
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
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
    int current = 0;
    load(product, smem);
    for (; product < problem.batch; product += warps) {
        load(product + warps, smem + (current ^ 1) * kFloats);
        if (product + warps >= problem.batch)
            ptx::launch_dependents();
        ptx::wait_copies<1>();
        __syncwarp();

        // multiply, store
        const float *const smem_a = smem + current * kFloats;
        float acc[Tile::TN][Tile::TM] = {};
        multiply<1>(kTileA, smem_a, kTileB, smem_a + kTileA.floats(), spot, depth, acc);
        store(epilogue, problem.c.matrix(product), problem.c.ld, m, n, spot, acc);

        // advance: no lane may still read what the next load overwrites
        __syncwarp();
        current ^= 1;
    }
}

// ---- a product to a block -----------------------------------------------------------------------------

// Up to BM x BN outputs, 8 x 8 in each thread, and BK of k; Stage of it at a time through a ring in shared memory.
template <int BM_, int BN_, int BK_, int Threads_, int Stage_, int Ring_, int Resident_, int Unroll_, bool AsksEarly>
struct RingTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = 8, TN = 8;
    static constexpr int kThreads = Threads_, kStage = Stage_, kRing = Ring_, kResident = Resident_, kUnroll = Unroll_;
    static constexpr bool kAsksEarly = AsksEarly; // for its first product, before the kernel ahead has ended

    template <bool ContiguousM, bool ContiguousN>
    PYBLAS_HOST_DEVICE static constexpr int stage_floats() {
        return QuadTile<ContiguousM>{BM, kStage}.floats() + QuadTile<ContiguousN>{BN, kStage}.floats();
    }
    template <bool ContiguousM, bool ContiguousN>
    static constexpr int bytes() {
        return 4 * kRing * stage_floats<ContiguousM, ContiguousN>();
    }
};

// One operand's stages on their way to shared memory. A thread stays at its place in the stored columns, and its next
// column is as far away as the one before.
template <int X, int K, int Threads, bool ContiguousX>
class RingStream {
public:
    // x_used of x are read later on, those beyond the product as zeros.
    __device__ __forceinline__ explicit RingStream(int64_t ld, int x_used) : ld_(ld), x_used_(x_used) {}

    // The next stages come from this product's matrix.
    __device__ __forceinline__ void begin(const float *matrix, int x_left) {
        source_ = matrix;
        x_left_ = x_left;
        wide_ = reinterpret_cast<uintptr_t>(matrix) % 16 == 0 && ld_ % 4 == 0 && (!ContiguousX || x_left % 4 == 0);
    }

    // Issues the copies of the next stage, k of it in the operand.
    __device__ __forceinline__ void next(float *tile, int k) {
        constexpr QuadTile<ContiguousX> kTile{X, K};
        constexpr int kAcross = kTile.length() / 4, kStep = Threads / kAcross;
        constexpr int kTrips = (kTile.columns() + kStep - 1) / kStep;
        static_assert(Threads % kAcross == 0 && (ContiguousX || kStep % 4 == 0), "a thread stays at its place");
        const int thread = static_cast<int>(threadIdx.x);
        if (wide_ && k % 4 == 0) {
            const int i = thread % kAcross * 4, first = thread / kAcross;
            const float *source = source_ + first * ld_ + i;
            float *const target = tile + kTile.at(i, first);
            const int x = ContiguousX ? i : first, column_end = ContiguousX ? k : x_used_;
            if (i < (ContiguousX ? x_used_ : k))
#pragma unroll
                for (int trip = 0; trip < kTrips; ++trip, source += kStep * ld_)
                    if (first + trip * kStep < column_end)
                        ptx::copy_async<16>(target + trip * (ContiguousX ? kStep : kStep / 4) * kTile.row(), source,
                                            x + (ContiguousX ? 0 : trip * kStep) < x_left_);
        } else {
            constexpr int kLength = kTile.length();
            const int columns = ContiguousX ? whole_quads(k) : x_used_;
#pragma unroll 1
            for (int number = thread; number < kLength * columns; number += Threads) {
                const int i = number % kLength, j = number / kLength;
                ptx::copy_async<4>(tile + kTile.at(i, j), source_ + j * ld_ + i,
                                   ContiguousX ? i < x_left_ && j < k : i < k && j < x_left_);
            }
        }
        source_ += K * (ContiguousX ? ld_ : 1);
    }

private:
    const float *source_ = nullptr;
    int64_t ld_;
    int x_used_, x_left_ = 0;
    bool wide_ = false;
};

// How blocks and threads share the products; the last one may be smaller than the others.
struct Rounds {
    int64_t blocks;
    int tiles_m, tiles_n; // threads down and across one product
    int last_m, last_n;
    bool asks_early;
};

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_batch_ring(__grid_constant__ const Problem problem, __grid_constant__ const Rounds rounds) {
    constexpr QuadTile<ContiguousM> kTileA{Tile::BM, Tile::kStage};
    constexpr QuadTile<ContiguousN> kTileB{Tile::BN, Tile::kStage};
    using StreamA = RingStream<Tile::BM, Tile::kStage, Tile::kThreads, ContiguousM>;
    using StreamB = RingStream<Tile::BN, Tile::kStage, Tile::kThreads, ContiguousN>;
    constexpr int kStageFloats = Tile::template stage_floats<ContiguousM, ContiguousN>();

    // place
    const int thread = static_cast<int>(threadIdx.x);
    if (rounds.asks_early && block_number() + 1 < problem.batch) { // the last product may be smaller
        prefetch_operand<ContiguousM>(problem.a, block_number(), problem.m, problem.k, thread, Tile::kThreads);
        prefetch_operand<ContiguousN>(problem.b, block_number(), problem.n, problem.k, thread, Tile::kThreads);
    }
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const auto rows = [&](int64_t product) {
        return product + 1 == problem.batch ? rounds.last_m : static_cast<int>(problem.m);
    };
    const auto columns = [&](int64_t product) {
        return product + 1 == problem.batch ? rounds.last_n : static_cast<int>(problem.n);
    };
    const int depth = static_cast<int>(epilogue.depth());
    const Spot spot{thread % rounds.tiles_m, rounds.tiles_m, thread / rounds.tiles_m, rounds.tiles_n};
    const bool works = spot.across < rounds.tiles_n;
    float *const smem = reinterpret_cast<float *>(dynamic_shared());

    // The copies run ahead of the multiply by a ring, from one product into the next.
    StreamA stream_a(problem.a.ld, rounds.tiles_m * Tile::TM);
    StreamB stream_b(problem.b.ld, rounds.tiles_n * Tile::TN);
    int64_t ahead = block_number();
    int k_left = 0; // of the product ahead, not yet asked for
    const auto begin = [&] {
        if (depth > 0 && ahead < problem.batch) {
            k_left = depth;
            stream_a.begin(problem.a.matrix<const float>(ahead), rows(ahead));
            stream_b.begin(problem.b.matrix<const float>(ahead), columns(ahead));
        }
    };
    const auto load = [&](float *stage) {
        if (k_left > 0) {
            const int k = min(k_left, Tile::kStage);
            stream_a.next(stage, k);
            stream_b.next(stage + kTileA.floats(), k);
            k_left -= k;
            if (k_left == 0) {
                ahead += rounds.blocks;
                begin();
            }
        }
        ptx::commit_copies(); // an empty group keeps the count
    };
    begin();
#pragma unroll 1
    for (int stage = 0; stage < Tile::kRing - 1; ++stage)
        load(smem + stage * kStageFloats);

    int read = 0;
    for (int64_t product = block_number(); product < problem.batch; product += rounds.blocks) {
        float acc[Tile::TN][Tile::TM] = {};
#pragma unroll 1
        for (int left = depth; left > 0; left -= Tile::kStage) {
            // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
            ptx::wait_copies<Tile::kRing - 2>();
            __syncthreads();
            load(smem + (read == 0 ? Tile::kRing - 1 : read - 1) * kStageFloats);
            const float *const smem_a = smem + read * kStageFloats, *const smem_b = smem_a + kTileA.floats();
            if (Tile::kUnroll > 1 && works && left >= Tile::kStage)
                multiply<Tile::kUnroll>(kTileA, smem_a, kTileB, smem_b, spot, Tile::kStage, acc);
            else if (works)
                multiply<1>(kTileA, smem_a, kTileB, smem_b, spot, min(left, Tile::kStage), acc);
            read = read + 1 == Tile::kRing ? 0 : read + 1;
        }
        if (ahead >= problem.batch)
            ptx::launch_dependents();
        if (works)
            store(epilogue, problem.c.matrix(product), problem.c.ld, rows(product), columns(product), spot, acc);
    }
}

// Addresses that are asked for before the kernel ahead has ended must be sure to be right: the host's, and read.
bool asks_early(const Problem &problem, const Device &device) {
    return device.starts_early && !problem.a.array && problem.alpha.known() && problem.alpha.value != 0.0f;
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

// Whether an operand's stored columns are copied four floats at once.
bool in_quads(int64_t length, const Operand &operand) {
    return length % 4 == 0 && operand.ld % 4 == 0;
}

// Copies to shared memory of so many floats of A and B.
void copy(Work *work, const Problem &problem, double floats_a, double floats_b) {
    const auto count = [&](double floats, bool quads) {
        (quads ? work->copies : work->narrow) += quads ? floats / 4 : floats;
    };
    count(floats_a, in_quads(problem.transa == Op::N ? problem.m : problem.k, problem.a));
    count(floats_b, in_quads(problem.transb == Op::T ? problem.n : problem.k, problem.b));
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Work packed_work(const Problem &problem, const Device &device) {
    const auto packing = pack<Tile, ContiguousM, ContiguousN>(problem);
    const double products = packing.products;
    const double threads = products * packing.tiles_m.value() * packing.tiles_n.value();
    const double rounds = std::ceil(threads / Tile::kThreads);
    const int bytes = packing.products * packing.stride * 4;
    Work work;
    work.spread(static_cast<double>(packing.blocks),
                std::max(1, std::min((device.shared_per_block + 1024) / (bytes + 1024), Tile::kResident)), device);
    work.move(problem);
    work.steps = rounds * static_cast<double>(problem.k);
    work.flops = 2.0 * Tile::kThreads * Tile::TM * Tile::TN * work.steps;
    copy(&work, problem, products * packing.a.floats(), products * packing.b.floats());
    work.trips = (work.copies + work.narrow) / Tile::kThreads;
    work.single = problem.c.ld % 4 != 0 ? rounds : 0;
    return work;
}

template <class Tile>
Work work_packed(const Problem &problem, const Device &device) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? packed_work<Tile, true, true>(problem, device)
                                       : packed_work<Tile, true, false>(problem, device);
    return problem.transb == Op::T ? packed_work<Tile, false, true>(problem, device)
                                   : packed_work<Tile, false, false>(problem, device);
}

// A warp's product, as if it were a block.
template <class Tile>
Work work_warps(const Problem &problem, const Device &device) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k);
    Work work;
    work.spread(static_cast<double>(problem.batch), Tile::kResident * Tile::kThreads / 32, device);
    work.blocks = std::min(work.blocks / (Tile::kThreads / 32.0), 1.0 * Tile::kResident * device.multiprocessors);
    work.move(problem);
    work.steps = k;
    work.flops = 2.0 * Tile::BM * Tile::BN * k;
    copy(&work, problem, Tile::BM * Tile::BK, Tile::BN * Tile::BK);
    work.trips = work.narrow / 32;
    work.bytes = 4 * (m * k + n * k + m * n);
    if (problem.c.ld % 4 != 0)
        work.single = std::min(1.0, m / Tile::TM) * std::min(1.0, n / Tile::TN);
    return work;
}

template <class Tile>
struct Packed {
    template <bool ContiguousM, bool ContiguousN>
    static Status start(const Problem &problem, const Launch &launch_on) {
        const auto packing = pack<Tile, ContiguousM, ContiguousN>(problem);
        PYBLAS_TRY((allow_shared<small_batch_packed<Tile, ContiguousM, ContiguousN>>(kSharedWithoutOptIn)));
        return launch<small_batch_packed<Tile, ContiguousM, ContiguousN>>(
            {packing.blocks, Tile::kThreads, packing.products * packing.stride * 4, launch_on.stream}, problem,
            packing);
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
            blocks * (Tile::kThreads / 32), asks_early(problem, *launch_on.device));
    }
};

template <class Tile>
int tiles_of(int64_t extent) {
    return static_cast<int>((extent + Tile::TM - 1) / Tile::TM);
}

// One product with a long side, as a batch of pieces of it.
template <class Tile>
Problem in_pieces(const Problem &problem, Rounds *rounds) {
    Problem pieces = problem;
    rounds->last_m = static_cast<int>(std::min<int64_t>(problem.m, Tile::BM));
    rounds->last_n = static_cast<int>(std::min<int64_t>(problem.n, Tile::BN));
    if (problem.batch > 1 || problem.c.array)
        return pieces;
    const auto cut = [&](int64_t *extent, int side, int *last, Operand *operand, bool contiguous, int64_t step_c) {
        if (*extent <= side)
            return;
        pieces.batch = (*extent + side - 1) / side;
        *last = static_cast<int>(*extent - (pieces.batch - 1) * side);
        *extent = side;
        pieces.a.stride = pieces.b.stride = 0;
        operand->stride = side * (contiguous ? 1 : operand->ld);
        pieces.c.stride = side * step_c;
    };
    cut(&pieces.m, Tile::BM, &rounds->last_m, &pieces.a, problem.transa == Op::N, 1);
    cut(&pieces.n, Tile::BN, &rounds->last_n, &pieces.b, problem.transb == Op::T, problem.c.ld);
    return pieces;
}

template <class Tile>
const char *refuses_ring(const Problem &asked, const Device &device) {
    if (Tile::template bytes<false, false>() > device.shared_per_block)
        return "the device has too little shared memory per block";
    if (asked.m > Tile::BM && asked.n > Tile::BN)
        return "m and n are both larger than its tile";
    Rounds rounds;
    const Problem problem = in_pieces<Tile>(asked, &rounds);
    if (const char *reason = refuses<Tile>(problem, device))
        return reason;
    return tiles_of<Tile>(problem.m) * tiles_of<Tile>(problem.n) > Tile::kThreads
               ? "m and n together have more outputs than its threads hold"
               : nullptr;
}

// Blocks that one multiprocessor has room for.
template <class Tile>
int blocks_that_fit(const Device &device, int bytes) {
    return std::max(1, std::min((device.shared_per_block + 1024) / (bytes + 1024), Tile::kResident));
}

// A product's stages, as if it were a block; the ring hides all but the last of them.
template <class Tile>
Work work_ring(const Problem &asked, const Device &device) {
    Rounds rounds;
    const Problem problem = in_pieces<Tile>(asked, &rounds);
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k);
    const double tiles_m = tiles_of<Tile>(problem.m), tiles_n = tiles_of<Tile>(problem.n);
    const double stages = std::ceil(k / Tile::kStage);
    const double warps = std::min(Tile::kThreads / 32.0, tiles_m * tiles_n); // at work
    const auto staged = [&](bool contiguous, int side, double tiles) {       // floats, padding included
        return contiguous ? side * 4 * std::ceil(k / 4) : stages * Tile::kStage * tiles * Tile::TM;
    };
    Work work;
    work.spread(static_cast<double>(problem.batch), blocks_that_fit<Tile>(device, Tile::template bytes<false, false>()),
                device);
    work.blocks = std::min(work.blocks, work.resident * device.multiprocessors);
    work.move(asked);
    work.steps = k;
    work.folds = std::max(0.0, stages - 1);
    work.flops = 2.0 * 32 * warps * Tile::TM * Tile::TN * k;
    copy(&work, problem, staged(problem.transa == Op::N, Tile::BM, tiles_m),
         staged(problem.transb == Op::T, Tile::BN, tiles_n));
    work.trips = work.narrow / Tile::kThreads;
    work.bytes = 4 * (m * k + n * k + m * n);
    if (problem.c.ld % 4 != 0)
        work.single = std::min(m, 1.0 * Tile::TM) * std::min(n, 1.0 * Tile::TN) / (Tile::TM * Tile::TN);
    return work;
}

template <class Tile>
struct Ring {
    template <bool ContiguousM, bool ContiguousN>
    static Status start(const Problem &asked, const Launch &launch_on) {
        constexpr int kBytes = Tile::template bytes<ContiguousM, ContiguousN>();
        const Device &device = *launch_on.device;
        Rounds rounds;
        const Problem problem = in_pieces<Tile>(asked, &rounds);
        rounds.tiles_m = tiles_of<Tile>(problem.m), rounds.tiles_n = tiles_of<Tile>(problem.n);
        const int fit = blocks_that_fit<Tile>(device, kBytes);
        rounds.asks_early = Tile::kAsksEarly && asks_early(problem, device);
        rounds.blocks = std::min<int64_t>(problem.batch, int64_t{fit} * device.multiprocessors);
        PYBLAS_TRY((allow_shared<small_batch_ring<Tile, ContiguousM, ContiguousN>>(kBytes)));
        return launch<small_batch_ring<Tile, ContiguousM, ContiguousN>>(
            {rounds.blocks, Tile::kThreads, kBytes, launch_on.stream, device.starts_early}, problem, rounds);
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
using Ring64 = RingTile<64, 64, 128, 64, 32, 3, 4, 2, true>;
using Ring128 = RingTile<128, 128, 128, 192, 16, 3, 2, 1, false>;
using Wide16 = RingTile<16, 128, 32, 32, 16, 2, 10, 1, false>;

constexpr Footprint kPackedFootprint{PackedTile::kThreads, PackedTile::kResident, kSharedWithoutOptIn};
constexpr Footprint kWarpsFootprint{WarpsTile::kThreads, WarpsTile::kResident, warps_bytes<WarpsTile, false, false>()};
template <class Tile>
constexpr Footprint kRingFootprint{Tile::kThreads, Tile::kResident, Tile::template bytes<false, false>()};

#define PYBLAS_RING_ROW(name, Tile)                                                                                    \
    {"small_batch_" name,                                                                                              \
     "small_batch",                                                                                                    \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     75,                                                                                                               \
     false,                                                                                                            \
     refuses_ring<Tile>,                                                                                               \
     nullptr,                                                                                                          \
     nullptr,                                                                                                          \
     launch_small_batch<Ring<Tile>>,                                                                                   \
     false,                                                                                                            \
     kRingFootprint<Tile>,                                                                                             \
     work_ring<Tile>}
constexpr Kernel kRows[] = {
    {"small_batch_32x32x64", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses<PackedTile>, nullptr, nullptr,
     launch_small_batch<Packed<PackedTile>>, false, kPackedFootprint, work_packed<PackedTile>},
    {"small_batch_32x32x32", "small_batch", Engine::gpu, kFp32Modes, 75, false, refuses_warps<WarpsTile>, nullptr,
     nullptr, launch_small_batch<Warps<WarpsTile>>, false, kWarpsFootprint, work_warps<WarpsTile>},
    PYBLAS_RING_ROW("64x64x128", Ring64),
    PYBLAS_RING_ROW("128x128x128", Ring128),
    PYBLAS_RING_ROW("16x128x32", Wide16),
};
#undef PYBLAS_RING_ROW

} // namespace

KernelRows small_batch_rows() {
    return rows(kRows);
}

} // namespace pyblas

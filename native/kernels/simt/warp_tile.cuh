// What the kernels built on warp tiles share: a block's walk of a range of k, and the store of its tile. warp_tile.cu
// tells how they work.
#pragma once

#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {

// Of k, summed before the accumulators are folded. cuBLAS cuts short sums of small products into pieces, of the
// smallest into more of them, and the error must not exceed its.
constexpr int kSmallC = 96 * 96; // elements

template <class Tile>
__host__ __device__ constexpr int fold_depth(const Problem &problem) {
    if (problem.batch_invariant)
        return invariant_part(problem.k);
    if (problem.k >= 1024)
        return problem.k < (1 << 18) ? 256 : 1024;
    const bool small = problem.m <= kSmallC && problem.n <= kSmallC && problem.m * problem.n <= kSmallC;
    return small ? 32 : Tile::kShortFold;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
struct Layout {
    using StreamA = TileStream<Tile::BM, Tile::BK, Tile::kThreads, ContiguousM>;
    using StreamB = TileStream<Tile::BN, Tile::BK, Tile::kThreads, ContiguousN>;
    static constexpr int kStageFloats = StreamA::kFloats + StreamB::kFloats;
    static constexpr int kStagesFloats = Tile::kStages * kStageFloats;
    static constexpr int kTotalsFloats = Tile::BM * Tile::BN;

    static constexpr int bytes(bool folds) { return 4 * (kStagesFloats + (folds ? kTotalsFloats : 0)); }
};

// One stage of a thread's outputs: the fragments of the next k are read while this one is multiplied. meanwhile() runs
// once the first ones are on their way.
template <class Tile, class StreamA, class StreamB, class Meanwhile>
__device__ __forceinline__ void multiply(const float *smem_a, const float *smem_b, float (&acc)[Tile::TN][Tile::TM],
                                         const Meanwhile &meanwhile) {
    float frag_a[2][Tile::TM], frag_b[2][Tile::TN];
    StreamA::template read<Tile::TM, Tile::kLanesM>(smem_a, 0, frag_a[0]);
    StreamB::template read<Tile::TN, Tile::kLanesN>(smem_b, 0, frag_b[0]);
    meanwhile();
#pragma unroll
    for (int k = 0; k < Tile::BK; ++k) {
        if (k + 1 < Tile::BK) {
            StreamA::template read<Tile::TM, Tile::kLanesM>(smem_a, k + 1, frag_a[(k + 1) % 2]);
            StreamB::template read<Tile::TN, Tile::kLanesN>(smem_b, k + 1, frag_b[(k + 1) % 2]);
        }
#pragma unroll
        for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
            for (int i = 0; i < Tile::TM; ++i)
                acc[j][i] = fmaf(frag_a[k % 2][i], frag_b[k % 2][j], acc[j][i]);
    }
}

// Moves the accumulators into the thread's own column of totals. The last fold brings the sum back.
template <class Tile>
__device__ __forceinline__ void fold(float4 *totals, float (&acc)[Tile::TN][Tile::TM], bool first, bool last) {
#pragma unroll
    for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad) {
        const auto sum = [&](int i) -> float & { return acc[(quad * 4 + i) / Tile::TM][(quad * 4 + i) % Tile::TM]; };
        float4 *const total = totals + quad * Tile::kThreads;
        float4 value = first ? float4{0.0f, 0.0f, 0.0f, 0.0f} : *total;
        value = float4{value.x + sum(0), value.y + sum(1), value.z + sum(2), value.w + sum(3)};
        if (!last)
            *total = value;
        sum(0) = last ? value.x : 0.0f, sum(1) = last ? value.y : 0.0f;
        sum(2) = last ? value.z : 0.0f, sum(3) = last ? value.w : 0.0f;
    }
}

// Where a thread's first quad lies in the tile.
template <class Tile>
struct ThreadPlace {
    int row, column;

    static __device__ __forceinline__ ThreadPlace of(int thread = static_cast<int>(threadIdx.x)) {
        const int warp = thread / 32, lane = thread % 32;
        return {warp % (Tile::BM / Tile::WM) * Tile::WM + Tile::lane_m(lane) * 4,
                warp / (Tile::BM / Tile::WM) * Tile::WN + Tile::lane_n(lane) * 4};
    }
};

// A warp's rows in shared memory: the first rows of a lane's quads lie side by side, then the second ones, so that
// neither lanes that write nor lanes that read meet in a bank.
template <class Tile>
struct WarpRows {
    static constexpr int kRow = Tile::WM + Tile::kLanesM, kFloats = 2 * Tile::kLanesN * kRow;

    static __device__ __forceinline__ int row(int place) {
        const int inside = place % (4 * Tile::kLanesM);
        return place - inside + inside % Tile::kLanesM * 4 + inside / Tile::kLanesM;
    }
};

// acc += the product over depth of k, from k_begin on. Every fold_tiles stages the accumulators are folded into totals
// behind the stages in shared memory, which are there if the walk is longer than that.
template <class Tile, bool ContiguousM, bool ContiguousN>
__device__ __forceinline__ void walk(const Problem &problem, int64_t batch, int64_t block_row, int64_t block_column,
                                     int64_t k_begin, int64_t depth, int fold_tiles, float (&acc)[Tile::TN][Tile::TM]) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    using StreamA = typename Parts::StreamA;
    using StreamB = typename Parts::StreamB;
    const ThreadPlace<Tile> mine = ThreadPlace<Tile>::of();
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    float4 *const totals = reinterpret_cast<float4 *>(smem + Parts::kStagesFloats) + threadIdx.x;
    StreamA stream_a(view_a(problem, batch).from(k_begin), block_row, problem.m);
    StreamB stream_b(view_b(problem, batch).from(k_begin), block_column, problem.n);

    int64_t k_left = depth; // not yet asked for
    const auto load = [&](float *stage) {
        if (k_left > 0) {
            const int k = part(k_left, Tile::BK);
            stream_a.next(stage, k);
            stream_b.next(stage + StreamA::kFloats, k);
            k_left -= Tile::BK;
        }
        ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
    };

    // load: all stages but one
    int read = 0, write = 0;
#pragma unroll 1
    for (; write < (Tile::kStages - 1) * Parts::kStageFloats; write += Parts::kStageFloats)
        load(smem + write);

    const int tiles = static_cast<int>((depth + Tile::BK - 1) / Tile::BK);
    for (int all_left = tiles; all_left > 0; all_left -= fold_tiles) {
        for (int left = min(all_left, fold_tiles); left > 0; --left) {
            // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
            ptx::wait_copies<Tile::kStages - 2>();
            __syncthreads();

            // multiply
            multiply<Tile, StreamA, StreamB>(smem + read + mine.row, smem + read + StreamA::kFloats + mine.column, acc,
                                             [&] { load(smem + write); });

            // advance
            read = read + Parts::kStageFloats == Parts::kStagesFloats ? 0 : read + Parts::kStageFloats;
            write = write + Parts::kStageFloats == Parts::kStagesFloats ? 0 : write + Parts::kStageFloats;
        }
        if (tiles > fold_tiles)
            fold<Tile>(totals, acc, all_left == tiles, all_left <= fold_tiles);
    }
}

// A warp's sums into C where its rows are not aligned to four floats. Stored from the registers one by one, the floats
// of an instruction would lie four apart, and four times as many sectors of memory would be touched: they go through
// shared memory, where two columns of each lane lie at a time, and neighbouring lanes store neighbouring rows. c is the
// warp's corner. Reads: so is what C holds.
template <class Tile, bool Reads>
__device__ __forceinline__ void store_by_rows(const Epilogue &epilogue, int lane, float *smem, float *c, int64_t ld,
                                              int m_left, int n_left, const float (&acc)[Tile::TN][Tile::TM]) {
    using Rows = WarpRows<Tile>;
    constexpr int kEach = (Tile::WM + 31) / 32; // rows that a lane stores of each column
    float *const target = smem + Tile::lane_n(lane) * (2 * Rows::kRow) + Tile::lane_m(lane);
    const int rows = min(m_left, Tile::WM);
#pragma unroll
    for (int j = 0; j < Tile::TN; j += 2) {
        __syncwarp();
#pragma unroll
        for (int next = 0; next < 2; ++next)
#pragma unroll
            for (int i = 0; i < Tile::TM; ++i)
                target[next * Rows::kRow + i / 4 * (4 * Tile::kLanesM) + i % 4 * Tile::kLanesM] = acc[j + next][i];
        __syncwarp();
        const float *sums = smem + lane;
        float *pair = c + j % 4 * ld;
        int left = n_left - j % 4 - j / 4 * (4 * Tile::kLanesN); // of the columns
#pragma unroll(Reads ? 1 : 4)
        for (int other = 0; other < Tile::kLanesN; ++other, sums += 2 * Rows::kRow, pair += 4 * ld, left -= 4) {
            float old[2][kEach];
            if constexpr (Reads)
#pragma unroll
                for (int i = 0; i < 2 * kEach; ++i)
                    if (i / kEach < left && Rows::row(lane + i % kEach * 32) < rows)
                        old[i / kEach][i % kEach] =
                            epilogue.load(pair + i / kEach * ld + Rows::row(lane + i % kEach * 32));
#pragma unroll
            for (int i = 0; i < 2 * kEach; ++i) {
                const int row = Rows::row(lane + i % kEach * 32);
                const float sum = sums[i / kEach * Rows::kRow + i % kEach * 32];
                if (i / kEach < left && row < rows) {
                    if constexpr (Reads)
                        epilogue.store(pair + i / kEach * ld + row, sum, old[i / kEach][i % kEach]);
                    else
                        epilogue.put(pair + i / kEach * ld + row, sum);
                }
            }
        }
        if (j % 4 == 2)
            c += 4 * Tile::kLanesN * ld;
    }
}

// The tile into C: four rows at once where C's address, ld and edge allow. Otherwise through smem, as large as a stage
// of both operands, after all_left(), which returns when nobody uses that any more. Ahead columns of C are read before
// the first of them is written; 0, if there are no registers for it, means quad by quad.
template <class Tile, int Ahead, class AllLeft>
__device__ __forceinline__ void store_tile(const Problem &problem, int64_t batch, int64_t block_row,
                                           int64_t block_column, float *smem, const AllLeft &all_left,
                                           const float (&acc)[Tile::TN][Tile::TM]) {
    const int thread = ptx::thread_anew();
    const ThreadPlace<Tile> mine = ThreadPlace<Tile>::of(thread);
    const int row = mine.row, column = mine.column;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    const Epilogue epilogue(problem); // read again: two registers less while k is walked
    const int64_t ld = problem.c.ld;
    float *const corner = problem.c.matrix(batch) + block_row + block_column * ld;
    if (reinterpret_cast<uintptr_t>(corner) % 16 != 0 || ld % 4 != 0 || m_left % 4 != 0) {
        const int warp_row = row - 4 * Tile::lane_m(thread % 32), warp_column = column - 4 * Tile::lane_n(thread % 32);
        all_left();
        smem += thread / 32 * WarpRows<Tile>::kFloats;
        float *const c = corner + warp_row + warp_column * ld;
        if (epilogue.reads_c())
            store_by_rows<Tile, true>(epilogue, thread % 32, smem, c, ld, m_left - warp_row, n_left - warp_column, acc);
        else
            store_by_rows<Tile, false>(epilogue, thread % 32, smem, c, ld, m_left - warp_row, n_left - warp_column,
                                       acc);
        return;
    }
    float *c = corner + row + column * ld;
    if (Ahead == 0 || !epilogue.reads_c()) {
#pragma unroll
        for (int j = 0; j < Tile::TN; ++j) {
            const int across = j / 4 * (Tile::kLanesN * 4) + j % 4;
            if (column + across >= n_left)
                continue;
#pragma unroll
            for (int i = 0; i < Tile::TM; i += 4)
                if (row + i * Tile::kLanesM < m_left) {
                    const float4 sum{acc[j][i], acc[j][i + 1], acc[j][i + 2], acc[j][i + 3]};
                    float *const quad = c + i * Tile::kLanesM + across * ld;
                    Ahead == 0 ? epilogue.store4(quad, sum) : epilogue.put4(quad, sum);
                }
        }
        return;
    }
    constexpr int kAhead = Ahead > 0 ? Ahead : 1;
#pragma unroll
    for (int j = 0; j < Tile::TN; j += kAhead) {
        const int left = n_left - column - j / 4 * (4 * Tile::kLanesN) - j % 4; // of the columns
        float4 old[kAhead][Tile::TM / 4];
#pragma unroll
        for (int next = 0; next < kAhead; ++next)
#pragma unroll
            for (int i = 0; i < Tile::TM / 4; ++i)
                if (next < left && row + i * (4 * Tile::kLanesM) < m_left)
                    old[next][i] = epilogue.load4(c + i * (4 * Tile::kLanesM) + next * ld);
#pragma unroll
        for (int next = 0; next < kAhead; ++next) {
            const float *const sum = acc[j + next];
#pragma unroll
            for (int i = 0; i < Tile::TM / 4; ++i)
                if (next < left && row + i * (4 * Tile::kLanesM) < m_left)
                    epilogue.store4(c + i * (4 * Tile::kLanesM) + next * ld,
                                    {sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]}, old[next][i]);
        }
        c += ((j + kAhead) % 4 ? kAhead : kAhead + 4 * Tile::kLanesN - 4) * ld;
    }
}

template <class Tile>
constexpr bool folds(const Problem &problem) {
    return problem.k > fold_depth<Tile>(problem);
}

// With padded tiles, as transposed ones are, and folded sums.
template <class Tile>
constexpr Footprint kWarpTileFootprint{Tile::kThreads, Tile::kResident, Layout<Tile, false, false>::bytes(true)};

// Blocks that the shared memory of one multiprocessor has room for; each takes 1 KB more than it asks for.
template <class Tile>
int blocks_that_fit(bool folds, const Device &device) {
    using Largest = Layout<Tile, false, false>; // transposed tiles are padded
    return (device.shared_per_block + 1024) / (Largest::bytes(folds) + 1024);
}

template <class Tile>
Work warp_tile_work(const Problem &problem, const Device &device) {
    const int resident = std::max(1, std::min(blocks_that_fit<Tile>(folds<Tile>(problem), device), Tile::kResident));
    Work work = tile_work<Tile>(problem, device, resident);
    work.folds = static_cast<double>(std::max<int64_t>(problem.k - 1, 0) / fold_depth<Tile>(problem));
    work.single = problem.c.ld % 4 != 0 ? 1 : 0; // the way through shared memory is the same for all of a tile
    return work;
}

struct Tile32 : WarpTile<32, 32, 16, 32, 16, 4, 4, 4, 8> {
    static constexpr int kShortFold = 64;
};
struct Tile64 : WarpTile<64, 64, 16, 32, 32, 4, 8, 3, 4> {
    static constexpr int kShortFold = 64;
};
struct Tile128x64 : WarpTile<128, 64, 16, 64, 32, 8, 8, 3, 3> {
    static constexpr int kShortFold = 256;
};
struct Tile128 : WarpTile<128, 128, 16, 64, 32, 8, 8, 2, 2> {
    static constexpr int kShortFold = 256;
};

} // namespace pyblas

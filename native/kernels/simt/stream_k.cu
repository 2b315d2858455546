// stream_k: the stages of k of all tiles are one long row, cut evenly among the blocks that run side by side, so that
// no multiprocessor waits for a last wave. A tile cut between blocks is summed by the block that ends last.
//
//      stages of tile 0    of tile 1       of tile 2
//     +---------------+---------------+---------------+     tile 1: blocks 0, 1 and 2 leave their sums in workspace
//     | block 0           : block 1 : block 2         |     and count themselves; who finds all others counted adds
//     +---------------+---------------+---------------+     the pieces in the order of k: always the same bits
//
// With fewer tiles than blocks all are cut, otherwise those of the last whole wave and what is left over, and the rest
// are made whole afterwards. No block waits for another. Tiles, threads and shared memory are warp_tile's; the
// workspace holds two tiles for a block. The idea is Stream-K's (Osama et al., 2023).
#include "warp_tile.cuh"

#include <type_traits>

#include "../device/launch.cuh"
#include "../device/partials.cuh"
#include "cut_tiles.hpp"

namespace pyblas {
namespace {

constexpr int kSumThreads = 256;

// Where the work is, and where the pieces go.
struct Stream : CutTiles {
    TileGrid grid;
    int fold_tiles; // stages between folds
    float *memory;
    uint32_t *arrivals;

    // A thread's quads of the piece that a block leaves of a tile.
    template <class Tile>
    __device__ __forceinline__ float4 *piece(int64_t block, int64_t tile) const {
        return reinterpret_cast<float4 *>(memory + (block + tile) * (Tile::BM * Tile::BN)) + threadIdx.x;
    }
};

template <class Tile>
__device__ __forceinline__ float *quad_of(float (&acc)[Tile::TN][Tile::TM], int quad) {
    return &acc[quad / (Tile::TM / 4)][quad % (Tile::TM / 4) * 4];
}

// Leaves the sums of a piece.
template <class Tile>
__device__ __forceinline__ void leave_piece(const Stream &stream, int64_t tile, float (&acc)[Tile::TN][Tile::TM]) {
    float4 *const piece = stream.piece<Tile>(block_number(), tile);
#pragma unroll
    for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad) {
        const float *const sum = quad_of<Tile>(acc, quad);
        piece[quad * Tile::kThreads] = float4{sum[0], sum[1], sum[2], sum[3]};
    }
}

// Counts the piece. If it was the tile's last one, acc becomes the total, and this block has to store it.
template <class Tile>
__device__ __forceinline__ bool complete(const Stream &stream, int64_t tile, float (&acc)[Tile::TN][Tile::TM]) {
    __shared__ bool smem_last;
    const int64_t first = stream.block_of(tile * stream.steps), last = stream.block_of((tile + 1) * stream.steps - 1);
    __syncthreads();
    if (threadIdx.x == 0)
        smem_last = ptx::arrive(stream.arrivals + tile, static_cast<uint32_t>(last - first));
    __syncthreads();
    if (!smem_last)
        return false;
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i)
            acc[j][i] = 0.0f;
#pragma unroll 1
    for (int64_t block = first; block <= last; ++block) {
        const float4 *const piece = stream.piece<Tile>(block, tile);
#pragma unroll
        for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad) {
            float *const sum = quad_of<Tile>(acc, quad);
            const float4 four = piece[quad * Tile::kThreads];
            sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
        }
    }
    return true;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    stream_k(__grid_constant__ const Problem problem, __grid_constant__ const Stream stream) {
    const Epilogue scalars(problem);
    if (scalars.idle())
        return;
    const int64_t depth = scalars.depth();
    int done = 0, whole = 0; // stages of the block's share, tiles after it

#pragma unroll 1
    for (;;) {
        // place: what is left of the block's share first, then whole tiles
        const int64_t stage = stream.begin(block_number()) + done, end = stream.begin(block_number() + 1);
        int64_t tile, first = 0, count = stream.steps;
        if (depth && stage < end) {
            tile = stage / stream.steps;
            first = stage - tile * stream.steps;
            count = min(stream.steps - first, end - stage);
            done += static_cast<int>(count);
        } else {
            tile = (depth ? stream.cut : 0) + block_number() + whole++ * stream.blocks;
        }
        const TilePlace place = place_tile(stream.grid, tile);
        if (!place.exists)
            return;

        // load, multiply, advance
        float acc[Tile::TN][Tile::TM] = {};
        if (depth)
            walk<Tile, ContiguousM, ContiguousN>(problem, place.batch, place.row * Tile::BM, place.column * Tile::BN,
                                                 first * Tile::BK, min(count * Tile::BK, problem.k - first * Tile::BK),
                                                 stream.fold_tiles, acc);

        // store
        bool stored = count == stream.steps;
        if (!stored) {
            leave_piece<Tile>(stream, tile, acc);
            stored = complete<Tile>(stream, tile, acc);
        }
        if (stored)
            store_tile<Tile, 0>(
                problem, place.batch, place.row * Tile::BM, place.column * Tile::BN,
                reinterpret_cast<float *>(dynamic_shared()), [] { __syncthreads(); }, acc);
        __syncthreads(); // shared memory is free for the next walk
    }
}

// One part for each block; neighbours have the same k of neighbouring tiles.
template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    make_parts(__grid_constant__ const Problem problem, __grid_constant__ const Stream stream) {
    ptx::launch_dependents();
    const Epilogue scalars(problem);
    const int64_t part = block_number() / stream.cut;
    if (part >= stream.parts || scalars.depth() == 0)
        return;
    const TilePlace place = place_tile(stream.grid, block_number() - part * stream.cut);
    const int64_t first = part * stream.part * Tile::BK;
    float acc[Tile::TN][Tile::TM] = {};
    walk<Tile, ContiguousM, ContiguousN>(problem, place.batch, place.row * Tile::BM, place.column * Tile::BN, first,
                                         min(stream.part * Tile::BK, problem.k - first), stream.fold_tiles, acc);
    leave_piece<Tile>(stream, 0, acc); // [part][tile]
}

// Adds the parts of each tile, in order. A thread has Width neighbouring rows of C: one where tiles are few, and their
// parts many, four where bytes count.
template <class Tile, int Width>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts(__grid_constant__ const Problem problem, __grid_constant__ const Stream stream) {
    constexpr int kFloats = Tile::BM * Tile::BN, kBlocks = kFloats / (Width * kSumThreads); // of a tile
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    const int64_t tile = block_number() / kBlocks;
    if (tile >= stream.cut || epilogue.idle())
        return;
    // Where the rows lie in a piece, and in C.
    const int block = static_cast<int>(block_number() - tile * kBlocks);
    const int element = (block * kSumThreads + static_cast<int>(threadIdx.x)) * Width;
    const int quad = element / 4 / Tile::kThreads;
    const auto [row, column] = ThreadPlace<Tile>::of(element / 4 % Tile::kThreads);
    const TilePlace place = place_tile(stream.grid, tile);
    const int64_t i = place.row * Tile::BM + row + quad % (Tile::TM / 4) * (Tile::kLanesM * 4) + element % 4;
    const int across = quad / (Tile::TM / 4);
    const int64_t j = place.column * Tile::BN + column + across / 4 * (Tile::kLanesN * 4) + across % 4;
    if (i >= problem.m || j >= problem.n)
        return;

    float sum[Width] = {};
    if (epilogue.depth() > 0) {
        const float *piece = stream.memory + tile * kFloats + element;
#pragma unroll(16 / Width)
        for (int64_t part = 0; part < stream.parts; ++part, piece += stream.cut * kFloats) {
            if constexpr (Width == 4) {
                const float4 four = *reinterpret_cast<const float4 *>(piece);
                sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
            } else {
                sum[0] += *piece;
            }
        }
    }
    float *const c = problem.c.matrix(place.batch) + i + j * problem.c.ld;
    if constexpr (Width == 4)
        if (i + 4 <= problem.m && reinterpret_cast<uintptr_t>(c) % 16 == 0)
            return epilogue.store4(c, {sum[0], sum[1], sum[2], sum[3]});
#pragma unroll
    for (int down = 0; down < Width; ++down)
        if (i + down < problem.m)
            epilogue.store(c + down, sum[down]);
}

// Whether any piece is long enough.
template <class Tile>
bool piece_folds(const Problem &problem, const CutTiles &cut) {
    int64_t longest = cut.steps;
    if (cut.cut == TileGrid::of(problem, Tile::BM, Tile::BN).blocks)
        longest = cut.parts ? cut.part : std::min(cut.steps, (cut.all() + cut.blocks - 1) / cut.blocks);
    return longest * Tile::BK > fold_depth<Tile>(problem);
}

size_t arrivals_bytes(const CutTiles &cut) {
    return (static_cast<size_t>(cut.cut) * sizeof(uint32_t) + 255) / 256 * 256;
}

template <class Tile>
size_t workspace_of(const CutTiles &cut) {
    return arrivals_bytes(cut) + static_cast<size_t>(cut.pieces()) * Tile::BM * Tile::BN * sizeof(float);
}

template <class Tile>
Stream stream_of(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    Stream stream;
    static_cast<CutTiles &>(stream) = cut;
    stream.grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    stream.fold_tiles = fold_depth<Tile>(problem) / Tile::BK;
    stream.arrivals = launch_on.zeros ? launch_on.zeros : static_cast<uint32_t *>(launch_on.workspace);
    stream.memory = reinterpret_cast<float *>(static_cast<char *>(launch_on.workspace) + arrivals_bytes(cut));
    return stream;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start_shares(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    const Stream stream = stream_of<Tile>(problem, launch_on, cut);
    const int bytes = Parts::bytes(piece_folds<Tile>(problem, cut));
    if (bytes > kSharedWithoutOptIn)
        PYBLAS_TRY((allow_shared<stream_k<Tile, ContiguousM, ContiguousN>>(Parts::bytes(true))));
    if (cut.cut && !launch_on.zeros)
        PYBLAS_TRY(clear(stream.arrivals, stream.cut, launch_on.stream));
    return launch<stream_k<Tile, ContiguousM, ContiguousN>>({cut.blocks, Tile::kThreads, bytes, launch_on.stream},
                                                            problem, stream);
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start_parts(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    const Stream stream = stream_of<Tile>(problem, launch_on, cut);
    const int bytes = Parts::bytes(piece_folds<Tile>(problem, cut));
    if (bytes > kSharedWithoutOptIn)
        PYBLAS_TRY((allow_shared<make_parts<Tile, ContiguousM, ContiguousN>>(Parts::bytes(true))));
    PYBLAS_TRY((launch<make_parts<Tile, ContiguousM, ContiguousN>>(
        {cut.blocks, Tile::kThreads, bytes, launch_on.stream}, problem, stream)));
    const int64_t quads = cut.cut * (Tile::BM * Tile::BN / 4);
    const auto sum = [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        return launch<sum_parts<Tile, kWidth>>(
            {quads * 4 / (kWidth * kSumThreads), kSumThreads, 0, launch_on.stream, launch_on.device->starts_early},
            problem, stream);
    };
    constexpr int64_t kFull = 512; // threads that keep a multiprocessor's loads busy
    return quads >= kFull * launch_on.device->multiprocessors ? sum(std::integral_constant<int, 4>{})
                                                              : sum(std::integral_constant<int, 1>{});
}

#define PYBLAS_BY_OPS(start)                                                                                           \
    (problem.transa == Op::N   ? problem.transb == Op::T ? start<Tile, true, true>(problem, launch_on, cut)            \
                                                         : start<Tile, true, false>(problem, launch_on, cut)           \
       : problem.transb == Op::T ? start<Tile, false, true>(problem, launch_on, cut)                                   \
                               : start<Tile, false, false>(problem, launch_on, cut))

template <class Tile>
Status launch_shares(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    return PYBLAS_BY_OPS(start_shares);
}

template <class Tile>
Status launch_tile_parts(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    return PYBLAS_BY_OPS(start_parts);
}
#undef PYBLAS_BY_OPS

template <class Tile>
int64_t resident(const Problem &problem, const Device &device) {
    return std::min(Tile::kResident, blocks_that_fit<Tile>(folds<Tile>(problem), device));
}

template <class Tile>
CutTiles evenly(const Problem &problem, const Device &device) {
    constexpr int64_t kShortest = 4; // stages that a piece should have
    const int64_t tiles = TileGrid::of(problem, Tile::BM, Tile::BN).blocks;
    const int64_t steps = (problem.k + Tile::BK - 1) / Tile::BK;
    const int64_t slots =
        std::min<int64_t>(std::max<int64_t>(1, resident<Tile>(problem, device)) * device.multiprocessors, kZeros / 2);
    if (tiles % slots == 0 || steps < 2 * kShortest)
        return {0, steps, tiles};
    if (tiles > slots) // a block has at least one tile's stages, and a tile two or three pieces
        return {slots + tiles % slots, steps, slots};
    // Equal parts of each tile are fewer pieces than shares that end anywhere, for a few idle blocks.
    const int64_t blocks = std::min(slots, std::max(tiles, tiles * steps / kShortest));
    const CutTiles equal = CutTiles::in_parts(tiles, steps, (steps + blocks / tiles - 1) / (blocks / tiles));
    return 16 * equal.blocks >= 15 * blocks ? equal : CutTiles{tiles, steps, blocks};
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    return resident<Tile>(problem, device) < 1 ? "a block needs more shared memory than the device gives" : nullptr;
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    return workspace_of<Tile>(evenly<Tile>(problem, device));
}

// Shares of stages, and the pieces of a tile, which its last block reads at what one multiprocessor gets.
template <class Tile>
Work work(const Problem &problem, const Device &device) {
    const CutTiles cut = evenly<Tile>(problem, device);
    Work work = warp_tile_work<Tile>(problem, device);
    if (cut.cut == 0) {
        work.row = "warp_tile_64x64x16";
        return work;
    }
    const double tiles = static_cast<double>(TileGrid::of(problem, Tile::BM, Tile::BN).blocks);
    const double blocks = static_cast<double>(cut.blocks);
    const double shares = tiles * static_cast<double>(cut.steps) / blocks + 2; // in stages
    const double part = shares / static_cast<double>(cut.steps);
    work.spread(blocks, std::min<double>(resident<Tile>(problem, device), std::ceil(blocks / device.multiprocessors)),
                device);
    for (double *each : {&work.steps, &work.flops, &work.copies, &work.narrow, &work.trips, &work.folds})
        *each *= part;
    const double pieces = blocks / static_cast<double>(cut.cut) + 1;
    work.partial_bytes = pieces * 4 * Tile::BM * Tile::BN * device.multiprocessors;
    work.pieces = pieces;
    return work;
}

template <class Tile>
Status launch_stream_k(const Problem &problem, const Launch &launch_on) {
    return launch_shares<Tile>(problem, launch_on, evenly<Tile>(problem, *launch_on.device));
}

// And one word that says who is last.
template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, Tile::kResident, kWarpTileFootprint<Tile>.shared_bytes + 16};

#define PYBLAS_STREAM_K_ROW(name, Tile)                                                                                \
    {"stream_k_" name,                                                                                                 \
     "stream_k",                                                                                                       \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     75,                                                                                                               \
     false,                                                                                                            \
     refuses<Tile>,                                                                                                    \
     workspace<Tile>,                                                                                                  \
     nullptr,                                                                                                          \
     launch_stream_k<Tile>,                                                                                            \
     false,                                                                                                            \
     kFootprint<Tile>,                                                                                                 \
     work<Tile>}
constexpr Kernel kRows[] = {
    PYBLAS_STREAM_K_ROW("64x64x16", Tile64),
};
#undef PYBLAS_STREAM_K_ROW

} // namespace

KernelRows stream_k_rows() {
    return rows(kRows);
}

template <>
Status launch_parts<64>(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    return launch_tile_parts<Tile64>(problem, launch_on, cut);
}
template <>
Status launch_parts<128>(const Problem &problem, const Launch &launch_on, const CutTiles &cut) {
    return launch_tile_parts<Tile128>(problem, launch_on, cut);
}
template <>
size_t parts_workspace<64>(const CutTiles &cut) {
    return workspace_of<Tile64>(cut);
}
template <>
size_t parts_workspace<128>(const CutTiles &cut) {
    return workspace_of<Tile128>(cut);
}

} // namespace pyblas

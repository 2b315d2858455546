// The rows of the CPU and how each cuts a product into independent pieces. Every boundary that the order of a sum knows
// - pieces of k, and blocks of C where a BLAS sums - follows from the problem, never from the number of threads, so
// neither do the bits.
//
//   cpu_naive   three loops; what the others are checked against        cpu_small   outer products on A and B in place
//   cpu_skinny  a large matrix read once, against one with few rows     cpu_packed  blocked, on copies of A and B
//   cpu_blas    blocks of C by a BLAS on one thread each        cpu_half    16-bit types, panel by panel as floats
#include "engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include <sys/mman.h>

#include "blas.hpp"
#include "half.hpp"
#include "isa.hpp"
#include "pool.hpp"

namespace pyblas::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

Product product(const Problem &p, int64_t batch) {
    const bool a_plain = p.transa == Op::N, b_plain = p.transb == Op::N;
    Product r;
    r.m = p.m;
    r.n = p.n;
    r.k = p.k;
    r.a = p.a.matrix<const float>(batch);
    r.a_row = a_plain ? 1 : p.a.ld;
    r.a_col = a_plain ? p.a.ld : 1;
    r.b = p.b.matrix<const float>(batch);
    r.b_row = b_plain ? 1 : p.b.ld;
    r.b_col = b_plain ? p.b.ld : 1;
    r.c = p.c.matrix<float>(batch);
    r.c_row = 1;
    r.c_col = p.c.ld;
    r.alpha = p.alpha.value;
    r.beta = p.beta.value;
    // Results that no cache will hold until they are used need not be read into one before they are written. The
    // operands of a single product are read several times, those of a batch pass by like its results.
    constexpr double kCacheBytes = 16 << 20;
    const double read = p.batch > 1 ? double(p.k) * double(p.m + p.n) : 0.0;
    r.large = p.c.array == nullptr && 4.0 * (double(p.m) * double(p.n) + read) * double(p.batch) > kCacheBytes;
    return r;
}

// ---- memory -------------------------------------------------------------------------------------------------------

struct Free {
    void operator()(float *p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, Free>;

Floats allocate(int64_t floats) {
    // From large pages, where the system gives them, a copy of a matrix is read without waiting for translations.
    constexpr int64_t kPage = 4096, kLargePage = 2 << 20;
    const int64_t wanted = floats * int64_t(sizeof(float)), page = wanted < kLargePage ? kPage : kLargePage;
    const int64_t bytes = ceil_div(wanted, page) * page;
    Floats room(static_cast<float *>(std::aligned_alloc(size_t(page), size_t(bytes))));
    if (room && page == kLargePage)
        madvise(room.get(), size_t(bytes), MADV_HUGEPAGE);
    return room;
}

// So many floats of this thread; null if there is no memory. Pages are only used up as far as they are touched.
float *scratch(int64_t floats) {
    static thread_local Floats mine;
    static thread_local int64_t room = 0;
    if (room < floats) {
        mine.reset();
        mine = allocate(floats);
        room = mine ? floats : 0;
    }
    return mine.get();
}

// ---- cutting ------------------------------------------------------------------------------------------------------

// How a product is cut: tiles of C, and pieces of k that are summed apart where C has too few tiles.
struct Cut {
    int64_t tile_m, tile_n, depth;
};

constexpr int64_t kEnoughTiles = 16;

// Few threads get one large tile each where that is even, as large tiles copy least. Of many threads some come late or
// are held up, so each gets several, of this many seconds at least.
constexpr int64_t kFewThreads = 4, kTilesEach = 3;
constexpr double kWorthATile = 2.5e-6;

// depth so that there are about kEnoughTiles pieces, each of at least least and long enough for a thread to start on.
Cut cut(const Problem &p, int64_t tile_m, int64_t tile_n, int64_t least, double seconds) {
    const int64_t tiles = ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n);
    if (p.batch >= kEnoughTiles || tiles >= kEnoughTiles || p.k < 2 * least)
        return {tile_m, tile_n, p.k};
    const int64_t worth = int64_t(std::min(seconds / (double(tiles) * double(p.batch) * 25e-6), 1e6));
    if (p.batch_invariant) {
        // Pieces of just the depth at which sums begin afresh anyway: added in their order they give the bits of one
        // that was not cut, so cutting may depend on the sizes.
        constexpr double kMostFloats = 16 << 20;
        const double floats = double(ceil_div(p.k, kOuterDepth)) * double(p.m) * double(p.n) * double(p.batch);
        return {tile_m, tile_n, worth < 2 || floats > kMostFloats ? p.k : kOuterDepth};
    }
    const int64_t chunks =
        std::min({ceil_div(kEnoughTiles, tiles * p.batch), p.k / least, std::max<int64_t>(1, worth)});
    return {tile_m, tile_n, ceil_div(ceil_div(p.k, chunks), least) * least};
}

Status no_memory(int64_t bytes) {
    return fail(PYBLAS_STATUS_ALLOC_FAILED, "the CPU engine found no memory for %lld bytes of working space",
                static_cast<long long>(bytes));
}

// Adds the pieces of k in their order.
void add_chunks(const Product &p, float *partial, int64_t chunks) {
    const int64_t size = p.m * p.n;
    for (int64_t chunk = 1; chunk < chunks; ++chunk)
        for (int64_t i = 0; i < size; ++i)
            partial[i] += partial[i + chunk * size];
    for (int64_t j = 0; j < p.n; ++j)
        for (int64_t i = 0; i < p.m; ++i) {
            float *c = p.c + i + j * p.c_col;
            const float sum = partial[i + j * p.m];
            *c = p.beta == 0.0f ? p.alpha * sum : std::fma(p.alpha, sum, p.beta * *c);
        }
}

// How many pieces a thread takes at a time: long enough to hand over, short enough to share evenly.
int64_t pieces_at_once(int64_t pieces, double seconds) {
    const double shared = std::clamp(seconds / 8, 1e-6, 15e-6), each = seconds / double(pieces);
    return each >= shared ? 1 : int64_t(std::min(double(pieces), shared / each));
}

// f(block, scratch) for every piece of every product of the batch. An f that also takes (problem, begin, end, scratch)
// is given whole products by the range. seconds is the predicted time on one thread, floats the size of scratch.
template <class F>
Status for_pieces(const Problem &p, const Cut &by, double seconds, const F &f, int64_t floats = kScratch) {
    const int64_t down = ceil_div(p.m, by.tile_m), tiles = down * ceil_div(p.n, by.tile_n);
    const int64_t chunks = p.k > by.depth ? ceil_div(p.k, by.depth) : 1;
    const int64_t per_product = tiles * chunks, pieces = p.batch * per_product;
    const int64_t share = pieces_at_once(pieces, seconds);
    Floats partial;
    if (chunks > 1 && !(partial = allocate(p.batch * chunks * p.m * p.n)))
        return no_memory(p.batch * chunks * p.m * p.n * int64_t(sizeof(float)));
    std::atomic<bool> failed{false};
    parallel(ceil_div(pieces, share), seconds, [&](int64_t index) {
        float *mine = scratch(floats);
        if (!mine) {
            failed.store(true, std::memory_order_relaxed);
            return;
        }
        const int64_t begin = index * share, end = std::min(pieces, begin + share);
        if (per_product == 1) {
            if constexpr (std::is_invocable_v<F, const Problem &, int64_t, int64_t, float *>)
                return f(p, begin, end, mine);
            for (int64_t i = begin; i < end; ++i)
                f(product(p, i), mine);
            return;
        }
        for (int64_t i = begin; i < end; ++i) {
            const int64_t chunk = i / tiles % chunks, tile = i % tiles;
            const int64_t row = tile % down * by.tile_m, col = tile / down * by.tile_n;
            Product whole = product(p, i / per_product);
            if (chunks > 1) {
                whole.a += chunk * by.depth * whole.a_col;
                whole.b += chunk * by.depth * whole.b_row;
                whole.k = std::min(by.depth, p.k - chunk * by.depth);
                whole.c = partial.get() + i / tiles * p.m * p.n;
                whole.c_col = p.m;
                whole.alpha = 1;
                whole.beta = 0;
            }
            f(whole.block(row, col, std::min(by.tile_m, p.m - row), std::min(by.tile_n, p.n - col)), mine);
        }
    });
    if (failed.load())
        return no_memory(floats * int64_t(sizeof(float)));
    if (chunks > 1)
        for (int64_t batch = 0; batch < p.batch; ++batch)
            add_chunks(product(p, batch), partial.get() + batch * chunks * p.m * p.n, chunks);
    return kSuccess;
}

// C := beta * C, without A and B.
Status scale(const Problem &p) {
    const double seconds = double(p.m) * double(p.n) * double(p.batch) * 0.3e-9;
    const int64_t tile_m = 16384, tile_n = std::max<int64_t>(1, 65536 / std::min(p.m, tile_m));
    return for_pieces(p, {tile_m, tile_n, p.k}, seconds, [](const Product &block, float *) {
        for (ptrdiff_t j = 0; j < block.n; ++j) {
            float *c = block.c + j * block.c_col;
            if (block.beta == 0.0f)
                std::fill_n(c, block.m, 0.0f);
            else if (block.beta != 1.0f) // not even a NaN's payload changes
                for (ptrdiff_t i = 0; i < block.m; ++i)
                    c[i] *= block.beta;
        }
    });
}

// ---- naive --------------------------------------------------------------------------------------------------------

const char *refuses_device_scalars(const Problem &p, const Device &) {
    return p.alpha.known() && p.beta.known() ? nullptr : "it takes alpha and beta from host memory only";
}

double flops(const Problem &p) {
    return 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.batch);
}

double naive_cost(const Problem &p, const Device &) {
    return 1e-8 + flops(p) * 1e-9;
}

Status naive_launch(const Problem &p, const Launch &launch) {
    if (p.depth(p.alpha.value) == 0)
        return scale(p);
    return for_pieces(p, {64, 64, p.k}, naive_cost(p, *launch.device), [](const Product &q, float *) {
        for (ptrdiff_t j = 0; j < q.n; ++j)
            for (ptrdiff_t i = 0; i < q.m; ++i) {
                float sum = 0;
                for (ptrdiff_t p0 = 0; p0 < q.k; p0 += kOuterDepth) {
                    float part = 0;
                    for (ptrdiff_t l = p0, end = std::min(q.k, p0 + kOuterDepth); l < end; ++l)
                        part += q.a[i * q.a_row + l * q.a_col] * q.b[l * q.b_row + j * q.b_col];
                    sum += part;
                }
                float *c = q.c + i * q.c_row + j * q.c_col;
                *c = q.beta == 0.0f ? q.alpha * sum : std::fma(q.alpha, sum, q.beta * *c);
            }
    });
}

// ---- small --------------------------------------------------------------------------------------------------------

// Tiles are whole vectors high, 16 floats at most.
double padded_flops(const Problem &p) {
    return 2.0 * double((p.m + 15) / 16 * 16) * double(p.n) * double(p.k);
}

// Bytes of the operands of one product, as far as they do not stay in a core's level 2 cache.
double bytes(const Problem &p) {
    const double all = 4.0 * (double(p.m) * double(p.k) + double(p.k) * double(p.n) + double(p.m) * double(p.n));
    return all > 1e6 ? all : 0.0;
}

// Seconds to write C, which only shows where k is short.
double stored(const Problem &p) {
    return double(p.m) * double(p.n) * 0.035e-9;
}

double small_cost(const Problem &p, const Device &d) {
    // Columns of A that lie far apart cost cache lines and translations, and a B beyond the level 2 cache is fetched
    // for each strip of rows.
    const bool plain = p.transa == Op::N, many = p.n >= 32;
    const double far = !plain || !many || p.a.ld < 256 ? 1.0 : p.a.ld < 512 ? 1.02 : p.a.ld < 1024 ? 1.06 : 1.5;
    const double fetched = many && double(p.k) * double(p.n) > 262144 ? 1.12 : 1.0;
    const double copies = plain ? 0.0 : double(p.m) * double(p.k) * 0.08e-9;
    // Few tiles and a long k: nothing to share out.
    const double alone = p.k >= 16 * kOuterDepth && p.m * p.n * p.batch < 65536 ? 1.5 : 1.0;
    const double arithmetic = padded_flops(p) * far * fetched * alone / d.fp32_flops + copies + stored(p);
    const double rate = plain && p.a.ld >= 1024 ? 0.3 * d.bandwidth : 0.6 * d.bandwidth;
    return (20e-9 + std::max(arithmetic, bytes(p) / rate)) * double(p.batch);
}

struct SmallPieces {
    const Isa &set = isa();
    void operator()(const Product &block, float *mine) const { set.outer(block, mine); }
    void operator()(const Problem &p, int64_t begin, int64_t end, float *mine) const {
        if (p.a.array || p.b.array || p.c.array)
            for (int64_t i = begin; i < end; ++i)
                set.outer(product(p, i), mine);
        else
            set.outer_batch(product(p, begin), end - begin, p.a.stride, p.b.stride, p.c.stride, mine);
    }
};

Status small_launch(const Problem &p, const Launch &launch) {
    if (p.depth(p.alpha.value) == 0)
        return scale(p);
    // Pieces for several threads, if it is long enough for them. Two of them had better not write to one line, so a
    // wide C is cut by its columns, unless each tile copies A.
    constexpr double kWorthCutting = 5e-6;
    const double seconds = small_cost(p, *launch.device);
    const bool whole = p.batch > 1 || seconds < kWorthCutting;
    const bool by_columns = !whole && p.n >= 2 * p.m && p.transa == Op::N;
    Cut by = {whole || by_columns ? kRowBlock : 64, by_columns ? 48 : kColBlock, p.k};
    if (const int64_t threads = whole || by_columns ? 0 : thread_limit(); threads > kFewThreads) {
        constexpr int64_t kLeastCols = 32;
        const int64_t wanted = std::min(kTilesEach * threads, int64_t(seconds / kWorthATile));
        const int64_t across = std::clamp<int64_t>(ceil_div(wanted, ceil_div(p.m, by.tile_m)), ceil_div(p.n, kColBlock),
                                                   ceil_div(p.n, kLeastCols));
        by.tile_n = ceil_div(ceil_div(p.n, across), 8) * 8;
    }
    return for_pieces(p, by, seconds, SmallPieces());
}

// ---- skinny -------------------------------------------------------------------------------------------------------

// Is the large matrix contiguous along k, or along the rows or columns of C?
bool along_k(const Problem &p) {
    return p.m <= p.n ? p.transb == Op::N : p.transa == Op::T;
}

double skinny_cost(const Problem &p, const Device &d) {
    const double few = double(std::min(p.m, p.n)), many = double(std::max(p.m, p.n));
    const double arithmetic = 2.0 * few * many * double(p.k) / (0.6 * d.fp32_flops);
    // Out of the level 2 cache a matrix that is read once comes several times as fast as from memory.
    const double read = 4.0 * many * double(p.k) / (bytes(p) > 0 ? d.bandwidth : 4 * d.bandwidth);
    const double written = 4.0 * few * many * 1e-9; // results are finished one by one
    const double turned = p.batch_invariant && along_k(p) ? many * double(p.k) * 0.08e-9 : 0.0;
    return (0.2e-6 + std::max(arithmetic, read) + turned + written) * double(p.batch);
}

Status skinny_launch(const Problem &p, const Launch &launch) {
    if (p.depth(p.alpha.value) == 0)
        return scale(p);
    const bool wide = p.m <= p.n; // B is the large one
    const int64_t few = std::min(p.m, p.n), many = std::max(p.m, p.n);
    const double seconds = skinny_cost(p, *launch.device);
    if (p.batch_invariant && along_k(p)) // dot's order of sums is its own, so the large matrix is turned for outer
        return for_pieces(p, cut(p, wide ? few : kRowBlock, wide ? kRowBlock : few, kOuterDepth, seconds), seconds,
                          [&set = isa(), wide](const Product &block, float *mine) {
                              set.outer(wide ? block.transposed() : block, mine);
                          });
    // stream likes long columns, so it is k that is cut if it is long enough; dot likes long rows, its k is cut last.
    const int64_t longest = along_k(p) ? kDotCols : kStreamSums / std::min<int64_t>(few, kStreamMostCols);
    const int64_t even = ceil_div(ceil_div(many, kEnoughTiles), 64) * 64;
    const bool cut_k = p.k >= 4 * kOuterDepth || seconds < 100e-6;
    const int64_t stripe = !along_k(p) && cut_k ? longest : std::clamp<int64_t>(even, 64, longest);
    const int64_t width = along_k(p) ? few : std::min<int64_t>(few, kStreamMostCols);
    const Cut by = cut(p, wide ? width : stripe, wide ? stripe : width, along_k(p) ? kDotDepth : kOuterDepth, seconds);
    return for_pieces(p, by, seconds, [&set = isa(), wide, dots = along_k(p)](const Product &block, float *mine) {
        if (dots)
            set.dot(wide ? block : block.transposed(), mine);
        else
            set.stream(wide ? block.transposed() : block, mine);
    });
}

// ---- packed -------------------------------------------------------------------------------------------------------

// More than any two cores reach with 256-bit vectors.
constexpr double kFast = 150e9;

double packed_cost(const Problem &p, const Device &d) {
    const double rows_of_b = p.transb == Op::T ? std::ceil(double(p.m) / kPackRows) * 0.05e-9 : 0.0;
    const double rows_of_a = std::ceil(double(p.n) / kPackCols) * 0.05e-9;
    // Unlike cpu_small it does not fetch the operands of small products to come.
    const double waited_for = p.batch > 1 && bytes(p) == 0.0 ? 4.0 * double(p.m + p.n) / (0.6 * d.bandwidth) : 0.0;
    const double copies = double(p.k) * (double(p.m) * rows_of_a + double(p.n) * rows_of_b + waited_for);
    const double efficiency = d.fp32_flops > kFast ? 1.0 : 0.95;
    const double arithmetic = padded_flops(p) / (efficiency * d.fp32_flops) + copies + stored(p);
    return (0.1e-6 + std::max(arithmetic, bytes(p) / (0.6 * d.bandwidth))) * double(p.batch);
}

Status packed_launch(const Problem &p, const Launch &launch) {
    if (p.depth(p.alpha.value) == 0)
        return scale(p);
    const double seconds = packed_cost(p, *launch.device);
    Cut by = cut(p, kRowBlock / 4, kColBlock, 4 * kOuterDepth, seconds);
    if (by.depth >= p.k && p.n > kColBlock) {
        // The order of a sum does not depend on the tile it is in, so tiles may follow the threads: few large ones,
        // which copy least, but as many for each thread.
        const int64_t threads = thread_limit(), each = threads > kFewThreads ? kTilesEach : 1,
                      least = threads > kFewThreads ? 64 : 256;
        int64_t down = ceil_div(p.m, kPackRows), across = ceil_div(p.n, kPackCols);
        const auto tiles = [&] { return p.batch * down * across; };
        while ((tiles() % threads != 0 || tiles() < each * threads) && tiles() < 4 * threads &&
               std::max(p.m / down, p.n / across) >= least)
            ++(p.m / down >= p.n / across ? down : across);
        by = {ceil_div(ceil_div(p.m, down), kLine) * kLine, ceil_div(p.n, across), p.k};
    }
    return for_pieces(
        p, by, seconds, [&set = isa()](const Product &block, float *mine) { set.packed(block, mine); }, kPackScratch);
}

// ---- BLAS ---------------------------------------------------------------------------------------------------------

constexpr int64_t kMostInt = 2147483647;
constexpr int64_t kBlasBlock = 512;

const char *blas_refuses(const Problem &p, const Device &d) {
    if (const char *why = refuses_device_scalars(p, d))
        return why;
    if (std::max({p.a.ld, p.b.ld, p.c.ld, p.k}) > kMostInt)
        return "the BLAS counts with 32 bits, and a leading dimension or k has more";
    if (blas_state() == BlasState::absent)
        return "no BLAS library was found";
    return nullptr;
}

double blas_cost(const Problem &p, const Device &d) {
    // Loading it takes milliseconds, so it is not done for small products; and the choice between kernels must not
    // depend on whether an earlier call has loaded it.
    constexpr double kWorthLoading = 8e6;
    const double work = 2.0 * double(p.m) * double(p.n) * double(p.k);
    // With 512-bit vectors the own kernels are faster, so it is not even loaded.
    if (work < kWorthLoading || d.fp32_flops > kFast || !load_blas())
        return HUGE_VAL;
    constexpr double efficiency = 0.98;
    const double few = double(std::min(p.m, p.n)) < 16 ? 3.0 : 1.0; // a large matrix is copied to be used once
    const double copies = double(p.k) * double(p.m + p.n) * 0.04e-9;
    const double arithmetic = work * few / (efficiency * d.fp32_flops) + copies;
    return (0.15e-6 + std::max(arithmetic, bytes(p) / (0.3 * d.bandwidth))) * double(p.batch);
}

Status blas_launch(const Problem &p, const Launch &launch) {
    if (p.depth(p.alpha.value) == 0)
        return scale(p);
    if (!load_blas())
        return fail(PYBLAS_STATUS_NOT_SUPPORTED, "cpu_blas: no BLAS library was found");
    // Blocks of like size; at least four where they are not too small, and an even number, so that none is left over.
    // Large blocks are copied less often, and are used where there are enough of them.
    int64_t most = 4 * kBlasBlock;
    while (most > kBlasBlock && (p.m / most) * (p.n / most) < kEnoughTiles)
        most /= 2;
    int64_t down = ceil_div(p.m, most), across = ceil_div(p.n, most);
    while (down * across < 4 && std::max(p.m / down, p.n / across) >= 256)
        ++(p.m / down > p.n / across ? down : across);
    if (down * across > 1 && down * across % 2 == 1)
        ++across;
    const auto block = [](int64_t extent, int64_t parts) { return ceil_div(ceil_div(extent, parts), 16) * 16; };
    const double seconds = blas_cost(p, *launch.device);
    // Kernels of OpenBLAS for AVX-512 multiply leading dimensions by the columns of a tile in 32 bits.
    constexpr int64_t kMostCols = 64;
    const bool far = std::max({p.a.ld, p.b.ld, p.c.ld}) > kMostInt / kMostCols;
    return for_pieces(p, cut(p, block(p.m, down), block(p.n, across), 4096, seconds), seconds,
                      [&set = isa(), far](const Product &block, float *mine) {
                          if (far || !blas_gemm(block))
                              set.outer(block, mine);
                      });
}

// ---- 16-bit types -------------------------------------------------------------------------------------------------

constexpr int64_t kHalfTile = 256; // rows and columns of C for one piece
constexpr int64_t kHalfScratch = kHalfTile * (kHalfTile + 2 * kOuterDepth) + kScratch;

const char *half_refuses(const Problem &p, const Device &d) {
    return p.c.array ? "it takes no arrays of pointers" : refuses_device_scalars(p, d);
}

double half_cost(const Problem &p, const Device &d) {
    const double reread =
        std::ceil(double(p.n) / kHalfTile) * double(p.m) + std::ceil(double(p.m) / kHalfTile) * double(p.n);
    const double converted = double(p.k) * reread + double(p.m) * double(p.n);
    return (0.2e-6 + padded_flops(p) / (0.8 * d.fp32_flops) + converted * 0.4e-9) * double(p.batch);
}

// rows x columns of 16-bit numbers as floats, each column behind the one before.
void to_floats(Dtype type, const uint16_t *from, int64_t ld, int64_t rows, int64_t columns, float *to, int64_t to_ld) {
    for (int64_t j = 0; j < columns; ++j, from += ld, to += to_ld)
        if (type == Dtype::f16)
            for (int64_t i = 0; i < rows; ++i)
                to[i] = float_of_f16(from[i]);
        else
            for (int64_t i = 0; i < rows; ++i)
                to[i] = float_of_bf16(from[i]);
}

// One column of C. Without sums it is beta * C.
template <class Load, class Store>
void finish(const Problem &p, const float *sums, int64_t rows, const Load &load, const Store &store) {
    for (int64_t i = 0; i < rows; ++i) {
        const float kept = p.beta.value == 0.0f ? 0.0f : p.beta.value * load(i);
        if (!sums)
            store(i, kept);
        else
            store(i, p.beta.value == 0.0f ? p.alpha.value * sums[i] : std::fma(p.alpha.value, sums[i], kept));
    }
}

// A tile of C: sums of 256 of k, each from panels of A and B that were made floats, added in the order of k.
void half_tile(const Problem &p, int64_t batch, int64_t row, int64_t column, float *mine) {
    const int64_t rows = std::min(kHalfTile, p.m - row), columns = std::min(kHalfTile, p.n - column);
    const int64_t depth = p.depth(p.alpha.value);
    float *const a = mine + kHalfTile * kHalfTile, *const b = a + kHalfTile * kOuterDepth;
    const bool a_plain = p.transa == Op::N, b_plain = p.transb == Op::N;
    for (int64_t k = 0; k < depth; k += kOuterDepth) {
        const int64_t deep = std::min<int64_t>(kOuterDepth, depth - k);
        const uint16_t *const from_a =
            p.a.matrix<const uint16_t>(batch) + (a_plain ? row + k * p.a.ld : k + row * p.a.ld);
        const uint16_t *const from_b =
            p.b.matrix<const uint16_t>(batch) + (b_plain ? k + column * p.b.ld : column + k * p.b.ld);
        const int64_t a_ld = a_plain ? rows : deep, b_ld = b_plain ? deep : columns;
        to_floats(p.a.dtype, from_a, p.a.ld, a_ld, a_plain ? deep : rows, a, a_ld);
        to_floats(p.b.dtype, from_b, p.b.ld, b_ld, b_plain ? columns : deep, b, b_ld);
        Product q;
        q.m = rows, q.n = columns, q.k = deep;
        q.a = a, q.a_row = a_plain ? 1 : a_ld, q.a_col = a_plain ? a_ld : 1;
        q.b = b, q.b_row = b_plain ? 1 : b_ld, q.b_col = b_plain ? b_ld : 1;
        q.c = mine, q.c_row = 1, q.c_col = rows;
        q.alpha = 1, q.beta = k == 0 ? 0 : 1;
        isa().outer(q, b + kHalfTile * kOuterDepth);
    }
    for (int64_t j = 0; j < columns; ++j) {
        const float *const sums = depth == 0 ? nullptr : mine + j * rows;
        const int64_t at = batch * p.c.stride + row + (column + j) * p.c.ld;
        if (p.c.dtype == Dtype::f32) {
            float *const c = static_cast<float *>(p.c.data) + at;
            finish(p, sums, rows, [c](int64_t i) { return c[i]; }, [c](int64_t i, float value) { c[i] = value; });
            continue;
        }
        uint16_t *const c = static_cast<uint16_t *>(p.c.data) + at;
        if (p.c.dtype == Dtype::f16)
            finish(
                p, sums, rows, [c](int64_t i) { return float_of_f16(c[i]); },
                [c](int64_t i, float value) { c[i] = f16_of(value); });
        else
            finish(
                p, sums, rows, [c](int64_t i) { return float_of_bf16(c[i]); },
                [c](int64_t i, float value) { c[i] = bf16_of(value); });
    }
}

Status half_launch(const Problem &p, const Launch &launch) {
    const int64_t down = ceil_div(p.m, kHalfTile), tiles = down * ceil_div(p.n, kHalfTile), pieces = p.batch * tiles;
    const double seconds = half_cost(p, *launch.device);
    const int64_t share = pieces_at_once(pieces, seconds);
    std::atomic<bool> failed{false};
    parallel(ceil_div(pieces, share), seconds, [&](int64_t index) {
        float *const mine = scratch(kHalfScratch);
        if (!mine) {
            failed.store(true, std::memory_order_relaxed);
            return;
        }
        for (int64_t i = index * share, end = std::min(pieces, i + share); i < end; ++i)
            half_tile(p, i / tiles, i % tiles % down * kHalfTile, i % tiles / down * kHalfTile, mine);
    });
    return failed.load() ? no_memory(kHalfScratch * int64_t(sizeof(float))) : kSuccess;
}

// ---- rows ---------------------------------------------------------------------------------------------------------

constexpr Kernel kRows[] = {
    {"cpu_naive", "cpu_naive", Engine::cpu, kFp32Modes, 0, false, refuses_device_scalars, nullptr, naive_cost,
     naive_launch},
    {"cpu_small", "cpu_small", Engine::cpu, kFp32Modes, 0, false, refuses_device_scalars, nullptr, small_cost,
     small_launch, true},
    {"cpu_skinny", "cpu_skinny", Engine::cpu, kFp32Modes, 0, false, refuses_device_scalars, nullptr, skinny_cost,
     skinny_launch, true},
    {"cpu_packed", "cpu_packed", Engine::cpu, kFp32Modes, 0, false, refuses_device_scalars, nullptr, packed_cost,
     packed_launch, true},
    {"cpu_blas", "cpu_blas", Engine::cpu, kFp32Modes, 0, false, blas_refuses, nullptr, blas_cost, blas_launch},
    {"cpu_half", "cpu_half", Engine::cpu, kFp32Modes, 0, false, half_refuses, nullptr, half_cost, half_launch, true,
     Footprint{}, nullptr, kHalfTypes},
};

} // namespace

Device device() {
    Device d;
    d.engine = Engine::cpu;
    const char *set = isa().name;
    d.fp32_flops = set[3] == '5' ? 240e9 : set[0] == 'a' ? 120e9 : 25e9;
    d.bandwidth = 30e9;
    return d;
}

Status info(pyblasCpuInfo_t *out) {
    *out = pyblasCpuInfo_t{};
    std::snprintf(out->instruction_set, sizeof out->instruction_set, "%s", isa().name);
    std::snprintf(out->blas, sizeof out->blas, "%s", blas_config());
    std::snprintf(out->blas_path, sizeof out->blas_path, "%s", blas_path());
    out->threads = thread_limit();
    return kSuccess;
}

Status set_num_threads(int threads) {
    if (threads < 0)
        return fail(PYBLAS_STATUS_INVALID_VALUE, "set_num_threads: argument 1 (threads) is %d, must be at least 0",
                    threads);
    set_thread_limit(threads);
    return kSuccess;
}

int num_threads() {
    return thread_limit();
}

Status set_blas_library(const char *path) {
    return name_blas(path);
}

Status check_environment() {
    if (threads_of_environment() < 0)
        return fail(PYBLAS_STATUS_INVALID_VALUE,
                    "environment variable PYBLAS_SGEMM_THREADS is '%s', must be a number of threads, or 0 for all",
                    std::getenv("PYBLAS_SGEMM_THREADS"));
    if (!environment_names_an_isa())
        return fail(PYBLAS_STATUS_INVALID_VALUE,
                    "environment variable PYBLAS_SGEMM_CPU is '%s', must be generic, avx2 or avx512",
                    std::getenv("PYBLAS_SGEMM_CPU"));
    return kSuccess;
}

} // namespace pyblas::cpu

namespace pyblas {
KernelRows cpu_rows() {
    return rows(cpu::kRows);
}
} // namespace pyblas

// outer, outer_batch, packed, stream and dot, written once over a vector type. isa_avx512.cpp, isa_avx2.cpp and
// isa_generic.cpp include this file under a target pragma (so it includes nothing), after they have defined
//  - Vec, kLanes, Mask; mask(n): the first n lanes; load(p), load(p, mask): other lanes are 0 and not read
//  - store(p, v), store(p, v, mask); store_past_cache(p, v): p is a multiple of 16 bytes;
//    finish_past_cache(): others see it as if stored
//  - zero(), set1(x), add(a, b), mul(a, b), fma(a, b, c), fma_exact(a, b, c): rounded once; sum(v): over all lanes
//  - kMaskIsFree: masked loads cost no more than others
//  - kTileCols[v]: columns of a tile v vectors high, v <= kMaxHeight; kPackHeight: vectors of a tile of packed, 2 or 3
//  - kAhead: steps from a load to its prefetch
//  - kStreamColumns: of A, read at a time; kDotTileRows, kDotTileCols and, for their product, kDotTile
//  - transpose_tile<Whole>(in, stride, out, ldo, rows, cols): rows and cols of in are kSquare if Whole, or fewer
//
//   outer:  C tile  +=  column of A  x  row of B        dot:  C tile  +=  rows of A  .  columns of B
//           [v][v][v][v]^T           [x x x x x x]            each a register of partial sums, added up at the end

// ---- outer --------------------------------------------------------------------------------------------------------

struct Tile {
    ptrdiff_t k;
    const float *a;
    ptrdiff_t a_col;
    ptrdiff_t ahead; // elements from what is loaded to what is prefetched
    const float *b;
    ptrdiff_t b_step; // the stride of B that is not 1
    ptrdiff_t rows;   // of the tile's height that exist
    float *partial;   // sums of earlier depths
    ptrdiff_t partial_col;
    bool first, last; // depth of this product
    float *c;
    ptrdiff_t c_row, c_col;
    float alpha, beta;
    bool past_cache; // whole vectors of C are written past the caches
};

// Columns of sums, height apart, to a C whose rows or columns lie anywhere.
[[gnu::noinline]] void scatter(const Tile &t, const float *sums, ptrdiff_t height, ptrdiff_t cols) {
    for (ptrdiff_t i = 0; i < t.rows; ++i)
        for (ptrdiff_t j = 0; j < cols; ++j) {
            float *c = t.c + i * t.c_row + j * t.c_col;
            const float s = sums[i + j * height];
            *c = t.beta == 0.0f ? t.alpha * s : __builtin_fmaf(t.alpha, s, t.beta * *c);
        }
}

template <int Height, int Cols>
inline void finish(const Tile &t, Vec (&acc)[Height][Cols]) {
    if (t.c_row != 1) {
        alignas(64) float sums[Cols * Height * kLanes];
#pragma GCC unroll 16
        for (int j = 0; j < Cols; ++j)
#pragma GCC unroll 4
            for (int v = 0; v < Height; ++v)
                store(sums + (j * Height + v) * kLanes, acc[v][j]);
        return scatter(t, sums, Height * kLanes, Cols);
    }
    const Vec alpha = set1(t.alpha), beta = set1(t.beta);
    const bool whole = t.rows == Height * kLanes;
    const Mask edge = mask(t.rows - (Height - 1) * kLanes);
    const bool read_c = t.beta != 0.0f;
    float *c = t.c;
    if (t.past_cache && whole) {
#pragma GCC unroll 16
        for (int j = 0; j < Cols; ++j, c += t.c_col)
#pragma GCC unroll 4
            for (int v = 0; v < Height; ++v)
                store_past_cache(c + v * kLanes, mul(alpha, acc[v][j]));
        return;
    }
#pragma GCC unroll 16
    for (int j = 0; j < Cols; ++j, c += t.c_col)
#pragma GCC unroll 4
        for (int v = 0; v < Height; ++v) {
            float *p = c + v * kLanes;
            if (v < Height - 1 || whole)
                store(p, read_c ? fma_exact(alpha, acc[v][j], mul(beta, load(p))) : mul(alpha, acc[v][j]));
            else
                store(p, read_c ? fma_exact(alpha, acc[v][j], mul(beta, load(p, edge))) : mul(alpha, acc[v][j]), edge);
        }
}

// RowsOfB: elements of B along a row lie side by side (b_col == 1), otherwise those along a column do. Cut: the last
// vector of the height is not whole.
template <int Height, int Cols, bool RowsOfB, bool Cut>
void tile(const Tile &t) {
    Vec acc[Height][Cols];
#pragma GCC unroll 4
    for (int v = 0; v < Height; ++v)
#pragma GCC unroll 16
        for (int j = 0; j < Cols; ++j)
            acc[v][j] = zero();
    const Mask edge = mask(t.rows - (Height - 1) * kLanes);
    const float *a = t.a;
    const ptrdiff_t b_step = t.b_step, a_col = t.a_col, ahead = t.ahead;
    // Three columns share a pointer, which keeps the pointers in registers.
    constexpr int kPointers = RowsOfB ? 1 : (Cols + 2) / 3;
    const float *b[kPointers];
#pragma GCC unroll 16
    for (int q = 0; q < kPointers; ++q)
        b[q] = t.b + 3 * q * b_step;
    for (ptrdiff_t p = t.k; p > 0; --p) {
        Vec x[Height];
#pragma GCC unroll 4
        for (int v = 0; v < Height; ++v) {
            x[v] = Cut && v == Height - 1 ? load(a + v * kLanes, edge) : load(a + v * kLanes);
            if (Height > 1)
                __builtin_prefetch(a + ahead + v * kLanes);
        }
#pragma GCC unroll 16
        for (int j = 0; j < Cols; ++j) {
            const Vec y = set1(RowsOfB ? b[0][j] : b[j / 3][j % 3 * b_step]);
#pragma GCC unroll 4
            for (int v = 0; v < Height; ++v)
                acc[v][j] = fma(x[v], y, acc[v][j]);
        }
        a += a_col;
#pragma GCC unroll 16
        for (int q = 0; q < kPointers; ++q)
            b[q] += RowsOfB ? b_step : 1;
    }
    if (!t.first)
#pragma GCC unroll 16
        for (int j = 0; j < Cols; ++j)
#pragma GCC unroll 4
            for (int v = 0; v < Height; ++v)
                acc[v][j] = add(load(t.partial + v * kLanes + j * t.partial_col), acc[v][j]);
    if (t.last)
        return finish<Height, Cols>(t, acc);
#pragma GCC unroll 16
    for (int j = 0; j < Cols; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < Height; ++v)
            store(t.partial + v * kLanes + j * t.partial_col, acc[v][j]);
}

using TileFunction = void (*)(const Tile &);
constexpr int kMostCols = 16;

struct TileTable {
    TileFunction f[kMaxHeight][kMostCols][2][2];
};

template <int Height, int Cols>
constexpr void fill_tiles(TileTable &table) {
    if constexpr (Cols >= 1) {
        auto &f = table.f[Height - 1][Cols - 1];
        f[0][0] = tile<Height, Cols, false, kMaskIsFree>;
        f[0][1] = tile<Height, Cols, false, true>;
        f[1][0] = tile<Height, Cols, true, kMaskIsFree>;
        f[1][1] = tile<Height, Cols, true, true>;
        fill_tiles<Height, Cols - 1>(table);
    } else if constexpr (Height > 1) {
        fill_tiles<Height - 1, kTileCols[Height - 1]>(table);
    }
}

constexpr TileTable make_tiles() {
    TileTable table{};
    fill_tiles<kMaxHeight, kTileCols[kMaxHeight]>(table);
    return table;
}
constexpr TileTable kTiles = make_tiles();

// out[p * width + i] = in[i * step_i + p * step_p] for i < count and p < depth. Inlined, because a call keeps the loads
// from starting before the tiles ahead of them have ended.
[[gnu::always_inline]] inline void pack(ptrdiff_t count, ptrdiff_t depth, const float *in, ptrdiff_t step_i,
                                        ptrdiff_t step_p, float *out, ptrdiff_t width) {
    if (step_i == 1) {
        const ptrdiff_t whole = count / kLanes * kLanes;
        const Mask edge = mask(count - whole);
        for (ptrdiff_t p = 0; p < depth; ++p, in += step_p, out += width) {
            for (ptrdiff_t i = 0; i < whole; i += kLanes)
                store(out + i, load(in + i));
            if (whole < count)
                store(out + whole, load(in + whole, edge), edge);
        }
        return;
    }
    for (ptrdiff_t i = 0; i < count; i += kSquare)
        for (ptrdiff_t p = 0; p < depth; p += kSquare) {
            const float *from = in + i * step_i + p;
            float *to = out + p * width + i;
            if (i + kSquare <= count && p + kSquare <= depth)
                transpose_tile<true>(from, step_i, to, width, kSquare, kSquare);
            else
                transpose_tile<false>(from, step_i, to, width, count - i < kSquare ? count - i : kSquare,
                                      depth - p < kSquare ? depth - p : kSquare);
        }
}

// Near-equal parts instead of full ones and a small rest: a narrow tile wastes loads.
struct Parts {
    ptrdiff_t count, small, larger; // the first larger parts have small + 1
    Parts(ptrdiff_t length, ptrdiff_t most) {
        count = length <= most ? 1 : unsigned(length + most - 1) / unsigned(most);
        small = count == 1 ? length : unsigned(length) / unsigned(count);
        larger = length - small * count;
    }
    ptrdiff_t operator[](ptrdiff_t i) const { return small + (i < larger); }
};

// Nothing of C may be wanted, and what is written past the caches should be whole cache lines: tiles begin with one, or
// C is written from end to end, and then in pieces of 16 bytes, which is how NumPy aligns.
inline bool past_cache(const Product &p) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(p.c);
    const bool lines = start % 64 == 0 && p.c_col % 16 == 0;
    const bool all = start % 16 == 0 && p.c_col == p.m && p.m % kLanes == 0 && p.m <= kMaxHeight * kLanes;
    return p.large && p.beta == 0.0f && p.c_row == 1 && (lines || all);
}

// The lines of rows x cols elements, whose step is 1 in one of the two directions.
inline void fetch(const float *from, ptrdiff_t row, ptrdiff_t col, ptrdiff_t rows, ptrdiff_t cols) {
    ptrdiff_t length = row == 1 ? rows : cols, count = row == 1 ? cols : rows;
    const ptrdiff_t step = row == 1 ? col : row;
    if (step == length) {
        length *= count;
        count = 1;
    }
    for (; count > 0; --count, from += step)
        for (ptrdiff_t i = 0; i < length; i += kLine)
            __builtin_prefetch(from + i);
}

// next_a, next_b: elements from A and B to those of a later product, which are fetched meanwhile; or 0.
void outer_tiles(const Product &p, bool pack_a, ptrdiff_t next_a, ptrdiff_t next_b, float *scratch) {
    const bool rows_of_b = p.b_col == 1;
    float *packed_a = scratch, *partial = packed_a + kMaxHeight * kLanes * kOuterDepth;
    Tile t;
    t.alpha = p.alpha;
    t.beta = p.beta;
    t.c_row = p.c_row;
    t.c_col = p.c_col;
    t.partial_col = kRowBlock;
    t.past_cache = past_cache(p);
    t.b_step = rows_of_b ? p.b_row : p.b_col;
    for (ptrdiff_t j0 = 0; j0 < p.n; j0 += kColBlock) {
        const ptrdiff_t cols = p.n - j0 < kColBlock ? p.n - j0 : kColBlock;
        for (ptrdiff_t i0 = 0; i0 < p.m; i0 += kRowBlock) {
            const ptrdiff_t rows = p.m - i0 < kRowBlock ? p.m - i0 : kRowBlock;
            const Parts heights((rows + kLanes - 1) / kLanes, kMaxHeight);
            for (ptrdiff_t p0 = 0; p0 < p.k; p0 += kOuterDepth) {
                t.k = p.k - p0 < kOuterDepth ? p.k - p0 : kOuterDepth;
                t.first = p0 == 0;
                t.last = p0 + t.k == p.k;
                const float *b = p.b + p0 * p.b_row + j0 * p.b_col;
                ptrdiff_t i = 0;
                for (ptrdiff_t h = 0; h < heights.count; ++h) {
                    const ptrdiff_t height = heights[h];
                    t.rows = rows - i < height * kLanes ? rows - i : height * kLanes;
                    const Parts widths(cols, kTileCols[height]);
                    t.a = p.a + (i0 + i) * p.a_row + p0 * p.a_col;
                    t.a_col = p.a_col;
                    if (pack_a) {
                        if (next_a != 0)
                            fetch(t.a + next_a, p.a_row, p.a_col, t.rows, t.k);
                        pack(t.rows, t.k, t.a, p.a_row, p.a_col, packed_a, height * kLanes);
                        t.a = packed_a;
                        t.a_col = height * kLanes;
                    }
                    const bool cut = t.rows < height * kLanes;
                    ptrdiff_t j = 0;
                    for (ptrdiff_t w = 0; w < widths.count; ++w) {
                        const ptrdiff_t width = widths[w];
                        t.ahead = next_a != 0 && !pack_a && w == widths.count - 1 ? next_a : kAhead * t.a_col;
                        t.b = b + j * p.b_col;
                        if (next_b != 0 && i0 + i == 0)
                            fetch(t.b + next_b, p.b_row, p.b_col, t.k, width);
                        t.partial = partial + i + j * kRowBlock;
                        t.c = p.c + (i0 + i) * p.c_row + (j0 + j) * p.c_col;
                        kTiles.f[height - 1][width - 1][rows_of_b][cut](t);
                        j += width;
                    }
                    i += height * kLanes;
                }
            }
        }
    }
    if (t.past_cache)
        finish_past_cache();
}

void outer(const Product &p, float *scratch) {
    outer_tiles(p, p.a_row != 1, 0, 0, scratch);
}

void outer_batch(const Product &first, ptrdiff_t count, ptrdiff_t next_a, ptrdiff_t next_b, ptrdiff_t next_c,
                 float *scratch) {
    const ptrdiff_t height = (first.m + kLanes - 1) / kLanes;
    // So many products ahead that memory has the time it needs.
    constexpr ptrdiff_t kFetched = 1024;
    const ptrdiff_t far = first.m * first.k < kFetched ? kFetched / (first.m * first.k) : 1;
    if (height > kMaxHeight || first.a_row != 1 || first.k > kOuterDepth || first.n > 4 * kMostCols) {
        Product p = first;
        const ptrdiff_t ahead = p.large ? far : 0;
        for (ptrdiff_t i = 0; i < count; ++i, p.a += next_a, p.b += next_b, p.c += next_c)
            outer_tiles(p, p.a_row != 1, ahead * next_a, ahead * next_b, scratch);
        return;
    }
    // Tiny products, one tile high: what all have in common is worked out once.
    const bool rows_of_b = first.b_col == 1, cut = first.m < height * kLanes;
    const Parts widths(first.n, kTileCols[height]);
    const TileFunction wide = kTiles.f[height - 1][widths[0] - 1][rows_of_b][cut];
    const TileFunction narrow = kTiles.f[height - 1][widths.small - 1][rows_of_b][cut];
    Product p = first;
    Tile t;
    t.k = p.k;
    t.a_col = p.a_col;
    t.ahead = far * next_a;
    t.b_step = rows_of_b ? p.b_row : p.b_col;
    t.rows = p.m;
    t.partial = nullptr;
    t.partial_col = 0;
    t.first = t.last = true;
    t.c_row = p.c_row;
    t.c_col = p.c_col;
    t.alpha = p.alpha;
    t.beta = p.beta;
    t.past_cache = past_cache(p) && next_c % kLanes == 0;
    for (ptrdiff_t i = 0; i < count; ++i, p.a += next_a, p.b += next_b, p.c += next_c) {
        t.a = p.a;
        t.b = p.b;
        t.c = p.c;
        if (p.large && height == 1) // higher tiles do it themselves
            fetch(t.a + t.ahead, 1, p.a_col, p.m, p.k);
        for (ptrdiff_t w = 0; w < widths.count; ++w) {
            const ptrdiff_t width = widths[w];
            if (p.large)
                fetch(t.b + far * next_b, p.b_row, p.b_col, p.k, width);
            (w < widths.larger ? wide : narrow)(t);
            t.b += width * p.b_col;
            t.c += width * p.c_col;
        }
    }
    if (t.past_cache)
        finish_past_cache();
}

// ---- packed -------------------------------------------------------------------------------------------------------

// Panels of Width columns, one after the other, from rows of count elements of B (the last panel may be narrower).
template <int Width>
void pack_panels(ptrdiff_t count, ptrdiff_t depth, const float *b, ptrdiff_t b_row, float *out) {
    const ptrdiff_t whole = count / Width, rest = count % Width;
    for (ptrdiff_t p = 0; p < depth; ++p, b += b_row, out += Width) {
        for (ptrdiff_t w = 0; w < whole; ++w)
            __builtin_memcpy(out + w * Width * kOuterDepth, b + w * Width, Width * sizeof(float));
        for (ptrdiff_t j = 0; j < rest; ++j)
            out[whole * Width * kOuterDepth + j] = b[whole * Width + j];
    }
}

// Strips of A, Height vectors high, are copied to the level 2 cache a few at a time, and each panel of B comes into the
// level 1 cache once for all of them. Sums wait in the order of the tiles until the next depth.
template <int Height>
void packed_strips(const Product &p, float *scratch) {
    constexpr ptrdiff_t kStripRows = Height * kLanes, kWidth = kTileCols[Height];
    constexpr ptrdiff_t kStrips = kPackStripRows / kStripRows; // copied at a time
    constexpr ptrdiff_t kGroup = 8 * kWidth;                   // columns of B copied at a time: whole lines of a row
    const ptrdiff_t most_cols = p.n < kPackCols ? p.n : kPackCols, depth = p.k < kOuterDepth ? p.k : kOuterDepth;
    float *packed_a = scratch, *partial = packed_a + kPackStripRows * kOuterDepth;
    float *packed_b = partial + (kPackRows + kStripRows) * most_cols;
    // Columns of B are read as they are: their elements lie side by side in the order of use.
    const bool pack_b = p.b_col == 1;
    Tile t;
    t.alpha = p.alpha;
    t.beta = p.beta;
    t.c_row = p.c_row;
    t.c_col = p.c_col;
    t.b_step = pack_b ? kWidth : p.b_col;
    t.past_cache = past_cache(p);
    for (ptrdiff_t j0 = 0; j0 < p.n; j0 += kPackCols) {
        const ptrdiff_t cols = p.n - j0 < kPackCols ? p.n - j0 : kPackCols;
        for (ptrdiff_t i0 = 0; i0 < p.m; i0 += kPackRows) {
            const ptrdiff_t rows = p.m - i0 < kPackRows ? p.m - i0 : kPackRows;
            const Parts heights((rows + kLanes - 1) / kLanes, Height);
            // Where B stays in the level 2 cache, a strip is used while it is still in the first.
            const ptrdiff_t together = cols * depth > kColBlock * kOuterDepth ? kStrips : 1;
            for (ptrdiff_t p0 = 0; p0 < p.k; p0 += kOuterDepth) {
                t.k = p.k - p0 < kOuterDepth ? p.k - p0 : kOuterDepth;
                t.first = p0 == 0;
                t.last = p0 + t.k == p.k;
                const float *b = p.b + p0 * p.b_row + j0 * p.b_col;
                float *sums = partial;
                ptrdiff_t i = 0;
                for (ptrdiff_t h0 = 0; h0 < heights.count; h0 += together) {
                    const ptrdiff_t strips = heights.count - h0 < together ? heights.count - h0 : together;
                    ptrdiff_t begin[kStrips + 1];
                    begin[0] = i;
                    for (ptrdiff_t h = 0; h < strips; ++h) {
                        const ptrdiff_t height = heights[h0 + h] * kLanes, left = rows - begin[h];
                        pack(left < height ? left : height, t.k, p.a + (i0 + begin[h]) * p.a_row + p0 * p.a_col,
                             p.a_row, p.a_col, packed_a + h * kStripRows * kOuterDepth, height);
                        begin[h + 1] = begin[h] + height;
                    }
                    for (ptrdiff_t j = 0; j < cols; j += kWidth) {
                        const ptrdiff_t width = cols - j < kWidth ? cols - j : kWidth;
                        if (pack_b && h0 == 0 && j % kGroup == 0)
                            pack_panels<kWidth>(cols - j < kGroup ? cols - j : kGroup, t.k, b + j, p.b_row,
                                                packed_b + j * kOuterDepth);
                        t.b = pack_b ? packed_b + j * kOuterDepth : b + j * p.b_col;
                        for (ptrdiff_t h = 0; h < strips; ++h) {
                            const ptrdiff_t height = heights[h0 + h], left = rows - begin[h];
                            t.a = packed_a + h * kStripRows * kOuterDepth;
                            t.a_col = t.partial_col = height * kLanes;
                            t.ahead = kAhead * t.a_col;
                            t.rows = left < t.a_col ? left : t.a_col;
                            t.partial = sums;
                            t.c = p.c + (i0 + begin[h]) * p.c_row + (j0 + j) * p.c_col;
                            if (!t.first)
                                for (ptrdiff_t e = 0; e < t.a_col * width; e += kLine)
                                    __builtin_prefetch(sums + e, 1);
                            kTiles.f[height - 1][width - 1][pack_b][left < t.a_col](t);
                            sums += t.a_col * width;
                        }
                    }
                    i = begin[strips];
                }
            }
        }
    }
    if (t.past_cache)
        finish_past_cache();
}

void packed(const Product &p, float *scratch) {
    const ptrdiff_t height = (p.m + kLanes - 1) / kLanes;
    if (p.n <= kColBlock) // a strip of A is waited for and used at once
        outer_tiles(p, true, 0, 0, scratch);
    else if (height >= kPackHeight)
        packed_strips<kPackHeight>(p, scratch);
    else if (kPackHeight > 2 && height == 2)
        packed_strips<2>(p, scratch);
    else
        packed_strips<1>(p, scratch);
}

// ---- stream --------------------------------------------------------------------------------------------------------

constexpr ptrdiff_t kStreamAhead = 512;

// sums[i] += a[q][i] * factors[q] for kVectorColumns columns of A and whole vectors; returns how many rows it did. The
// case of one column, where all that matters is how fast A comes from memory.
constexpr int kVectorColumns = 4;

ptrdiff_t stream_vector(ptrdiff_t rows, const float *a, ptrdiff_t a_col, const float *b, ptrdiff_t b_row, float *sums) {
    constexpr int kVectors = 4;
    Vec factors[kVectorColumns];
#pragma GCC unroll 4
    for (int q = 0; q < kVectorColumns; ++q)
        factors[q] = set1(b[q * b_row]);
    ptrdiff_t i = 0;
    for (; i + kVectors * kLanes <= rows; i += kVectors * kLanes) {
        Vec s[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
            s[v] = load(sums + i + v * kLanes);
#pragma GCC unroll 4
        for (int q = 0; q < kVectorColumns; ++q)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                const float *at = a + q * a_col + i + v * kLanes;
                s[v] = fma(load(at), factors[q], s[v]);
                __builtin_prefetch(at + kStreamAhead);
            }
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
            store(sums + i + v * kLanes, s[v]);
    }
    return i;
}

// sums[j][i] += a[q][i] * b[q][j] for Columns columns of A, or = if they are the first.
template <int Columns>
void stream_columns(const Product &p, ptrdiff_t rows, const float *a, const float *b, float *sums, ptrdiff_t stride,
                    bool first) {
    constexpr int kVectors = 2;
    float factors[kStreamMostCols * Columns];
    for (ptrdiff_t j = 0; j < p.n; ++j)
        for (int q = 0; q < Columns; ++q)
            factors[j * Columns + q] = b[q * p.b_row + j * p.b_col];
    for (ptrdiff_t i = 0; i < rows; i += kVectors * kLanes) {
        Vec x[Columns][kVectors];
        const ptrdiff_t left = rows - i;
        if (left >= kVectors * kLanes) {
#pragma GCC unroll 8
            for (int q = 0; q < Columns; ++q)
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v) {
                    const float *at = a + q * p.a_col + i + v * kLanes;
                    x[q][v] = load(at);
                    __builtin_prefetch(at + kStreamAhead);
                }
        } else {
            const Mask low = mask(left < kLanes ? left : kLanes), high = mask(left < kLanes ? 0 : left - kLanes);
#pragma GCC unroll 8
            for (int q = 0; q < Columns; ++q) {
                x[q][0] = load(a + q * p.a_col + i, low);
                x[q][1] = load(a + q * p.a_col + i + kLanes, high);
            }
        }
        const float *y = factors;
        float *s = sums + i;
        for (ptrdiff_t j = 0; j < p.n; ++j, y += Columns, s += stride) {
            Vec low = first ? zero() : load(s), high = first ? zero() : load(s + kLanes);
#pragma GCC unroll 8
            for (int q = 0; q < Columns; ++q) {
                const Vec factor = set1(y[q]);
                low = fma(x[q][0], factor, low);
                high = fma(x[q][1], factor, high);
            }
            store(s, low);
            store(s + kLanes, high);
        }
    }
}

void stream(const Product &p, float *scratch) {
    // A stride that is no power of two: a load must not look like a store that is under way.
    constexpr ptrdiff_t kStep = 2 * kLanes;
    const ptrdiff_t block = (kStreamSums / p.n / kStep - 1) * kStep;
    float *sums = scratch, *totals = scratch + kStreamSums;
    for (ptrdiff_t i0 = 0; i0 < p.m; i0 += block) {
        const ptrdiff_t rows = p.m - i0 < block ? p.m - i0 : block;
        const ptrdiff_t stride = (rows + kStep - 1) / kStep * kStep + kStep;
        for (ptrdiff_t p0 = 0; p0 < p.k; p0 += kOuterDepth) {
            const ptrdiff_t depth = p.k - p0 < kOuterDepth ? p.k - p0 : kOuterDepth;
            const float *a = p.a + i0 + p0 * p.a_col, *b = p.b + p0 * p.b_row;
            ptrdiff_t q = 0;
            if (p.n == 1) {
                for (ptrdiff_t e = 0; e < stride; e += kLanes)
                    store(sums + e, zero());
                for (; q + kVectorColumns <= depth; q += kVectorColumns) {
                    const ptrdiff_t done =
                        stream_vector(rows, a + q * p.a_col, p.a_col, b + q * p.b_row, p.b_row, sums);
                    if (done < rows)
                        stream_columns<kVectorColumns>(p, rows - done, a + q * p.a_col + done, b + q * p.b_row,
                                                       sums + done, stride, false);
                }
            }
            for (; q + kStreamColumns <= depth; q += kStreamColumns)
                stream_columns<kStreamColumns>(p, rows, a + q * p.a_col, b + q * p.b_row, sums, stride,
                                               q == 0 && p.n > 1);
            for (; q < depth; ++q)
                stream_columns<1>(p, rows, a + q * p.a_col, b + q * p.b_row, sums, stride, q == 0 && p.n > 1);
            for (ptrdiff_t e = 0; e < p.n * stride; e += kLanes)
                store(totals + e, p0 == 0 ? load(sums + e) : add(load(totals + e), load(sums + e)));
        }
        for (ptrdiff_t j = 0; j < p.n; ++j)
            for (ptrdiff_t i = 0; i < rows; ++i) {
                float *c = p.c + (i0 + i) * p.c_row + j * p.c_col;
                const float s = totals[i + j * stride];
                *c = p.beta == 0.0f ? p.alpha * s : __builtin_fmaf(p.alpha, s, p.beta * *c);
            }
    }
}

// ---- dot ----------------------------------------------------------------------------------------------------------

struct DotTile {
    ptrdiff_t k;
    const float *a;
    ptrdiff_t a_row;
    const float *b;
    ptrdiff_t b_col;
    float *partial; // kDotRows apart
    bool first;
};

template <int Rows, int Cols, bool Edge>
inline void dot_step(const DotTile &t, ptrdiff_t p, Mask edge, Vec (&acc)[Rows][Cols]) {
    Vec y[Cols];
#pragma GCC unroll 8
    for (int j = 0; j < Cols; ++j) {
        const float *at = t.b + j * t.b_col + p;
        y[j] = Edge ? load(at, edge) : load(at);
        __builtin_prefetch(at + kStreamAhead);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
        const Vec x = Edge ? load(t.a + i * t.a_row + p, edge) : load(t.a + i * t.a_row + p);
#pragma GCC unroll 8
        for (int j = 0; j < Cols; ++j)
            acc[i][j] = fma(x, y[j], acc[i][j]);
    }
}

template <int Rows, int Cols>
void dot_tile(const DotTile &tile) {
    const DotTile t = tile;
    Vec acc[Rows][Cols];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Cols; ++j)
            acc[i][j] = zero();
    const ptrdiff_t whole = t.k / kLanes * kLanes;
    for (ptrdiff_t p = 0; p < whole; p += kLanes)
        dot_step<Rows, Cols, false>(t, p, Mask(), acc);
    if (whole < t.k)
        dot_step<Rows, Cols, true>(t, whole, mask(t.k - whole), acc);
#pragma GCC unroll 8
    for (int j = 0; j < Cols; ++j)
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
            float *s = t.partial + i + j * kDotRows;
            *s = t.first ? sum(acc[i][j]) : *s + sum(acc[i][j]);
        }
}

using DotFunction = void (*)(const DotTile &);
struct DotTable {
    DotFunction f[kDotTileRows][kDotTileCols]; // null where a tile would not fit into the registers
};

template <int Rows, int Cols>
constexpr void fill_dots(DotTable &table) {
    if constexpr (Cols >= 1) {
        if constexpr (Rows * Cols <= kDotTile)
            table.f[Rows - 1][Cols - 1] = dot_tile<Rows, Cols>;
        fill_dots<Rows, Cols - 1>(table);
    } else if constexpr (Rows > 1) {
        fill_dots<Rows - 1, kDotTileCols>(table);
    }
}

constexpr DotTable make_dots() {
    DotTable table{};
    fill_dots<kDotTileRows, kDotTileCols>(table);
    return table;
}
constexpr DotTable kDots = make_dots();

void dot(const Product &p, float *scratch) {
    const bool pack_a = p.a_col != 1;
    float *packed = scratch, *partial = scratch + kDotRows * kDotStride;
    for (ptrdiff_t i0 = 0; i0 < p.m; i0 += kDotRows) {
        const ptrdiff_t rows = p.m - i0 < kDotRows ? p.m - i0 : kDotRows;
        for (ptrdiff_t j0 = 0; j0 < p.n; j0 += kDotCols) {
            const ptrdiff_t cols = p.n - j0 < kDotCols ? p.n - j0 : kDotCols;
            // One pass over B where A has few rows; else low and wide tiles, which read A less often.
            const ptrdiff_t most_rows = rows <= kDotTileRows ? kDotTileRows : kDotTile / kDotTileCols;
            const Parts heights(rows, most_rows);
            const ptrdiff_t most_cols = kDotTile / heights[0];
            const Parts widths(cols, most_cols < kDotTileCols ? most_cols : kDotTileCols);
            for (ptrdiff_t p0 = 0; p0 < p.k; p0 += kDotPack) {
                const ptrdiff_t depth = p.k - p0 < kDotPack ? p.k - p0 : kDotPack;
                const float *a = p.a + i0 * p.a_row + p0 * p.a_col;
                DotTile t;
                t.a_row = p.a_row;
                t.b_col = p.b_col;
                if (pack_a) {
                    pack(depth, rows, a, p.a_col, p.a_row, packed, kDotStride);
                    a = packed;
                    t.a_row = kDotStride;
                }
                ptrdiff_t j = 0;
                for (ptrdiff_t w = 0; w < widths.count; ++w) {
                    for (ptrdiff_t q = 0; q < depth; q += kDotDepth) {
                        t.k = depth - q < kDotDepth ? depth - q : kDotDepth;
                        t.first = p0 == 0 && q == 0;
                        t.b = p.b + p0 + q + (j0 + j) * p.b_col;
                        ptrdiff_t i = 0;
                        for (ptrdiff_t h = 0; h < heights.count; ++h) {
                            t.a = a + q + i * t.a_row;
                            t.partial = partial + i + j * kDotRows;
                            kDots.f[heights[h] - 1][widths[w] - 1](t);
                            i += heights[h];
                        }
                    }
                    j += widths[w];
                }
            }
            for (ptrdiff_t j = 0; j < cols; ++j)
                for (ptrdiff_t i = 0; i < rows; ++i) {
                    float *c = p.c + (i0 + i) * p.c_row + (j0 + j) * p.c_col;
                    const float s = partial[i + j * kDotRows];
                    *c = p.beta == 0.0f ? p.alpha * s : __builtin_fmaf(p.alpha, s, p.beta * *c);
                }
        }
    }
}

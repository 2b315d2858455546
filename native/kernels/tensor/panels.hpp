// Parts of C whose operands' planes fit the workspace, for all kernels that multiply what pack.cu leaves. A Tile has
// BM, BN, kScheme, and in its Plan the number of its products.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernel.hpp"
#include "pack.hpp"
#include "planes.cuh"
#include "status.hpp"
#include "workspace.hpp"

namespace pyblas {

constexpr int64_t kLeastPanel = 256; // rows or columns, a whole number of most tiles

// Where all planes together would be larger than this, they are made for a part of C at a time.
constexpr size_t kMostPanelBytes = kPlanesBytes;
static_assert(kPlanesBytes < Workspace::kDefaultLimit, "what a handle has unless it is told otherwise");

// At most so many bytes of planes for one product of these sizes; in double, which nothing overflows.
template <class Tile>
double plane_bytes(int64_t rows, int64_t columns, int64_t k) {
    constexpr double kPadding = 2 * 63, kLine = 64; // of rows and columns; of k
    return 2.0 * plane_count(Tile::kScheme) * (static_cast<double>(rows) + static_cast<double>(columns) + kPadding) *
           (static_cast<double>(k) + kLine);
}

template <class Tile>
size_t packed_bytes(const Problem &problem, const Panel &panel) {
    return PackedProduct::of(part_of(problem, panel, 0, 0, 0), Tile::kScheme, nullptr).bytes;
}

// How C is cut where not all planes fit: the planes of one operand's panel stay while those of the other's follow each
// other. So one operand is packed once, the other once for each panel of the first.
struct Cut {
    Panel panel;
    double parts_m, parts_n, parts_batch;
    bool keeps_a; // or else B
    double waves; // of tiles, of all parts

    template <class Tile>
    static Cut of(const Problem &problem, const Panel &panel, int multiprocessors) {
        struct Side {
            int64_t whole, rest; // panels; extent of the last one, if it is smaller
        };
        const auto side = [](int64_t extent, int64_t piece) { return Side{extent / piece, extent % piece}; };
        const Side m = side(problem.m, panel.rows), n = side(problem.n, panel.columns),
                   batch = side(problem.batch, panel.batch);
        const auto count = [](const Side &side) { return static_cast<double>(side.whole + (side.rest > 0)); };
        const auto waves = [&](int64_t rows, int64_t columns, int64_t products) {
            const double tiles = std::ceil(static_cast<double>(rows) / Tile::BM) *
                                 std::ceil(static_cast<double>(columns) / Tile::BN) * static_cast<double>(products);
            return std::ceil(tiles / multiprocessors);
        };
        const auto along_m = [&](int64_t columns, int64_t products) {
            return static_cast<double>(m.whole) * waves(panel.rows, columns, products) +
                   waves(m.rest, columns, products);
        };
        const auto along_n = [&](int64_t products) {
            return static_cast<double>(n.whole) * along_m(panel.columns, products) + along_m(n.rest, products);
        };
        Cut cut = {panel, count(m), count(n), count(batch), true, 0};
        cut.waves = static_cast<double>(batch.whole) * along_n(panel.batch) + along_n(batch.rest);
        cut.keeps_a =
            static_cast<double>(problem.m) * (cut.parts_n - 1) >= static_cast<double>(problem.n) * (cut.parts_m - 1);
        return cut;
    }
    double parts() const { return parts_m * parts_n * parts_batch; }
    // How often an operand is packed.
    double times_a() const { return keeps_a ? 1 : parts_n; }
    double times_b() const { return keeps_a ? parts_m : 1; }
};

// Halves of the batch until the planes fit. Then both sides in so many parts that packing and waves of tiles together
// take least; if no such parts fit, halves of the longer side, down to a least panel. What fits exactly gives the same
// panel when it is all there is.
template <class Tile>
Cut cut_of(const Problem &problem, size_t workspace, int multiprocessors) {
    constexpr int kMostParts = 16;
    // Times are those of one output of a wave and one product of planes: a row is packed in 10 of them, and a panel's
    // kernels begin and end while a wave walks 600 of k.
    constexpr double kPackedRow = 10, kPanelDepth = 600;
    constexpr double kWave = Tile::BM * Tile::BN * Tile::Plan::end(Tile::Plan::kPhases - 1);
    const size_t room = std::min(workspace, kMostPanelBytes);
    const auto fits = [&](const Panel &panel) {
        return plane_bytes<Tile>(panel.rows, panel.columns, problem.k) * static_cast<double>(panel.batch) <=
                   2.0 * kMostPanelBytes &&
               packed_bytes<Tile>(problem, panel) <= room;
    };
    const auto cut = [&](const Panel &panel) { return Cut::of<Tile>(problem, panel, multiprocessors); };
    Panel panel{problem.m, problem.n, problem.batch};
    while (panel.batch > 1 && !fits(panel))
        panel.batch = (panel.batch + 1) / 2;
    if (fits(panel))
        return cut(panel);
    const auto in_parts = [&](int parts_m, int parts_n) {
        const auto piece = [](int64_t extent, int64_t parts) {
            return std::min(extent, ((extent + parts - 1) / parts + kLeastPanel - 1) / kLeastPanel * kLeastPanel);
        };
        return Panel{piece(problem.m, parts_m), piece(problem.n, parts_n), panel.batch};
    };
    Cut best = {};
    double least = HUGE_VAL;
    int first = kMostParts; // of n, that fit; the fewer, the more parts of m
    for (int parts_m = 1; parts_m <= kMostParts; ++parts_m) {
        if (!fits(in_parts(parts_m, first)))
            continue;
        while (first > 1 && fits(in_parts(parts_m, first - 1)))
            --first;
        for (int parts_n = first; parts_n <= kMostParts; ++parts_n) {
            const Cut candidate = cut(in_parts(parts_m, parts_n));
            const double time =
                kPackedRow * (candidate.times_a() * static_cast<double>(problem.m) +
                              candidate.times_b() * static_cast<double>(problem.n)) +
                kWave * (candidate.waves + candidate.parts() * kPanelDepth / static_cast<double>(problem.k));
            if (time < least)
                best = candidate, least = time;
        }
    }
    if (least < HUGE_VAL)
        return best;
    while (!fits(panel)) {
        int64_t *const longer = panel.rows > panel.columns ? &panel.rows : &panel.columns;
        if (*longer <= kLeastPanel)
            break;
        *longer = (*longer / 2 + kLeastPanel - 1) / kLeastPanel * kLeastPanel;
    }
    return cut(panel);
}

// Why no panel would do.
template <class Tile>
const char *refuses_planes(const Problem &problem) {
    const int64_t rows = std::min(problem.m, kLeastPanel), columns = std::min(problem.n, kLeastPanel);
    if (plane_bytes<Tile>(rows, columns, problem.k) > static_cast<double>(kMostPanelBytes))
        return "k is so deep that the planes of one tile need too much memory";
    return nullptr;
}

// What packing moves: read bytes of each element and its planes, of an operand that lies across k so many times that.
template <class Tile>
double packing_bytes(const Problem &problem, const Cut &cut, double read, double across) {
    const auto bytes = [&](const Operand &operand, int64_t rows, bool lies_across) {
        return (!operand.array && operand.stride == 0 ? 1 : static_cast<double>(problem.batch)) *
               static_cast<double>(rows) * static_cast<double>(problem.k) * (read + 2.0 * plane_count(Tile::kScheme)) *
               (lies_across ? across : 1);
    };
    return cut.times_a() * bytes(problem.a, problem.m, problem.transa == Op::N) +
           cut.times_b() * bytes(problem.b, problem.n, problem.transb == Op::T);
}

// Packs the planes of each panel that are not there yet, and multiplies it by multiply(part, packed).
template <class Tile, class Multiply>
Status multiply_panels(const Problem &problem, const Cut &parts, const Launch &launch_on, const Multiply &multiply) {
    const Panel &panel = parts.panel;
    const auto multiply_part = [&](int64_t batch, int64_t row, int64_t column) {
        const Problem part = part_of(problem, panel, batch, row, column);
        const PackedProduct packed = PackedProduct::of(part, Tile::kScheme, launch_on.workspace, !parts.keeps_a);
        PackedProduct missing = packed; // planes that are not there yet
        if (parts.keeps_a && column > 0)
            missing.a.rows = 0;
        if (!parts.keeps_a && row > 0)
            missing.b.rows = 0;
        PYBLAS_TRY(pack(part, missing, Tile::kScheme, launch_on));
        return multiply(part, packed);
    };
    for (int64_t batch = 0; batch < problem.batch; batch += panel.batch)
        if (parts.keeps_a)
            for (int64_t row = 0; row < problem.m; row += panel.rows)
                for (int64_t column = 0; column < problem.n; column += panel.columns)
                    PYBLAS_TRY(multiply_part(batch, row, column));
        else
            for (int64_t column = 0; column < problem.n; column += panel.columns)
                for (int64_t row = 0; row < problem.m; row += panel.rows)
                    PYBLAS_TRY(multiply_part(batch, row, column));
    return kSuccess;
}

} // namespace pyblas

// Tiles of warp_tile whose k is cut among blocks. stream_k.cu has the kernels; stream_k shares k out evenly, split_k in
// parts alike.
#pragma once

#include "kernel.hpp"

namespace pyblas {

// Stages of k, BK each, of the first tiles one after another in a row, and which block takes which of them. All others
// are made whole. Pieces lie in workspace by the sum of their block's and their tile's number, which orders them.
struct CutTiles {
    int64_t cut = 0;   // tiles
    int64_t steps = 0; // stages of a tile
    int64_t blocks = 0;
    int64_t parts = 0,
            part = 0;   // of a tile, and stages of one; no parts: the same share for each block, wherever it ends
    bool apart = false; // a second kernel adds the pieces, not the last block

    // In parts of that many stages, the last one shorter.
    static CutTiles in_parts(int64_t tiles, int64_t steps, int64_t part) {
        const int64_t parts = steps ? (steps + part - 1) / part : 1;
        return parts > 1 ? CutTiles{tiles, steps, tiles * parts, parts, part} : CutTiles{0, steps, tiles};
    }

    PYBLAS_HOST_DEVICE int64_t all() const { return cut * steps; }
    PYBLAS_HOST_DEVICE int64_t begin(int64_t block) const {
        return parts ? block / parts * steps + block % parts * part : all() * block / blocks;
    }
    // Which block has that stage.
    PYBLAS_HOST_DEVICE int64_t block_of(int64_t stage) const {
        return parts ? stage / steps * parts + stage % steps / part : ((stage + 1) * blocks - 1) / all();
    }
    int64_t pieces() const { return cut ? blocks + cut : 0; }
};

// Tiles of Side x Side; workspace as parts_workspace() says.
template <int Side>
Status launch_parts(const Problem &problem, const Launch &launch_on, const CutTiles &cut);
template <int Side>
size_t parts_workspace(const CutTiles &cut);

} // namespace pyblas

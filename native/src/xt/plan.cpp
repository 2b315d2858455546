#include "xt/plan.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace pyblas::xt {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// A size for equal parts of at most `most`, and at least `least_parts` of them where they stay long enough.
int64_t part_of(int64_t extent, int64_t most, int64_t least_parts, int64_t granule) {
    const int64_t parts = std::max(ceil_div(extent, most), least_parts);
    return std::min(extent, ceil_div(ceil_div(extent, parts), granule) * granule);
}

bool is_shared(const Operand &operand) {
    return operand.stride == 0;
}

const Operand &operand_of(const Problem &problem, Matrix matrix) {
    return matrix == kA ? problem.a : matrix == kB ? problem.b : problem.c;
}

// Blocks of A are told apart by group, row and panel, and so on; one matrix for the whole batch is in one group.
int64_t key_of(const Problem &problem, const Grid &grid, Matrix matrix, const Place &place) {
    const int64_t group = is_shared(operand_of(problem, matrix)) ? 0 : place.group;
    return matrix == kA   ? (group * grid.rows + place.row) * grid.panels + place.panel
           : matrix == kB ? (group * grid.columns + place.column) * grid.panels + place.panel
                          : (group * grid.columns + place.column) * grid.rows + place.row;
}

int64_t keys_of(const Grid &grid, Matrix matrix) {
    return grid.groups * (matrix == kA   ? grid.rows * grid.panels
                          : matrix == kB ? grid.columns * grid.panels
                                         : grid.rows * grid.columns);
}

int64_t extent_at(int64_t index, int64_t size, int64_t extent) {
    return std::min(size, extent - index * size);
}

} // namespace

Grid cut(const Problem &problem) {
    // Large enough that packing a tile's operands, and adding its panels in memory, are small beside the product.
    constexpr int64_t kMostTile = 8192, kMostPanel = 4096;
    // Some parts even of a small product, so that copies and products go on side by side.
    constexpr int64_t kParts = 4, kLeastTile = 1024;
    constexpr int64_t kGroupBytes = 64 << 20, kLeastGroupBytes = 4 << 20, kGroupParts = 8;

    Grid grid;
    const int64_t longer = std::max(problem.m, problem.n);
    const int64_t parts = std::max<int64_t>(1, std::min(kParts, longer / kLeastTile));
    grid.tile_m = part_of(problem.m, kMostTile, problem.m > problem.n ? parts : 1, 256);
    grid.tile_n = part_of(problem.n, kMostTile, problem.m > problem.n ? 1 : parts, 256);
    grid.panel_k = part_of(problem.k, kMostPanel, 1, 128); // of k alone: rows of C must not depend on m and n
    grid.rows = ceil_div(problem.m, grid.tile_m);
    grid.columns = ceil_div(problem.n, grid.tile_n);
    grid.panels = ceil_div(problem.k, grid.panel_k);
    grid.group = 1;
    if (grid.rows * grid.columns * grid.panels == 1) {
        const int64_t bytes = 4 * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n);
        const int64_t few = std::max(ceil_div(problem.batch, kGroupParts), ceil_div(kLeastGroupBytes, bytes));
        grid.group = std::max<int64_t>(1, std::min({problem.batch, kGroupBytes / bytes, few}));
    }
    grid.groups = ceil_div(problem.batch, grid.group);
    return grid;
}

Block block_of(const Problem &problem, const Grid &grid, Matrix matrix, const Place &place) {
    const Operand &operand = operand_of(problem, matrix);
    const int64_t m0 = place.row * grid.tile_m, m = extent_at(place.row, grid.tile_m, problem.m);
    const int64_t n0 = place.column * grid.tile_n, n = extent_at(place.column, grid.tile_n, problem.n);
    const int64_t k0 = place.panel * grid.panel_k, k = extent_at(place.panel, grid.panel_k, problem.k);
    int64_t row0 = m0, rows = m, column0 = n0, columns = n;
    if (matrix == kA)
        column0 = k0, columns = k;
    if (matrix == kB)
        row0 = k0, rows = k;
    if ((matrix == kA && problem.transa == Op::T) || (matrix == kB && problem.transb == Op::T)) {
        std::swap(row0, column0);
        std::swap(rows, columns);
    }
    Block block;
    const bool shared = is_shared(operand);
    block.data = static_cast<float *>(operand.data) + row0 + column0 * operand.ld +
                 (shared ? 0 : place.group * grid.group * operand.stride);
    block.length = rows;
    block.vectors = columns;
    block.ld = operand.ld;
    block.count = shared ? 1 : extent_at(place.group, grid.group, problem.batch);
    block.stride = operand.stride;
    return block;
}

Problem product_of(const Problem &problem, const Grid &grid, const Place &place, float *a, float *b, float *c) {
    Problem product = problem;
    product.m = extent_at(place.row, grid.tile_m, problem.m);
    product.n = extent_at(place.column, grid.tile_n, problem.n);
    product.k = extent_at(place.panel, grid.panel_k, problem.k);
    product.batch = extent_at(place.group, grid.group, problem.batch);
    const auto on_device = [&](Operand *operand, Matrix matrix, float *data) {
        const Block block = block_of(problem, grid, matrix, place);
        operand->data = data;
        operand->ld = block.device_ld();
        operand->stride = block.count == 1 ? 0 : block.device_ld() * block.vectors;
    };
    on_device(&product.a, kA, a);
    on_device(&product.b, kB, b);
    on_device(&product.c, kC, c);
    if (place.panel > 0)
        product.beta = {1.0f, nullptr};
    return product;
}

namespace {

// The order of products: rectangles of down x across tiles, whose products go panel by panel, so that a block of A or B
// that is brought serves a whole side. Rectangles follow each other down the columns or along the rows, back and forth.
struct Order {
    int64_t down = 1, across = 1;
    bool by_columns = true;
    bool last_by_tiles = false; // the last rectangle tile by tile, so that its results leave one after another
};

std::vector<Place> products_in(const Grid &grid, int64_t first, int64_t last, const Order &order) {
    std::vector<Place> places;
    places.reserve(static_cast<size_t>((last - first) * grid.panels));
    const int64_t downs = ceil_div(grid.rows, order.down), acrosses = ceil_div(grid.columns, order.across);
    const int64_t outers = order.by_columns ? acrosses : downs, inners = order.by_columns ? downs : acrosses;
    std::vector<Place> tiles;
    int64_t left = last - first;
    bool back = false;
    for (int64_t group = 0; group < grid.groups; ++group)
        for (int64_t outer = 0; outer < outers; ++outer, back = !back)
            for (int64_t step = 0; step < inners; ++step) {
                const int64_t inner = back ? inners - 1 - step : step;
                const int64_t row0 = (order.by_columns ? inner : outer) * order.down;
                const int64_t column0 = (order.by_columns ? outer : inner) * order.across;
                tiles.clear();
                for (int64_t column = column0; column < std::min(column0 + order.across, grid.columns); ++column)
                    for (int64_t row = row0; row < std::min(row0 + order.down, grid.rows); ++row) {
                        const int64_t tile = (group * grid.columns + column) * grid.rows + row;
                        if (tile >= first && tile < last)
                            tiles.push_back({group, row, column, 0});
                    }
                left -= static_cast<int64_t>(tiles.size());
                if (order.last_by_tiles && left == 0) {
                    for (Place place : tiles)
                        for (place.panel = 0; place.panel < grid.panels; ++place.panel)
                            places.push_back(place);
                } else {
                    for (int64_t panel = 0; panel < grid.panels; ++panel)
                        for (Place place : tiles) {
                            place.panel = panel;
                            places.push_back(place);
                        }
                }
            }
    return places;
}

// The slots of A or B. The future is known, so the block that goes is the one that is needed last - but not one of the
// latest products', which the next copies would have to wait for.
class Residents {
public:
    Residents(int64_t slots, int64_t keys, int64_t shield)
        : slots_(static_cast<size_t>(slots)), slot_of_(static_cast<size_t>(keys), -1), shield_(shield) {}

    struct Slot {
        int64_t key = -1, last_use = -1, next_use = kNever, load = -1;
    };

    // The slot of a block for product number `use`, whose next is next_use. before: the slot's last use if the block
    // has to be brought, and *load is for the caller to fill.
    int take(int64_t key, int64_t use, int64_t next_use, bool *missing, int64_t *before) {
        int index = slot_of_[static_cast<size_t>(key)];
        *missing = index < 0;
        *before = -1;
        if (*missing) {
            index = victim(use);
            Slot &slot = slots_[static_cast<size_t>(index)];
            if (slot.key >= 0)
                slot_of_[static_cast<size_t>(slot.key)] = -1;
            *before = slot.last_use;
            slot.key = key;
            slot_of_[static_cast<size_t>(key)] = index;
        }
        Slot &slot = slots_[static_cast<size_t>(index)];
        slot.last_use = use;
        slot.next_use = next_use;
        return index;
    }
    Slot &operator[](int slot) { return slots_[static_cast<size_t>(slot)]; }

private:
    int victim(int64_t use) const {
        int best = -1, oldest = 0;
        for (int i = 0; i < static_cast<int>(slots_.size()); ++i) {
            const Slot &slot = slots_[static_cast<size_t>(i)];
            if (slot.key < 0)
                return i;
            if (slot.last_use < slots_[static_cast<size_t>(oldest)].last_use)
                oldest = i;
            if (slot.last_use >= use - shield_)
                continue;
            const Slot *leader = best < 0 ? nullptr : &slots_[static_cast<size_t>(best)];
            if (!leader || slot.next_use > leader->next_use ||
                (slot.next_use == leader->next_use && slot.last_use < leader->last_use))
                best = i;
        }
        return best < 0 ? oldest : best;
    }

    std::vector<Slot> slots_;
    std::vector<int> slot_of_;
    int64_t shield_;
};

// When each product's block of A or B is needed again.
std::vector<int64_t> next_uses(const Problem &problem, const Grid &grid, const std::vector<Place> &products,
                               Matrix matrix) {
    std::vector<int64_t> seen(static_cast<size_t>(keys_of(grid, matrix)), kNever), next(products.size());
    for (size_t i = products.size(); i-- > 0;) {
        int64_t &at = seen[static_cast<size_t>(key_of(problem, grid, matrix, products[i]))];
        next[i] = at;
        at = static_cast<int64_t>(i);
    }
    return next;
}

// Gives every block its slot and every step its conditions, and walks through them with a clock for each kind.
void lay_out(const Problem &problem, const std::vector<Place> &products, int64_t shield, const Rates &rates,
             Plan *plan) {
    const Grid &grid = plan->grid;
    const bool reads_c = problem.beta.value != 0;
    Residents residents[] = {{plan->slots[kA], keys_of(grid, kA), shield},
                             {plan->slots[kB], keys_of(grid, kB), shield}};
    const std::vector<int64_t> next[] = {next_uses(problem, grid, products, kA),
                                         next_uses(problem, grid, products, kB)};
    struct Tile {
        int slot = -1;
        int64_t load = -1;
    };
    std::vector<Tile> tiles(static_cast<size_t>(grid.tiles()));
    std::vector<int64_t> store_of(static_cast<size_t>(plan->slots[kC]), -1); // that freed the slot
    std::vector<int> free_slots;                                             // in the order in which they become free
    for (int i = 0; i < plan->slots[kC]; ++i)
        free_slots.push_back(i);
    size_t next_free = 0;

    std::vector<double> loaded, multiplied, stored;
    double in = 0, compute = 0, out = 0;
    const auto over = [](const std::vector<double> &ends, int64_t step) {
        return step < 0 ? 0.0 : ends[static_cast<size_t>(step)];
    };
    const auto add_load = [&](Matrix matrix, const Place &place, int slot, int64_t after_multiply,
                              int64_t after_store) {
        const int64_t bytes = block_of(problem, grid, matrix, place).device_bytes();
        plan->loads.push_back({matrix, place, slot, after_multiply, after_store});
        plan->bytes_in += bytes;
        in = std::max({in, over(multiplied, after_multiply), over(stored, after_store)}) +
             static_cast<double>(bytes) / rates.in + rates.step;
        loaded.push_back(in);
        return static_cast<int64_t>(plan->loads.size()) - 1;
    };

    for (size_t i = 0; i < products.size(); ++i) {
        const Place &place = products[i];
        const auto use = static_cast<int64_t>(i);
        Multiply multiply = {place, {-1, -1, -1}, {-1, -1, -1}, -1};
        for (const Matrix matrix : {kA, kB}) {
            bool missing = false;
            int64_t before = -1;
            const int64_t key = key_of(problem, grid, matrix, place);
            const int slot = residents[matrix].take(key, use, next[matrix][i], &missing, &before);
            if (missing)
                residents[matrix][slot].load = add_load(matrix, place, slot, before, -1);
            multiply.slot[matrix] = slot;
            multiply.load[matrix] = residents[matrix][slot].load;
        }
        Tile &tile = tiles[static_cast<size_t>((place.group * grid.columns + place.column) * grid.rows + place.row)];
        if (place.panel == 0) {
            tile.slot = free_slots[next_free++];
            const int64_t freed_by = store_of[static_cast<size_t>(tile.slot)];
            if (reads_c)
                tile.load = add_load(kC, place, tile.slot, -1, freed_by);
            else
                multiply.after_store = freed_by;
        }
        multiply.slot[kC] = tile.slot;
        multiply.load[kC] = place.panel == 0 ? tile.load : -1;
        plan->multiplies.push_back(multiply);
        const Problem product = product_of(problem, grid, place, nullptr, nullptr, nullptr);
        const double flops = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                             static_cast<double>(product.k) * static_cast<double>(product.batch);
        compute = std::max({compute, over(loaded, multiply.load[kA]), over(loaded, multiply.load[kB]),
                            over(loaded, multiply.load[kC]), over(stored, multiply.after_store)}) +
                  flops / rates.flops + rates.step;
        multiplied.push_back(compute);
        if (place.panel == grid.panels - 1) {
            const int64_t bytes = block_of(problem, grid, kC, place).device_bytes();
            plan->stores.push_back({place, tile.slot, use});
            plan->bytes_out += bytes;
            out = std::max(out, compute) + static_cast<double>(bytes) / rates.out + rates.step;
            stored.push_back(out);
            store_of[static_cast<size_t>(tile.slot)] = static_cast<int64_t>(plan->stores.size()) - 1;
            free_slots.push_back(tile.slot);
        }
    }
    plan->seconds = std::max(compute, out);
}

// A choice of order and slots that may be tried.
struct Candidate {
    Order order;
    int64_t slots[kMatrices];
    double seconds; // roughly
};

// Of what is easily told: all of it copied as often as the rectangles say, unless it stays; the first blocks of each
// panel before the first product; and where a panel has no room beside the one before, both one after the other.
double estimate(const Plan &frame, const int64_t (&blocks)[kMatrices], const Candidate &candidate, double compute,
                const Rates &rates) {
    const Grid &grid = frame.grid;
    const Order &order = candidate.order;
    const auto bytes = [&](Matrix matrix, int64_t count) {
        return static_cast<double>(count) * static_cast<double>(frame.slot_bytes[matrix]);
    };
    const int64_t *const slots = candidate.slots;
    const bool a_stays = slots[kA] == blocks[kA], b_stays = slots[kB] == blocks[kB];
    const double in = (bytes(kA, blocks[kA] * (a_stays ? 1 : ceil_div(grid.columns, order.across))) +
                       bytes(kB, blocks[kB] * (b_stays ? 1 : ceil_div(grid.rows, order.down)))) /
                      rates.in;
    const double out = bytes(kC, blocks[kC]) / rates.out;
    const bool side_by_side = (a_stays || slots[kA] >= 2 * order.down) && (b_stays || slots[kB] >= 2 * order.across);
    const double first = (bytes(kA, order.down) + bytes(kB, order.across)) / rates.in;
    const double last = bytes(kC, order.last_by_tiles ? 1 : order.down * order.across) / rates.out;
    const double longest = std::max({in, compute, out});
    return (side_by_side ? longest : in + compute) + first + last + 0.1 * in;
}

void add_candidates(const Plan &frame, const int64_t (&blocks)[kMatrices], int64_t bytes, const Order &order,
                    std::vector<Candidate> *candidates) {
    const int64_t rectangle = std::min(order.down * order.across, blocks[kC]);
    for (const int64_t more : {int64_t{0}, int64_t{1}, rectangle}) {
        const int64_t c = std::min(rectangle + more, blocks[kC]);
        const int64_t left = bytes - c * frame.slot_bytes[kC];
        if (left < frame.slot_bytes[kA] + frame.slot_bytes[kB] || (more > 1 && c == rectangle + 1))
            continue;
        const auto add = [&](int64_t a, int64_t b) {
            a = std::max<int64_t>(1, std::min(a, blocks[kA]));
            b = std::max<int64_t>(1, std::min(b, blocks[kB]));
            if (a * frame.slot_bytes[kA] + b * frame.slot_bytes[kB] > left)
                return;
            const bool known = !candidates->empty() && candidates->back().slots[kA] == a &&
                               candidates->back().slots[kB] == b && candidates->back().slots[kC] == c;
            if (!known)
                candidates->push_back({order, {a, b, c}, 0});
        };
        const auto rest = [&](int64_t taken, int64_t slot_bytes) {
            return std::max<int64_t>(0, left - taken) / slot_bytes;
        };
        const int64_t some_a = std::min(2 * order.down, blocks[kA]), some_b = std::min(2 * order.across, blocks[kB]);
        add(some_a, rest(some_a * frame.slot_bytes[kA], frame.slot_bytes[kB]));
        add(rest(some_b * frame.slot_bytes[kB], frame.slot_bytes[kA]), some_b);
        add(some_a, some_b);
        const int64_t side = frame.slot_bytes[kA] * order.down + frame.slot_bytes[kB] * order.across;
        const int64_t steps = std::max<int64_t>(1, left / side);
        add(steps * order.down, steps * order.across);
        add(1, 1);
    }
}

// Time first. But the host has other uses for its memory's bandwidth and the device for its memory, which takes time to
// be had, too: neither is spent on next to nothing.
double price(const Plan &plan, const Rates &rates) {
    return plan.seconds + 0.1 * static_cast<double>(plan.bytes_in) / rates.in +
           1e-12 * static_cast<double>(plan.bytes());
}

} // namespace

int64_t least_bytes(const Problem &problem, const Grid &grid) {
    int64_t bytes = 0;
    for (const Matrix matrix : {kA, kB, kC})
        bytes += block_of(problem, grid, matrix, Place()).device_bytes();
    return bytes;
}

Plan make_plan(const Problem &problem, const Grid &grid, int64_t first, int64_t last, int64_t bytes,
               const Rates &rates) {
    // A walk takes some 0.3 us for each product; the search as a whole a hundredth of what it plans.
    constexpr double kWalk = 0.3e-6, kShare = 0.01;
    constexpr size_t kFewest = 100;
    Plan frame;
    frame.grid = grid;
    for (const Matrix matrix : {kA, kB, kC})
        frame.slot_bytes[matrix] = block_of(problem, grid, matrix, Place()).device_bytes();
    const int64_t blocks[] = {is_shared(problem.a) ? keys_of(grid, kA) / grid.groups : keys_of(grid, kA),
                              is_shared(problem.b) ? keys_of(grid, kB) / grid.groups : keys_of(grid, kB), last - first};

    std::vector<Candidate> candidates;
    for (const int64_t down : {1, 2, 3, 4, 6, 8})
        for (const int64_t across : {1, 2, 3, 4, 6, 8})
            if ((down == 1 || down <= grid.rows) && (across == 1 || across <= grid.columns))
                for (const bool by_columns : {true, false})
                    for (const bool last_by_tiles : {false, true})
                        add_candidates(frame, blocks, bytes, {down, across, by_columns, last_by_tiles}, &candidates);
    const double share = static_cast<double>(last - first) / static_cast<double>(grid.tiles());
    const double compute = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                           static_cast<double>(problem.k) * static_cast<double>(problem.batch) * share / rates.flops;
    for (Candidate &candidate : candidates)
        candidate.seconds = estimate(frame, blocks, candidate, compute, rates);
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate &x, const Candidate &y) { return x.seconds < y.seconds; });
    const double products = static_cast<double>((last - first) * grid.panels);
    const size_t most = std::max(kFewest, static_cast<size_t>(kShare * compute / (kWalk * products)));

    Plan best;
    for (size_t i = 0; i < std::min(most, candidates.size()); ++i) {
        const Candidate &candidate = candidates[i];
        Plan plan = frame;
        std::copy(std::begin(candidate.slots), std::end(candidate.slots), plan.slots);
        lay_out(problem, products_in(grid, first, last, candidate.order), candidate.order.down * candidate.order.across,
                rates, &plan);
        if (best.multiplies.empty() || price(plan, rates) < price(best, rates))
            best = std::move(plan);
    }
    return best;
}

const Plan &Plans::find(const Problem &problem, const Grid &grid, int64_t first, int64_t last, int64_t bytes,
                        const Rates &rates) {
    constexpr int64_t kMostProducts = 256;
    constexpr size_t kMostKept = 16;
    const auto is = [](bool condition) { return static_cast<int64_t>(condition); };
    const Key key = {problem.m,
                     problem.n,
                     problem.k,
                     problem.batch,
                     is(problem.transa == Op::T) + 2 * is(problem.transb == Op::T),
                     is(is_shared(problem.a)) + 2 * is(is_shared(problem.b)),
                     is(problem.beta.value != 0),
                     first,
                     last,
                     bytes,
                     grid.tiles()};
    for (const Kept &kept : kept_)
        if (kept.key == key && kept.rates == rates)
            return kept.plan;
    Plan plan = make_plan(problem, grid, first, last, bytes, rates);
    if ((last - first) * grid.panels > kMostProducts)
        return other_ = std::move(plan);
    if (kept_.size() < kMostKept) {
        kept_.push_back({key, rates, std::move(plan)});
        return kept_.back().plan;
    }
    Kept &oldest = kept_[next_++ % kMostKept];
    oldest = {key, rates, std::move(plan)};
    return oldest.plan;
}

} // namespace pyblas::xt

// team_tile: many tiles of C that take long. Teams of four warps share a multiprocessor and each has tiles of its own,
// so that one team multiplies while another stores or begins. Four more warps do nothing but bring boxes.
//
//     feeding warps        team 0   [A B] [A B] [A B] --> 128 x 128, 128 outputs a thread --> C
//     boxes of A, B ---->  team 1   [A B] [A B] [A B] --> 128 x 128, another tile         --> C
//                                   <- left --
//
// Boxes, their places and what a thread does with them are box_tile's. Two teams of 128 outputs a thread, or three of
// 64: 384 or 512 threads, one block on a multiprocessor that stays there, 216 or 144 registers in each thread that
// multiplies, 227 KB. Refuses deep k: sums are not folded. After the "ping-pong" kernels of CUTLASS.
#include "box_tile.cuh"

namespace pyblas {
namespace {

// box_tile's tile, for each of several teams.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int TM_, int TN_, int Teams_>
struct TeamTile : BoxTile<BM_, BN_, BK_, WM_, WN_, TM_, TN_, 1> {
    static constexpr int kTeams = Teams_, kTeamThreads = BoxTile<BM_, BN_, BK_, WM_, WN_, TM_, TN_, 1>::kThreads;
    static constexpr int kWorkingThreads = kTeams * kTeamThreads, kFeedingThreads = 128;
    static constexpr int kFeeders = kFeedingThreads / 32 / kTeams * 32; // of a team
    static constexpr int kAll = kWorkingThreads + kFeedingThreads;
    static constexpr int kRegisters = kTeams == 2 ? 216 : 144, kFeedingRegisters = kTeams == 2 ? 72 : 80;
    static_assert(kTeamThreads == 128 && (kTeams == 2 || kTeams == 3), "four warps hand on their registers");
    static_assert(kTeams * kRegisters + kFeedingRegisters <= (1 << 16) / kAll / 8 * 8 * (kTeams + 1), "no new ones");
};

// A row's tile for each layout: which outputs of it a thread has decides how many of its multiply-adds read three
// registers at once.
template <class Straight, class Turned>
struct TeamTiles : Straight {
    template <bool ContiguousM, bool ContiguousN>
    using Of = std::conditional_t<ContiguousM && !ContiguousN, Straight, Turned>;
    static_assert(Straight::BM == Turned::BM && Straight::BN == Turned::BN && Straight::BK == Turned::BK, "one tile");
};

template <class Tile, bool ContiguousM, bool ContiguousN>
struct TeamParts : BoxParts<Tile, ContiguousM, ContiguousN> {
    using Boxes = BoxParts<Tile, ContiguousM, ContiguousN>;
    static constexpr int kMostSlots = 8, kFit = Tile::kRoom / Tile::kTeams / Boxes::kStageBytes;
    static constexpr int kSlots = kFit < kMostSlots ? kFit : kMostSlots; // of a team
    static constexpr int kTeamFloats = kSlots * Boxes::kStageFloats;
    static constexpr int kBytes = Tile::kTeams * kSlots * Boxes::kStageBytes;
    static_assert(kSlots >= 2, "one stage to work on, one on its way");
};

#if PYBLAS_HAS_WGMMA

// A team's boxes, tile after tile.
template <class Tile, class Parts>
__device__ __forceinline__ void feed(const Problem &problem, const BoxPlan &plan, int number, int depth, int feeder,
                                     float *slots, const Ring &ring) {
    Turn turn{0, 1};
    for (; number < plan.tiles; number += plan.blocks * Tile::kTeams) {
        const BoxPlace place = place_box(plan, number);
#pragma unroll 1
        for (int k = 0; k < depth; k += Tile::BK, turn.next(Parts::kSlots)) {
            ptx::wait(ring.left + turn.slot, turn.parity);
            load_boxes<Tile, Parts, Tile::kFeeders>(problem, plan, place, k, feeder,
                                                    slots + turn.slot * Parts::kStageFloats, ring.come + turn.slot);
        }
    }
}

#endif

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kAll, 1)
    team_tile(__grid_constant__ const Problem problem, __grid_constant__ const BoxPlan plan) {
#if PYBLAS_HAS_WGMMA
    using Parts = TeamParts<Tile, ContiguousM, ContiguousN>;
    using A = typename Parts::A;
    using B = typename Parts::B;

    // place
    const int thread = static_cast<int>(threadIdx.x);
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    Ring ring = open_ring<Tile::kTeams * Parts::kSlots>(smem + Tile::kTeams * Parts::kTeamFloats,
                                                        plan.mapped ? 1 : Tile::kFeeders, Tile::kTeamThreads);
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (scalars.idle())
        return;
    const int depth = static_cast<int>(scalars.depth());
    const bool feeds = thread >= Tile::kWorkingThreads;
    const int member = feeds ? (thread - Tile::kWorkingThreads) % Tile::kFeeders : thread % Tile::kTeamThreads;
    const int team = feeds ? (thread - Tile::kWorkingThreads) / Tile::kFeeders : thread / Tile::kTeamThreads;
    float *const slots = smem + team * Parts::kTeamFloats;
    ring.come += team * Parts::kSlots, ring.left += team * Parts::kSlots;
    int number = static_cast<int>(blockIdx.x) + team * plan.blocks;

    if (feeds) {
        // load
        ptx::give_registers_back<Tile::kFeedingRegisters>();
        if (team < Tile::kTeams && (!plan.mapped || member == 0)) {
            feed<Tile, Parts>(problem, plan, number, depth, member, slots, ring);
            ptx::launch_dependents();
        }
        return;
    }
    ptx::take_registers<Tile::kRegisters>();
    const BoxThread<Tile, A, B> mine(member);
    const int place_a = A::place(mine.row), place_b = B::place(mine.column);
    using Held = std::conditional_t<Tile::kHoldsN, B, A>;
    using Streamed = std::conditional_t<Tile::kHoldsN, A, B>;
    const int place_held = Tile::kHoldsN ? place_b : place_a, place_streamed = Tile::kHoldsN ? place_a : place_b;
    Turn turn{0, 0};
    for (; number < plan.tiles; number += plan.blocks * Tile::kTeams) {
        // multiply; threads whose outputs are all outside only take part in what the others wait for
        const BoxPlace place = place_box(plan, number);
        const bool works = A::x_of(place_a) < static_cast<int>(problem.m) - place.row * Tile::BM &&
                           B::x_of(place_b) < static_cast<int>(problem.n) - place.column * Tile::BN;
        float acc[Tile::TN][Tile::TM] = {};
        const auto sum = [&](int i, int j) -> float & { return Tile::kHoldsN ? acc[i][j] : acc[j][i]; };
#pragma unroll 1
        for (int k = 0; k < depth; k += Tile::BK, turn.next(Parts::kSlots)) {
            ptx::wait(ring.come + turn.slot, turn.parity);
            const float *const tile_a = slots + turn.slot * Parts::kStageFloats;
            const float *const tile_b = tile_a + Parts::kFloatsA;
            const int steps = works ? min((depth - k + 3) / 4, Tile::kSteps) : 0;
#pragma unroll 1
            for (int step = 0; step < steps; ++step)
                multiply_quads<Held, Streamed>(Tile::kHoldsN ? tile_b : tile_a, place_held,
                                               Tile::kHoldsN ? tile_a : tile_b, place_streamed, step, sum);
            ptx::arrive(ring.left + turn.slot);
        }

        // store
        if (works)
            store_boxes<Tile, Parts>(problem, place_box(plan, number), member, acc);
    }
#endif
}

// In the mode fp32 longer sums would be less accurate than cuBLAS's, which cuts some of them; elsewhere they are as
// accurate as one running sum is. Of a single product other rows fold the sums and are as fast.
constexpr int64_t kDeepestOfOne = 256, kDeepest = 512, kDeepestPedantic = 4096;

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    constexpr int64_t kMost = int64_t{1} << 30;
    const int64_t rows = (problem.m + Tile::BM - 1) / Tile::BM, columns = (problem.n + Tile::BN - 1) / Tile::BN;
    const int64_t deepest = problem.batch == 1 || problem.batch_invariant ? kDeepestOfOne
                            : problem.mode == ComputeMode::fp32           ? kDeepest
                                                                          : kDeepestPedantic;
    if (problem.k > deepest)
        return "k is deep, and it adds all products of a sum one after another";
    if (std::max(problem.m, problem.n) > kMost || rows > kMost / columns || rows * columns > kMost / problem.batch)
        return "a side is longer than 2^30, or there are more tiles";
    return Tile::kRoom > device.shared_per_block ? "a block needs more shared memory than the device gives" : nullptr;
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    return box_work<Tile>(problem, device, Tile::kTeams);
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    using Parts = TeamParts<Tile, ContiguousM, ContiguousN>;
    const Device &device = *launch_on.device;
    BoxPlan plan;
    PYBLAS_TRY((plan_boxes<Tile, ContiguousM, ContiguousN>(problem, device, device.multiprocessors, &plan)));
    PYBLAS_TRY((allow_shared<team_tile<Tile, ContiguousM, ContiguousN>>(Parts::kBytes)));
    return launch<team_tile<Tile, ContiguousM, ContiguousN>>(
        {plan.blocks, Tile::kAll, Parts::kBytes, launch_on.stream, device.starts_early}, problem, plan);
}

template <class Tiles>
Status launch_team_tile(const Problem &problem, const Launch &launch_on) {
    const auto go = [&](auto contiguous_m, auto contiguous_n) {
        constexpr bool kM = contiguous_m.value, kN = contiguous_n.value;
        return start<typename Tiles::template Of<kM, kN>, kM, kN>(problem, launch_on);
    };
    const auto go_for_m = [&](auto contiguous_m) {
        return problem.transb == Op::T ? go(contiguous_m, std::true_type()) : go(contiguous_m, std::false_type());
    };
    return problem.transa == Op::N ? go_for_m(std::true_type()) : go_for_m(std::false_type());
}

using Team64x128 = TeamTile<64, 128, 32, 64, 32, 8, 8, 3>;
using Tiles64x128 = TeamTiles<Team64x128, Team64x128>;
using Tiles64x256 = TeamTiles<TeamTile<64, 256, 32, 64, 64, 8, 16, 2>, TeamTile<64, 256, 32, 64, 64, 16, 8, 2>>;
using Tiles128x128 = TeamTiles<TeamTile<128, 128, 32, 64, 64, 8, 16, 2>, TeamTile<128, 128, 32, 128, 32, 16, 8, 2>>;

template <class Tile>
constexpr Footprint kFootprint{Tile::kAll, 1, Tile::kRoom};

#define PYBLAS_TEAM_ROW(name, Tiles)                                                                                   \
    {"team_tile_" name,       "team_tile", Engine::gpu,       kFp32Modes, 90, true, refuses<Tiles>, nullptr, nullptr,  \
     launch_team_tile<Tiles>, true,        kFootprint<Tiles>, work<Tiles>}
constexpr Kernel kRows[] = {
    PYBLAS_TEAM_ROW("64x128x32", Tiles64x128),
    PYBLAS_TEAM_ROW("64x256x32", Tiles64x256),
    PYBLAS_TEAM_ROW("128x128x32", Tiles128x128),
};
#undef PYBLAS_TEAM_ROW

} // namespace

KernelRows team_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas

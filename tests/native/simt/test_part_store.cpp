// Fragments to C wherever its columns begin and end, on the simulator: every result at its place, C read only where
// beta asks for it, and nothing else touched.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "part_store.hpp"
#include "simulator.hpp"

namespace {

using namespace pyblas;
using numbers::hash;
using simulator::Access;
using simulator::Region;

float value_at(int row, int column) {
    return static_cast<float>(column * 100 + row + 1);
}

std::string run(uint64_t seed) {
    const auto draw = [&](int below) {
        seed = hash(seed);
        return static_cast<int>(seed % static_cast<uint64_t>(below));
    };
    StoredPart part = {};
    const int rows = part.rows = draw(2) ? 64 : 48;
    const bool plain = draw(8) == 0;
    part.rows_left = plain || draw(2) ? rows + draw(100) : draw(rows + 20) - 20;
    part.columns_left = draw(2) ? 8 + draw(9) : draw(12) - 3;
    part.ld = 80 + (plain ? draw(3) * 4 : draw(16));
    const int offset = plain ? draw(3) * 4 : draw(16);
    part.alpha = draw(2) ? 1.0f : -0.5f, part.beta = draw(2) ? 0.0f : 2.0f;
    const int unfit = plain ? 0 : draw(3) * 3; // rows and columns
    part.fits = unfit == 0, part.plain = plain;

    std::vector<float> powers(static_cast<size_t>(rows + 8)), sums(static_cast<size_t>(8 * rows));
    for (float &power : powers)
        power = static_cast<float>(1 << draw(3));
    for (int i = 0; i < unfit; ++i)
        powers[static_cast<size_t>(draw(rows + 8))] = 0.0f;
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < rows / 4; ++i)
            sums[static_cast<size_t>(lane * rows / 4 + i)] = value_at(i / 2 * 8 + lane % 4 * 2 + i % 2, lane / 4);

    // A border of canaries around C, which may have fewer rows and columns than the fragments.
    alignas(32) static float memory[2048];
    const auto canary = [&](size_t i) {
        return part.beta == 0.0f ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(i);
    };
    for (size_t i = 0; i < std::size(memory); ++i)
        memory[i] = canary(i);
    part.sums = sums.data(), part.powers = powers.data(), part.c = memory + 256 + offset;
    {
        const Region of_sums(sums.data(), sums.size() * 4, Access::read, "sums");
        const Region of_powers(powers.data(), powers.size() * 4, Access::read, "powers");
        const Region of_c(memory, sizeof memory, Access::read_write, "C");
        const Status status = store_part(part);
        const simulator::Fault fault = simulator::take_fault();
        if (fault.kind != simulator::FaultKind::none)
            return std::string(simulator::fault_name(fault.kind)) + ": " + fault.text;
        if (status != kSuccess)
            return "the launch failed";
    }
    for (size_t i = 0; i < std::size(memory); ++i) {
        const int64_t from_c = static_cast<int64_t>(i) - 256 - offset;
        const auto column = static_cast<int>(from_c < 0 ? -1 : from_c / part.ld);
        const auto row = static_cast<int>(from_c < 0 ? -1 : from_c % part.ld);
        float want = canary(i);
        if (column >= 0 && column < std::min(8, part.columns_left) && row < std::min(rows, part.rows_left)) {
            const float power = powers[static_cast<size_t>(row)] * powers[static_cast<size_t>(rows + column)];
            if (power != 0.0f)
                want = part.alpha * value_at(row, column) * power * power + (part.beta == 0.0f ? 0.0f : 2.0f * want);
        }
        if (std::memcmp(&memory[i], &want, sizeof want) != 0)
            return "row " + std::to_string(row) + " of column " + std::to_string(column) + " is " +
                   std::to_string(memory[i]) + ", not " + std::to_string(want);
    }
    return "";
}

} // namespace

int main() {
    constexpr int kCases = 4000;
    int failures = 0;
    for (int i = 0; i < kCases; ++i) {
        simulator::settings.order = i % 2 ? simulator::Order::ascending : simulator::Order::descending;
        if (const std::string fault = run(static_cast<uint64_t>(i)); !fault.empty()) {
            std::printf("FAILED: case %d: %s\n", i, fault.c_str());
            ++failures;
        }
    }
    std::printf("%d cases, %d failures\n", kCases, failures);
    return failures != 0;
}

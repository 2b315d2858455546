#include "cost.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

namespace pyblas {
namespace {

struct NamedRates {
    std::string_view row;
    Rates rates;
};
constexpr NamedRates kRates[] = {
#include "rates.inc"
};

constexpr bool in_order() {
    for (size_t i = 1; i < std::size(kRates); ++i)
        if (!(kRates[i - 1].row < kRates[i].row))
            return false;
    return true;
}
static_assert(in_order(), "rows are found by halves");

constexpr bool complete() {
    for (const NamedRates &named : kRates)
        if (!(named.rates.piece > 0))
            return false;
    return true;
}
static_assert(complete(), "a row has as many rates as cost.hpp names");

} // namespace

const Rates *rates_of(std::string_view row) {
    const NamedRates *found =
        std::lower_bound(std::begin(kRates), std::end(kRates), row,
                         [](const NamedRates &named, std::string_view name) { return named.row < name; });
    return found != std::end(kRates) && found->row == row ? &found->rates : nullptr;
}

void Work::spread(double count, double resident_blocks, const Device &device) {
    resident = resident_blocks;
    waves = std::floor(count / (resident * device.multiprocessors));
    last = std::ceil((count - waves * resident * device.multiprocessors) / device.multiprocessors);
    blocks = count;
}

void Work::move(const Problem &problem) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const bool reads_c = !(problem.beta.known() && problem.beta.value == 0);
    written = 4.0 * batch * m * n;
    written_singly = problem.c.ld % 4 != 0 ? written : 0;
    read = 4.0 * batch * (m * k + k * n) + (reads_c ? written : 0);
}

double predict(const Kernel &kernel, const Problem &problem, const Device &device) {
    if (!kernel.work)
        return kernel.cost(problem, device);
    const Work work = kernel.work(problem, device);
    return predict(work, *rates_of(work.row ? work.row : kernel.name), device);
}

double predict(const Work &work, const Rates &rates, const Device &device) {
    const double processor = device.fp32_flops / device.multiprocessors;
    const double share = device.bandwidth / device.multiprocessors;
    // What goes on side by side takes as long as the longest, and a little of the others. Square roots are the same on
    // every host.
    const auto overlapped = [](double x, double y, double z = 0) { return std::sqrt(x * x + y * y + z * z); };
    const auto wave = [&](double count) {
        const double waits = rates.step * work.steps + rates.trip * work.trips;
        const double issued =
            count * (rates.flop * work.flops + 2 * (rates.copy * work.copies + rates.narrow * work.narrow)) / processor;
        return rates.wave + rates.fold * work.folds + rates.single * work.single +
               overlapped(waits, issued, count * rates.byte * work.bytes / share);
    };
    const double blocks = work.waves * wave(work.resident) + (work.last > 0 ? wave(work.last) : 0);
    const double moved =
        (rates.read * work.read + rates.written * work.written + rates.written_singly * work.written_singly) /
        device.bandwidth;
    // Where the second kernel cannot start early, it costs twice as much.
    const double second = (device.sm >= 90 ? 1 : 2) * rates.second_kernel * work.second_kernels;
    const double crowd = rates.crowd * std::sqrt(std::min(1.0, work.blocks / device.multiprocessors));
    return rates.start + rates.block * work.blocks + crowd + overlapped(blocks, moved) + second +
           rates.partial_byte * work.partial_bytes / device.bandwidth + rates.piece * work.pieces;
}

} // namespace pyblas

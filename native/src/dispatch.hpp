// The table of kernels and the choice among them. Pure: no environment, no pointer values, no CUDA call.
#pragma once

#include <memory>

#include "kernel.hpp"

namespace pyblas {

// Row number index, or nullptr past the end.
const Kernel *kernel_at(int index);
const Kernel *kernel_named(const char *name);

struct Selection {
    const Kernel *kernel = nullptr;
    double seconds = 0;   // predicted
    size_t workspace = 0; // bytes the kernel wants
    int legal = 0;        // rows that could have run
};

// The legal kernel with the least predicted cost that needs no more workspace than there is, or the forced one. The
// ladder's steps are candidates only where no kernel that ships is legal.
// A forced kernel that is not legal fails with the reason; without one, selection cannot fail.
Status select(const Problem &problem, const Device &device, size_t workspace_limit, const Kernel *forced,
              Selection *selection);

// The answers of select() on one device, kept for products that come again: asking the whole table takes longer than a
// launch. A row is asked about sizes and about which pointers there are, never where they point, nor for the value of a
// scalar other than 0; a question that is stripped of the rest has one answer.
class Choices {
public:
    Status select(const Problem &problem, const Device &device, size_t workspace_limit, const Kernel *forced,
                  Selection *selection);

private:
    struct Answer {
        Problem question;
        size_t workspace_limit = 0;
        const Kernel *forced = nullptr;
        Selection selection; // no kernel: nothing was asked yet
    };
    static constexpr size_t kAnswers = 64; // each question has one place among them

    std::unique_ptr<Answer[]> answers_;
};

// The order of sums that a problem which asks for batch_invariant keeps, unless a kernel is forced: the same for all m,
// n and batch counts.
SumOrder invariant_order(const Problem &problem, const Device &device, size_t workspace_limit);

// Why a row cannot run, or nullptr.
const char *illegal(const Kernel &kernel, const Problem &problem, const Device &device, size_t workspace_limit);

} // namespace pyblas

// Products of 16-bit matrices by multiply-adds, on the simulator: every access judged, every result within FP32's
// bound. C is float32 here: the simulator knows races of whole words only.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "numbers.hpp"
#include "simulator.hpp"

namespace pyblas {
KernelRows half_tile_rows();
}

namespace {

using namespace pyblas;
using numbers::hash;
using simulator::Access;
using simulator::Region;

struct Case {
    Op transa, transb;
    Dtype type;
    int64_t m, n, k, batch, gap;
    int offset; // elements
    float alpha, beta;
};

// An integer of at most eight bits, which both types hold, and its bits.
uint16_t bits_of_integer(Dtype type, int value) {
    const auto single = static_cast<float>(value);
    if (type == Dtype::f16) {
        const auto half = static_cast<_Float16>(single);
        uint16_t bits;
        std::memcpy(&bits, &half, sizeof bits);
        return bits;
    }
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}
int integer(uint64_t seed) {
    return static_cast<int>(hash(seed) % 255) - 127;
}

template <class T>
struct Matrices {
    int64_t ld, stride;
    std::vector<T> memory;
    T *first;

    Matrices(int64_t rows, int64_t columns, int64_t gap, int offset, int64_t batch, T fill)
        : ld(rows + gap), stride(ld * columns + gap), memory(static_cast<size_t>(stride * batch + offset), fill),
          first(memory.data() + offset) {}
    T &at(int64_t b, int64_t i, int64_t j) { return first[b * stride + i + j * ld]; }
    size_t bytes() const { return memory.size() * sizeof(T); }
};

std::string run(const Kernel &kernel, const Case &test) {
    const bool a_plain = test.transa == Op::N, b_plain = test.transb == Op::N;
    const uint16_t nan = test.type == Dtype::f16 ? 0x7e00 : 0x7fc0;
    Matrices<uint16_t> a(a_plain ? test.m : test.k, a_plain ? test.k : test.m, test.gap, test.offset, test.batch, nan);
    Matrices<uint16_t> b(b_plain ? test.k : test.n, b_plain ? test.n : test.k, test.gap, test.offset, test.batch, nan);
    Matrices<float> c(test.m, test.n, test.gap, test.offset, test.batch, std::numeric_limits<float>::quiet_NaN());
    const auto seed = [](int64_t batch, int64_t i, int64_t j) {
        return static_cast<uint64_t>((batch * 1000 + i) * 5000 + j);
    };
    for (int64_t batch = 0; batch < test.batch; ++batch) {
        for (int64_t k = 0; k < test.k; ++k) {
            for (int64_t i = 0; i < test.m; ++i)
                (a_plain ? a.at(batch, i, k) : a.at(batch, k, i)) =
                    bits_of_integer(test.type, integer(seed(batch, i, k)));
            for (int64_t j = 0; j < test.n; ++j)
                (b_plain ? b.at(batch, k, j) : b.at(batch, j, k)) =
                    bits_of_integer(test.type, integer(seed(batch, k, j) + 77));
        }
        if (test.beta != 0)
            for (int64_t j = 0; j < test.n; ++j)
                for (int64_t i = 0; i < test.m; ++i)
                    c.at(batch, i, j) = 3.0f;
    }
    Problem problem;
    problem.transa = test.transa, problem.transb = test.transb;
    problem.m = test.m, problem.n = test.n, problem.k = test.k, problem.batch = test.batch;
    const auto operand = [](auto &matrices, Dtype type) {
        Operand operand;
        operand.data = matrices.first, operand.ld = matrices.ld, operand.stride = matrices.stride;
        operand.dtype = type;
        return operand;
    };
    problem.a = operand(a, test.type), problem.b = operand(b, test.type), problem.c = operand(c, Dtype::f32);
    problem.alpha.device = &test.alpha;
    problem.beta.value = test.beta;
    {
        const Region of_a(a.memory.data(), a.bytes(), Access::read, "A");
        const Region of_b(b.memory.data(), b.bytes(), Access::read, "B");
        const Region of_c(c.memory.data(), c.bytes(), Access::read_write, "C");
        const Region of_alpha(&test.alpha, sizeof(float), Access::read, "alpha");
        Device device;
        device.sm = 90;
        const Status status = kernel.launch(problem, {&device, nullptr, nullptr, 0});
        const simulator::Fault fault = simulator::take_fault();
        if (fault.kind != simulator::FaultKind::none)
            return std::string(simulator::fault_name(fault.kind)) + ": " + fault.text;
        if (status != kSuccess)
            return last_error_message();
    }
    for (int64_t batch = 0; batch < test.batch; ++batch)
        for (int64_t j = 0; j < test.n; ++j)
            for (int64_t i = 0; i < test.m; ++i) {
                int64_t sum = 0; // below 2^24: exact in any order
                for (int64_t k = 0; k < test.k; ++k)
                    sum += int64_t{integer(seed(batch, i, k))} * integer(seed(batch, k, j) + 77);
                const float want = test.alpha * static_cast<float>(sum) + test.beta * 3.0f;
                if (const float got = c.at(batch, i, j); got != want)
                    return "C(" + std::to_string(i) + ", " + std::to_string(j) + ") is " + std::to_string(got) +
                           ", not " + std::to_string(want);
            }
    return "";
}

} // namespace

int main() {
    constexpr int64_t kSizes[][3] = {{1, 1, 1}, {3, 5, 7}, {65, 63, 16}, {130, 129, 33}, {2, 140, 300}, {70, 1, 520}};
    int cases = 0, failures = 0;
    for (const Kernel &kernel : half_tile_rows())
        for (const Dtype type : {Dtype::f16, Dtype::bf16})
            for (const Op transa : {Op::N, Op::T})
                for (const Op transb : {Op::N, Op::T})
                    for (const auto &[m, n, k] : kSizes) {
                        const int i = cases++;
                        simulator::settings.order = i % 2 ? simulator::Order::ascending : simulator::Order::descending;
                        const Case test = {transa,
                                           transb,
                                           type,
                                           m,
                                           n,
                                           i % 5 == 4 ? 0 : k,
                                           1 + i % 3 / 2,
                                           i % 4,
                                           i % 3,
                                           i % 7 == 6 ? 0.0f : 0.5f,
                                           i % 2 ? -1.0f : 0.0f};
                        if (const std::string fault = run(kernel, test); !fault.empty()) {
                            std::printf("FAILED: %s %d %ldx%ldx%ld case %d: %s\n", kernel.name, int(type), long(m),
                                        long(n), long(k), i, fault.c_str());
                            ++failures;
                        }
                    }
    std::printf("%d cases, %d failures\n", cases, failures);
    return failures != 0;
}

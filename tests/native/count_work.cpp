// What products ask of one H200, for bench/rates.py: reads "opA opB m n k batch" lines, column-major and without gaps,
// and writes the device's peaks, the names of what is counted, and a line for each row that does not refuse.
#include <cstdio>

#include "cost.hpp"
#include "device.hpp"
#include "dispatch.hpp"
#include "workspace.hpp"

using namespace pyblas;

int main() {
    Device device = gpu_model(90, 132, 1.98e9, 4.59e12, 60 << 20, 227 << 10, "90a");
    device.workspace = Workspace::kDefaultLimit;
    std::printf("%d %.9g %.9g\n", device.multiprocessors, device.fp32_flops, device.bandwidth);
    std::printf("waves resident last steps trips folds flops copies narrow bytes single blocks read written "
                "written_singly second_kernels partial_bytes pieces\n");
    char op_a, op_b;
    long long m, n, k, batch;
    for (int line = 0; std::scanf(" %c %c %lld %lld %lld %lld", &op_a, &op_b, &m, &n, &k, &batch) == 6; ++line) {
        Problem problem;
        problem.transa = op_a == 'T' ? Op::T : Op::N;
        problem.transb = op_b == 'T' ? Op::T : Op::N;
        problem.m = m, problem.n = n, problem.k = k, problem.batch = batch;
        problem.a = {nullptr, nullptr, op_a == 'T' ? k : m, m * k};
        problem.b = {nullptr, nullptr, op_b == 'T' ? n : k, k * n};
        problem.c = {nullptr, nullptr, m, m * n};
        problem.alpha.value = 1;
        for (int i = 0; const Kernel *kernel = kernel_at(i); ++i) {
            // Some rows take deep k in the pedantic mode only, others nothing but tf32.
            const auto serves = [&](ComputeMode mode) {
                problem.mode = mode;
                return !illegal(*kernel, problem, device, Workspace::kDefaultLimit);
            };
            if (!kernel->work ||
                !(serves(ComputeMode::fp32) || serves(ComputeMode::fp32_pedantic) || serves(ComputeMode::tf32)))
                continue;
            const Work work = kernel->work(problem, device);
            std::printf("%d %s %s", line, kernel->name, work.row ? work.row : kernel->name);
            for (const double value :
                 {work.waves, work.resident, work.last, work.steps, work.trips, work.folds, work.flops, work.copies,
                  work.narrow, work.bytes, work.single, work.blocks, work.read, work.written, work.written_singly,
                  work.second_kernels, work.partial_bytes, work.pieces})
                std::printf(" %.9g", value);
            std::printf("\n");
        }
    }
    return 0;
}

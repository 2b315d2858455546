// A fork while other threads are in the middle of calls on one handle: in the child, where those threads are not, the
// handle still works.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "pyblas_sgemm.h"

namespace {

constexpr int kForks = 100, kThreads = 2;
constexpr unsigned kPatience = 60; // seconds that a child has

bool multiplies(pyblasHandle_t handle) {
    const float a = 3, b = 5, one = 1, zero = 0;
    float c = 0;
    return pyblasSgemm(handle, PYBLAS_OP_N, PYBLAS_OP_N, 1, 1, 1, &one, &a, 1, &b, 1, &zero, &c, 1) == 0 && c == 15;
}

bool works_in_child(pyblasHandle_t shared) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(kPatience);
        pyblasHandle_t own = nullptr;
        _exit(multiplies(shared) && pyblasDestroy(shared) == 0 && pyblasCreateCpu(&own) == 0 && multiplies(own) ? 0
                                                                                                                : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

} // namespace

int main() {
    pyblasHandle_t shared = nullptr;
    if (pyblasCreateCpu(&shared) != 0)
        return 1;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&] {
            while (!stop) {
                pyblasSetComputeMode(shared, PYBLAS_COMPUTE_32F_PEDANTIC);
                pyblasHandle_t brief = nullptr;
                if (pyblasCreateCpu(&brief) == 0)
                    pyblasDestroy(brief);
            }
        });
    int failed = 0;
    for (int i = 0; i < kForks && !failed; ++i)
        failed = !works_in_child(shared);
    stop = true;
    for (std::thread &thread : threads)
        thread.join();
    if (failed)
        std::fprintf(stderr, "a child could not use its parent's handle\n");
    return failed || !multiplies(shared) || pyblasDestroy(shared) != 0;
}

// The host's time in C of a small product that is only queued: by cuBLAS itself, by cuBLAS's name with the shim before
// it, and by the library. dropin.py builds it and runs it with the shim preloaded.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <dlfcn.h>
#include <string>
#include <vector>

#include "cublas_abi.h"
#include "pyblas_sgemm.h"

// CUDA's headers declare the types of cublas_abi.h a second time.
extern "C" int cudaMalloc(void **memory, size_t bytes);
extern "C" int cudaDeviceSynchronize(void);

namespace {

constexpr int kCalls = 200; // the queue holds about a thousand
constexpr int kGroups = 41;

template <class Call>
double group(Call call) {
    cudaDeviceSynchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i)
        call();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

} // namespace

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    const std::string path = arguments[1];
    const std::string file = path.substr(path.rfind('/') + 1); // also the version of cuBLAS's symbols
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto real = reinterpret_cast<decltype(&cublasSgemm_v2)>(dlvsym(library, "cublasSgemm_v2", file.c_str()));
    const auto real_batched = reinterpret_cast<decltype(&cublasSgemmStridedBatched)>(
        dlvsym(library, "cublasSgemmStridedBatched", file.c_str()));
    const auto create = reinterpret_cast<cublasStatus_t (*)(cublasHandle_t *)>(dlsym(library, "cublasCreate_v2"));
    cublasHandle_t cublas = nullptr;
    pyblasHandle_t ours = nullptr;
    float *memory = nullptr;
    if (!real || real == &cublasSgemm_v2 || !create || create(&cublas) || pyblasCreate(&ours) ||
        cudaMalloc(reinterpret_cast<void **>(&memory), 3 << 22))
        return 1;
    const float one = 1, zero = 0;
    float *a = memory, *b = memory + (1 << 20), *c = memory + (2 << 20);
    for (const int n : {32, 256}) {
        for (const int batch : {1, 8}) {
            if (n * n * batch > 1 << 20)
                continue;
            std::vector<double> by_cublas, by_shim, by_ours;
            const long long stride = static_cast<long long>(n) * n;
            for (int i = 0; i < kGroups; ++i) {
                by_cublas.push_back(group([&] {
                    if (batch == 1)
                        real(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n);
                    else
                        real_batched(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, stride, b, n, stride, &zero,
                                     c, n, stride, batch);
                }));
                by_shim.push_back(group([&] {
                    if (batch == 1)
                        cublasSgemm_v2(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n);
                    else
                        cublasSgemmStridedBatched(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, stride, b, n,
                                                  stride, &zero, c, n, stride, batch);
                }));
                by_ours.push_back(group([&] {
                    if (batch == 1)
                        pyblasSgemm(ours, PYBLAS_OP_N, PYBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n);
                    else
                        pyblasSgemmStridedBatched(ours, PYBLAS_OP_N, PYBLAS_OP_N, n, n, n, &one, a, n, stride, b, n,
                                                  stride, &zero, c, n, stride, batch);
                }));
            }
            std::printf("{\"what\": \"%d of %d\", \"cublas_us\": %.4f, \"shim_us\": %.4f, \"ours_us\": %.4f}\n", batch,
                        n, median(by_cublas), median(by_shim), median(by_ours));
        }
    }
    return 0;
}

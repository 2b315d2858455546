// The host's time in C: products that are only queued, beside bare launches of empty kernels. host.py builds this as a
// library and calls it, so that both are measured in the process in which Python's calls are.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include <cuda_runtime.h>

#include "pyblas_sgemm.h"

namespace {

// Seconds of one of count calls until the last one has returned; the queue is empty at first and takes them all.
template <class Call>
double seconds(cudaStream_t stream, int count, Call call) {
    cudaStreamSynchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i)
        call();
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    return all.count() / count;
}

__global__ void empty() {}

} // namespace

struct Product { // column-major, without gaps
    int transa, transb, m, n, k, batch;
    const float *a, *b;
    float *c;
};

static pyblasStatus_t queue(pyblasHandle_t handle, const Product &p) {
    const float one = 1, zero = 0;
    const auto ta = static_cast<pyblasOperation_t>(p.transa), tb = static_cast<pyblasOperation_t>(p.transb);
    const int lda = p.transa ? p.k : p.m, ldb = p.transb ? p.n : p.k;
    if (p.batch == 1)
        return pyblasSgemm(handle, ta, tb, p.m, p.n, p.k, &one, p.a, lda, p.b, ldb, &zero, p.c, p.m);
    const auto elements = [](int rows, int columns) { return static_cast<long long>(rows) * columns; };
    return pyblasSgemmStridedBatched(handle, ta, tb, p.m, p.n, p.k, &one, p.a, lda, elements(p.m, p.k), p.b, ldb,
                                     elements(p.k, p.n), &zero, p.c, p.m, elements(p.m, p.n), p.batch);
}

extern "C" {

// Negative: the status of the call that failed.
double product_seconds(pyblasHandle_t handle, cudaStream_t stream, const Product *p, int count) {
    pyblasStatus_t worst = PYBLAS_STATUS_SUCCESS;
    const double each = seconds(stream, count, [&] { worst = std::max(worst, queue(handle, *p)); });
    return worst == PYBLAS_STATUS_SUCCESS ? each : -static_cast<double>(worst);
}

double launch_seconds(cudaStream_t stream, int launches, int count) {
    return seconds(stream, count, [&] {
        for (int i = 0; i < launches; ++i)
            empty<<<1, 32, 0, stream>>>();
    });
}

// Kernels that one call launches, as a capture counts them; negative if that fails.
int product_launches(pyblasHandle_t handle, const Product *p) {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    size_t nodes = 0;
    pyblasStream_t before = nullptr;
    if (pyblasGetStream(handle, &before) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
        pyblasSetStream(handle, stream) || cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
        return -1;
    const pyblasStatus_t status = queue(handle, *p);
    if (cudaStreamEndCapture(stream, &graph) || cudaGraphGetNodes(graph, nullptr, &nodes))
        return -1;
    std::vector<cudaGraphNode_t> list(nodes);
    cudaGraphGetNodes(graph, list.data(), &nodes);
    const auto is_kernel = [](cudaGraphNode_t node) {
        cudaGraphNodeType type;
        return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
    };
    const int kernels = static_cast<int>(std::count_if(list.begin(), list.end(), is_kernel));
    cudaGraphDestroy(graph);
    pyblasSetStream(handle, before);
    cudaStreamDestroy(stream);
    return status == PYBLAS_STATUS_SUCCESS ? kernels : -1;
}
}

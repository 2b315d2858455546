// Where the shim for a host BLAS computes: the CPU engine, or a GPU to which products of host memory are sent.
#pragma once

#include "blas_real.hpp"
#include "pyblas_sgemm.h"

namespace pyblas::shim {

// Made once and kept until the process is gone.
struct Engine {
    pyblasHandle_t handle = nullptr; // nullptr: it does not start
    char compute[32] = "";           // for the record
    bool on_gpu = false;
    bool follows = false; // the real library's number of threads, since nobody asked for another
    int most_threads = 1;
};

// nullptr only if there is no memory for it.
const Engine *cpu_engine() noexcept;

// The engine for a product of host memory, as PYBLAS_SGEMM_DEVICE wants it: cpu (also where it is not set), cuda, a
// GPU's number with or without cuda: before it, or auto, which is whatever is sooner. The CPU's where there is no such
// GPU.
const Engine *engine_for(pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                         int64_t batch) noexcept;

// A program that has told its BLAS to use fewer threads, for example because it runs several of its own, means us too.
void follow_threads(const Engine &engine, const Function &function) noexcept;

} // namespace pyblas::shim

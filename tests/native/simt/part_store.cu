#include "tensor/part_store.cuh"

#include "device/launch.cuh"
#include "part_store.hpp"

namespace pyblas {
namespace {

template <int Rows>
__global__ void store_rows(__grid_constant__ const Problem problem, __grid_constant__ const StoredPart part) {
    __shared__ float powers[Rows + 8];
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = lane; i < Rows + 8; i += 32)
        powers[i] = part.powers[i];
    __syncthreads();
    float sums[Rows / 4];
    for (int i = 0; i < Rows / 4; ++i)
        sums[i] = part.sums[lane * Rows / 4 + i];
    const Epilogue epilogue(problem);
    const PartStore<Rows> store{epilogue,          powers,    powers + Rows, part.c, part.ld, part.rows_left,
                                part.columns_left, part.fits, part.plain};
    store(sums, 2, lane);
}

} // namespace

Status store_part(const StoredPart &part) {
    Problem problem;
    problem.k = 1;
    problem.alpha.value = part.alpha, problem.beta.value = part.beta;
    return part.rows == 64 ? launch<store_rows<64>>({1, 32, 0, nullptr, false}, problem, part)
                           : launch<store_rows<48>>({1, 32, 0, nullptr, false}, problem, part);
}

} // namespace pyblas

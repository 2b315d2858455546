// cublasLtMatmul: what a program says in descriptors, as a Call. Only plain products are, D = alpha op(A) op(B) + beta
// C in float32 with C and D one matrix, and those with a bias in place of C; anything else goes to cuBLASLt.
#include "cublas_preload.hpp"

using namespace pyblas::shim;

namespace {

constexpr int kSame = -1; // CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: that of D

struct Layout {
    int type = -1, order = -1, batch = 0;
    uint64_t rows = 0, columns = 0;
    int64_t ld = 0, stride = 0;
};

// Attributes that a version does not know keep the value that means nothing unusual.
class Reader {
public:
    explicit Reader(const Descriptors &descriptors) : descriptors_(descriptors) {}

    template <class T>
    bool get(cublasLtMatmulDesc_t from, cublasLtMatmulDescAttributes_t which, T *value) const {
        size_t written = 0;
        return descriptors_.of_product(from, which, value, sizeof *value, &written) == CUBLAS_STATUS_SUCCESS;
    }
    template <class T>
    bool get(cublasLtMatrixLayout_t from, cublasLtMatrixLayoutAttribute_t which, T *value) const {
        size_t written = 0;
        return descriptors_.of_matrix(from, which, value, sizeof *value, &written) == CUBLAS_STATUS_SUCCESS;
    }

    bool get(cublasLtMatrixLayout_t from, Layout *layout) const {
        return from && get(from, CUBLASLT_MATRIX_LAYOUT_TYPE, &layout->type) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_ORDER, &layout->order) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_ROWS, &layout->rows) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_COLS, &layout->columns) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_LD, &layout->ld) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &layout->batch) &&
               get(from, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &layout->stride);
    }

    // Plane offsets and batches of another kind than strides.
    bool unusual(cublasLtMatrixLayout_t from) const {
        int64_t plane = 0;
        int batch_mode = 0;
        (void)get(from, CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, &plane);
        (void)get(from, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &batch_mode);
        return plane != 0 || batch_mode != 0;
    }

private:
    const Descriptors &descriptors_;
};

// Fills in what the descriptors say; returns why that is not for us.
const char *read(const Reader &reader, cublasLtMatmulDesc_t product, const cublasLtMatrixLayout_t (&layouts)[4],
                 Call *call, Settled *settled) {
    int type = -1;
    if (!recording() && layouts[0] && reader.get(layouts[0], CUBLASLT_MATRIX_LAYOUT_TYPE, &type) && type != CUDA_R_32F)
        return "types"; // nobody will ask for the shape
    int compute = 0, scale = -1, transc = 0, fill = CUBLAS_FILL_MODE_FULL, bias_type = kSame;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!product || !reader.get(product, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute) ||
        !reader.get(product, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale) ||
        !reader.get(product, CUBLASLT_MATMUL_DESC_POINTER_MODE, &settled->pointer_mode) ||
        !reader.get(product, CUBLASLT_MATMUL_DESC_TRANSA, &call->transa) ||
        !reader.get(product, CUBLASLT_MATMUL_DESC_TRANSB, &call->transb) ||
        !reader.get(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue))
        return "a descriptor that cannot be read";
    call->compute = compute;
    Layout a, b, c, d;
    if (!reader.get(layouts[0], &a) || !reader.get(layouts[1], &b) || !reader.get(layouts[3], &d))
        return "a layout that cannot be read";
    call->m = static_cast<int64_t>(d.rows);
    call->n = static_cast<int64_t>(d.columns);
    call->k = static_cast<int64_t>(call->transa == CUBLAS_OP_N ? a.columns : a.rows);
    call->batch = d.batch;
    call->form = d.batch == 1 ? Batch::one : Batch::strided;
    call->a = {call->a.data, a.type, a.ld, a.stride};
    call->b = {call->b.data, b.type, b.ld, b.stride};
    call->c = {call->c.data, d.type, d.ld, d.stride};
    if (a.type != CUDA_R_32F || b.type != CUDA_R_32F || d.type != CUDA_R_32F || scale != CUDA_R_32F)
        return "types";
    if (settled->pointer_mode != CUBLASLT_POINTER_MODE_HOST && settled->pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
        return "vectors of scalars";
    (void)reader.get(product, CUBLASLT_MATMUL_DESC_TRANSC, &transc);
    (void)reader.get(product, CUBLASLT_MATMUL_DESC_FILL_MODE, &fill);
    if (transc != CUBLAS_OP_N || fill != CUBLAS_FILL_MODE_FULL)
        return "a transposed or triangular C";
    for (const auto which : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                             CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
                             CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER}) {
        const void *pointer = nullptr;
        if (reader.get(product, which, &pointer) && pointer)
            return "scaled matrices";
    }
    for (const cublasLtMatrixLayout_t layout : layouts)
        if (layout && reader.unusual(layout))
            return "an unusual layout";
    if (a.order != CUBLASLT_ORDER_COL || b.order != CUBLASLT_ORDER_COL || d.order != CUBLASLT_ORDER_COL)
        return "an unusual layout";
    // The extents must agree, or the real library has something to say about it.
    const bool an = call->transa == CUBLAS_OP_N, bn = call->transb == CUBLAS_OP_N;
    if ((an ? a.rows : a.columns) != d.rows || (bn ? b.rows : b.columns) != static_cast<uint64_t>(call->k) ||
        (bn ? b.columns : b.rows) != d.columns || a.batch != d.batch || b.batch != d.batch)
        return "layouts that do not fit";
    if (epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const float *bias = nullptr;
        if (!reader.get(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias) || !bias)
            return "no bias";
        (void)reader.get(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type);
        if (call->batch != 1 || (bias_type != kSame && bias_type != CUDA_R_32F) ||
            settled->pointer_mode != CUBLASLT_POINTER_MODE_HOST || !call->beta ||
            *static_cast<const float *>(call->beta) != 0)
            return "an unusual bias";
        call->bias = bias;
    } else if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        return "an epilogue";
    }
    return nullptr;
}

// With beta other than 0 the product adds to C, which must then be D.
const char *separate_c(const Reader &reader, const Call &call, const Settled &settled, const void *c,
                       const cublasLtMatrixLayout_t (&layouts)[4]) {
    if (settled.pointer_mode == CUBLASLT_POINTER_MODE_HOST && call.beta && *static_cast<const float *>(call.beta) == 0)
        return nullptr;
    if (c != call.c.data)
        return "C and D are two matrices";
    if (layouts[2] == layouts[3])
        return nullptr;
    Layout layout;
    if (!reader.get(layouts[2], &layout) || layout.type != CUDA_R_32F || layout.order != CUBLASLT_ORDER_COL ||
        layout.ld != call.c.ld || layout.batch != call.batch || (call.batch > 1 && layout.stride != call.c.stride))
        return "C and D are two matrices";
    return nullptr;
}

} // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc,
                              const void *beta, const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspaceSizeInBytes, cudaStream_t stream) {
    const void *caller = __builtin_return_address(0);
    const cublasLtMatrixLayout_t layouts[4] = {Adesc, Bdesc, Cdesc, Ddesc};
    Settled settled = {stream, CUBLAS_POINTER_MODE_HOST, CUBLAS_DEFAULT_MATH};
    Call call = {Entry::lt_matmul, Batch::one,    lightHandle,   caller, -1, -1, 0, 0, 0, 1, alpha, beta,
                 {A, -1, 0, 0},    {B, -1, 0, 0}, {D, -1, 0, 0}, -1};
    call.settled = &settled;
    if (from_cublas(caller)) {
        call.refusal = "a part of another function of cuBLAS";
    } else if (const Descriptors *descriptors = descriptors_of(call)) {
        const Reader reader(*descriptors);
        call.refusal = read(reader, computeDesc, layouts, &call, &settled);
        if (!call.refusal)
            call.refusal = separate_c(reader, call, settled, C, layouts);
    } else {
        call.refusal = "cuBLASLt was not found";
    }
    return enter(call, lightHandle, computeDesc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc, algo, workspace,
                 workspaceSizeInBytes, stream);
}

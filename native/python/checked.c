#include "checked.h"

#include <stdio.h>

/* Products of two 64-bit numbers are compared and added here, so every address and extent is computed in 128 bits. */
typedef __int128 wide;

static _Thread_local char message[512];

const char *pyblas_checked_message(void) {
    return message;
}

/* One operand as it lies in memory, whichever order it has: vectors runs of length elements of item bytes, ld apart. */
struct set {
    uintptr_t address;
    int64_t length, vectors, ld, stride, item;
};

/* The same in units of fewer bytes, which may take more than 64 bits to count. */
struct units {
    wide length, vectors, ld, stride;
};

struct buffer {
    int64_t before, after;
};

static wide extent(const struct set *s) {
    return s->length == 0 || s->vectors == 0 ? 0 : (wide)(s->vectors - 1) * s->ld + s->length;
}

static void reach(const struct set *s, int64_t batch, wide *first, wide *end) {
    const wide last = (wide)(batch - 1) * s->stride;
    *first = last < 0 ? last : 0;
    *end = (last > 0 ? last : 0) + extent(s);
}

static wide floor_divide(wide a, wide b) { /* b > 0 */
    return a / b - (a % b < 0);
}

/* More steps than this take longer than numpy.shares_memory needs to give up. */
enum { most_steps = 1 << 20 };

static struct units in_units(const struct set *s, int64_t unit) {
    const wide each = s->item / unit;
    const struct units u = {each * s->length, s->vectors, each * s->ld, each * s->stride};
    return u;
}

static int overlap(const struct set *sx, const struct set *sy, int64_t batch) {
    wide x_first, x_end, y_first, y_end;
    reach(sx, batch, &x_first, &x_end);
    reach(sy, batch, &y_first, &y_end);
    if (extent(sx) == 0 || extent(sy) == 0)
        return 0;
    const wide x_address = sx->address, y_address = sy->address;
    if (x_address + sx->item * x_end <= y_address + sy->item * y_first ||
        y_address + sy->item * y_end <= x_address + sx->item * x_first)
        return 0;

    const int64_t unit = sx->item < sy->item ? sx->item : sy->item;
    const struct units in_x = in_units(sx, unit), in_y = in_units(sy, unit);
    const struct units *const x = &in_x, *const y = &in_y;
    /* A single run has no leading dimension and a single matrix no stride: they fit whatever the other has. */
    if (x->ld != y->ld && x->vectors != 1 && y->vectors != 1)
        return -1;
    if (x->stride != y->stride && batch != 1)
        return -1;
    const wide ld = x->vectors != 1 ? x->ld : y->ld;

    /* Units i of x and i' of y meet if offset + (i - i') + t * ld + d * stride = 0, where t and d are differences of
       run and matrix numbers. All differences in their ranges occur, so intervals decide. Addresses that differ by a
       fraction of a unit meet its neighbour too. */
    const wide bytes = x_address - y_address;
    const wide offset = floor_divide(bytes, unit);
    const wide low = -(x->length - 1) - (bytes % unit != 0), high = y->length - 1;
    const wide t_low = -(y->vectors - 1), t_high = x->vectors - 1;
    wide d_low = -(wide)(batch - 1), d_high = batch - 1;
    if (x->stride == 0) {
        d_low = d_high = 0;
    } else {
        const wide stride = x->stride < 0 ? -x->stride : x->stride;
        const wide nearest = low - t_high * ld - offset, farthest = high - t_low * ld - offset; /* of d * x->stride */
        const wide from = x->stride < 0 ? -farthest : nearest, to = x->stride < 0 ? -nearest : farthest;
        if (d_low < -floor_divide(-from, stride))
            d_low = -floor_divide(-from, stride);
        if (d_high > floor_divide(to, stride))
            d_high = floor_divide(to, stride);
    }
    if (d_high - d_low >= most_steps)
        return -1;
    for (wide d = d_low; d <= d_high; ++d) {
        const wide shift = offset + d * x->stride;
        const wide from = -floor_divide(shift - low, ld), to = floor_divide(high - shift, ld);
        if ((from < t_low ? t_low : from) <= (to > t_high ? t_high : to))
            return 1;
    }
    return 0;
}

int pyblas_checked_overlap(uintptr_t x, int64_t x_length, int64_t x_vectors, int64_t x_ld, int64_t x_stride,
                           int64_t x_item, uintptr_t y, int64_t y_length, int64_t y_vectors, int64_t y_ld,
                           int64_t y_stride, int64_t y_item, int64_t batch) {
    const struct set xs = {x, x_length, x_vectors, x_ld, x_stride, x_item};
    const struct set ys = {y, y_length, y_vectors, y_ld, y_stride, y_item};
    return overlap(&xs, &ys, batch);
}

/* A number that may need more than 64 bits, for a sentence; no extent in range needs more than 39 digits. */
static const char *digits(wide value, char text[41]) {
    char *at = text + 40;
    *at = 0;
    do
        *--at = (char)('0' + (int)(value % 10));
    while ((value /= 10) != 0);
    return at;
}

static int inside(const char *function, const char *name, const struct set *s, int64_t batch,
                  const struct buffer *buffer) {
    char needed[41];
    wide first, end;
    if (s->address % (uintptr_t)s->item != 0) {
        snprintf(message, sizeof message, "%s: %s starts at an address that is not a multiple of %d bytes", function,
                 name, (int)s->item);
        return PYBLAS_CHECKED_INVALID;
    }
    if (buffer->after < 0 || extent(s) == 0)
        return 0;
    reach(s, batch, &first, &end);
    if (end > buffer->after) {
        snprintf(message, sizeof message, "%s: %s needs %s elements, its buffer has %lld", function, name,
                 digits(end, needed), (long long)buffer->after);
        return PYBLAS_CHECKED_INVALID;
    }
    if (-first > buffer->before) {
        snprintf(message, sizeof message, "%s: %s needs %s elements in front of its first, its buffer has %lld",
                 function, name, digits(-first, needed), (long long)buffer->before);
        return PYBLAS_CHECKED_INVALID;
    }
    return 0;
}

static int apart(const char *function, const char *name, const struct set *x, const struct set *c, int64_t batch,
                 int undecided) {
    const int answer = overlap(x, c, batch);
    if (answer == 1) {
        snprintf(message, sizeof message, "%s: C overlaps %s in memory", function, name);
        return PYBLAS_CHECKED_INVALID;
    }
    return answer == 0 ? 0 : undecided;
}

/* What the public function refuses by itself, before it reads or writes anything. */
static int is_refused(int row_major, int transa, int transb, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                      int64_t ldc, int64_t batch) {
    const int64_t length_a = (transa == PYBLAS_OP_N) == !row_major ? m : k;
    const int64_t length_b = (transb == PYBLAS_OP_N) == !row_major ? k : n;
    const int64_t length_c = row_major ? n : m;
    return m < 0 || n < 0 || k < 0 || batch < 0 || lda < 1 || lda < length_a || ldb < 1 || ldb < length_b || ldc < 1 ||
           ldc < length_c;
}

/* The row-major or column-major runs of a stored rows x columns matrix, transposed if op is not N. */
static struct set stored(uintptr_t address, int row_major, int op, int64_t rows, int64_t columns, int64_t ld,
                         int64_t stride) {
    const int by_rows = (op == PYBLAS_OP_N) == row_major;
    const struct set s = {address, by_rows ? columns : rows, by_rows ? rows : columns, ld, stride, 4};
    return s;
}

/* What a product with types needs beside the rest. */
struct types {
    int a, b, c, compute;
};

static int64_t item_of(int type) {
    return type == PYBLAS_R_32F ? 4 : 2;
}

static int product_ex(pyblasHandle_t handle, int flags, const struct types *types, int transa, int transb, int64_t m,
                      int64_t n, int64_t k, const float *alpha, const struct set *a, const struct set *b,
                      const float *beta, const struct set *c, int64_t batch) {
    const pyblasOperation_t ta = (pyblasOperation_t)transa, tb = (pyblasOperation_t)transb;
    const pyblasDataType_t at = (pyblasDataType_t)types->a, bt = (pyblasDataType_t)types->b,
                           ct = (pyblasDataType_t)types->c;
    const pyblasComputeType_t compute = (pyblasComputeType_t)types->compute;
    const pyblasGemmAlgo_t algo = PYBLAS_GEMM_DEFAULT;
    const void *pa = (const void *)a->address, *pb = (const void *)b->address;
    void *pc = (void *)c->address;
    if (flags & PYBLAS_CHECKED_STRIDED_BATCHED) {
        return flags & PYBLAS_CHECKED_ROW_MAJOR
                   ? (int)pyblasGemmStridedBatchedExRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, at, a->ld,
                                                                a->stride, pb, bt, b->ld, b->stride, beta, pc, ct,
                                                                c->ld, c->stride, batch, compute, algo)
                   : (int)pyblasGemmStridedBatchedEx_64(handle, ta, tb, m, n, k, alpha, pa, at, a->ld, a->stride, pb,
                                                        bt, b->ld, b->stride, beta, pc, ct, c->ld, c->stride, batch,
                                                        compute, algo);
    }
    return flags & PYBLAS_CHECKED_ROW_MAJOR
               ? (int)pyblasGemmExRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, at, a->ld, pb, bt, b->ld, beta, pc,
                                              ct, c->ld, compute, algo)
               : (int)pyblasGemmEx_64(handle, ta, tb, m, n, k, alpha, pa, at, a->ld, pb, bt, b->ld, beta, pc, ct, c->ld,
                                      compute, algo);
}

static int product(pyblasHandle_t handle, int flags, const struct types *types, int transa, int transb, int64_t m,
                   int64_t n, int64_t k, const float *alpha, const struct set *a, const struct set *b,
                   const float *beta, const struct set *c, int64_t batch) {
    if (types)
        return product_ex(handle, flags, types, transa, transb, m, n, k, alpha, a, b, beta, c, batch);
    const pyblasOperation_t ta = (pyblasOperation_t)transa, tb = (pyblasOperation_t)transb;
    const float *pa = (const float *)a->address, *pb = (const float *)b->address;
    float *pc = (float *)c->address;
    if (flags & PYBLAS_CHECKED_ANY_MEMORY) {
        if (flags & PYBLAS_CHECKED_STRIDED_BATCHED)
            return flags & PYBLAS_CHECKED_ROW_MAJOR
                       ? (int)pyblasXtSgemmStridedBatchedRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, a->ld,
                                                                     a->stride, pb, b->ld, b->stride, beta, pc, c->ld,
                                                                     c->stride, batch)
                       : (int)pyblasXtSgemmStridedBatched_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, a->stride, pb,
                                                             b->ld, b->stride, beta, pc, c->ld, c->stride, batch);
        return flags & PYBLAS_CHECKED_ROW_MAJOR
                   ? (int)pyblasXtSgemmRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, pb, b->ld, beta, pc,
                                                   c->ld)
                   : (int)pyblasXtSgemm_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, pb, b->ld, beta, pc, c->ld);
    }
    if (flags & PYBLAS_CHECKED_STRIDED_BATCHED) {
        return flags & PYBLAS_CHECKED_ROW_MAJOR
                   ? (int)pyblasSgemmStridedBatchedRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, a->stride, pb,
                                                               b->ld, b->stride, beta, pc, c->ld, c->stride, batch)
                   : (int)pyblasSgemmStridedBatched_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, a->stride, pb, b->ld,
                                                       b->stride, beta, pc, c->ld, c->stride, batch);
    }
    return flags & PYBLAS_CHECKED_ROW_MAJOR
               ? (int)pyblasSgemmRowMajor_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, pb, b->ld, beta, pc, c->ld)
               : (int)pyblasSgemm_64(handle, ta, tb, m, n, k, alpha, pa, a->ld, pb, b->ld, beta, pc, c->ld);
}

static int checked(pyblasHandle_t handle, int flags, const struct types *types, int transa, int transb, int64_t m,
                   int64_t n, int64_t k, const float *alpha, const struct set *a, const struct buffer *buffer_a,
                   const struct set *b, const struct buffer *buffer_b, const float *beta, const struct set *c,
                   const struct buffer *buffer_c, int64_t batch) {
    const int strided = flags & PYBLAS_CHECKED_STRIDED_BATCHED;
    const char *function = types     ? strided ? "gemm_strided_batched_ex" : "gemm_ex"
                           : strided ? "gemm_strided_batched"
                                     : "sgemm";
    const int row_major = flags & PYBLAS_CHECKED_ROW_MAJOR;
    int answer;
    if (is_refused(row_major, transa, transb, m, n, k, a->ld, b->ld, c->ld, batch) || m == 0 || n == 0 || batch == 0)
        return product(handle, flags, types, transa, transb, m, n, k, alpha, a, b, beta, c, batch);
    if ((answer = inside(function, "A", a, batch, buffer_a)) != 0 ||
        (answer = inside(function, "B", b, batch, buffer_b)) != 0 ||
        (answer = inside(function, "C", c, batch, buffer_c)) != 0)
        return answer;
    /* With alpha == 0 neither A nor B is read, so what they share with C does no harm. */
    if (flags & PYBLAS_CHECKED_DEVICE_SCALARS || *alpha != 0.0f) {
        if (!(flags & PYBLAS_CHECKED_A_IS_DISJOINT) && a->address &&
            (answer = apart(function, "A", a, c, batch, PYBLAS_CHECKED_UNDECIDED_A)) != 0)
            return answer;
        if (!(flags & PYBLAS_CHECKED_B_IS_DISJOINT) && b->address &&
            (answer = apart(function, "B", b, c, batch, PYBLAS_CHECKED_UNDECIDED_B)) != 0)
            return answer;
    }
    return product(handle, flags, types, transa, transb, m, n, k, alpha, a, b, beta, c, batch);
}

int pyblas_checked_gemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                        double alpha, uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after,
                        int64_t lda, int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                        int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                        int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch) {
    const int row_major = flags & PYBLAS_CHECKED_ROW_MAJOR, on_device = flags & PYBLAS_CHECKED_DEVICE_SCALARS;
    const float host_alpha = (float)alpha, host_beta = (float)beta;
    const struct set sa = stored(a, row_major, transa, m, k, lda, stride_a);
    const struct set sb = stored(b, row_major, transb, k, n, ldb, stride_b);
    const struct set sc = stored(c, row_major, PYBLAS_OP_N, m, n, ldc, stride_c);
    const struct buffer ba = {a_before, a_after}, bb = {b_before, b_after}, bc = {c_before, c_after};
    return checked(handle, flags, NULL, transa, transb, m, n, k, on_device ? (const float *)alpha_address : &host_alpha,
                   &sa, &ba, &sb, &bb, on_device ? (const float *)beta_address : &host_beta, &sc, &bc, batch);
}

int pyblas_checked_gemm_ex(pyblasHandle_t handle, int flags, int compute, int type_a, int type_b, int type_c,
                           int transa, int transb, int64_t m, int64_t n, int64_t k, double alpha,
                           uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after, int64_t lda,
                           int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                           int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                           int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch) {
    const int row_major = flags & PYBLAS_CHECKED_ROW_MAJOR, on_device = flags & PYBLAS_CHECKED_DEVICE_SCALARS;
    const struct types types = {type_a, type_b, type_c, compute};
    const float host_alpha = (float)alpha, host_beta = (float)beta;
    struct set sa = stored(a, row_major, transa, m, k, lda, stride_a);
    struct set sb = stored(b, row_major, transb, k, n, ldb, stride_b);
    struct set sc = stored(c, row_major, PYBLAS_OP_N, m, n, ldc, stride_c);
    sa.item = item_of(type_a);
    sb.item = item_of(type_b);
    sc.item = item_of(type_c);
    const struct buffer ba = {a_before, a_after}, bb = {b_before, b_after}, bc = {c_before, c_after};
    return checked(handle, flags, &types, transa, transb, m, n, k,
                   on_device ? (const float *)alpha_address : &host_alpha, &sa, &ba, &sb, &bb,
                   on_device ? (const float *)beta_address : &host_beta, &sc, &bc, batch);
}

/* On three blocks, each read from its first element. */
static int on_blocks(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                     double alpha, uintptr_t a, int64_t a_size, int64_t lda, int64_t stride_a, uintptr_t b,
                     int64_t b_size, int64_t ldb, int64_t stride_b, double beta, uintptr_t c, int64_t c_size,
                     int64_t ldc, int64_t stride_c, int64_t batch) {
    const int row_major = flags & PYBLAS_CHECKED_ROW_MAJOR;
    const float host_alpha = (float)alpha, host_beta = (float)beta;
    const struct set sa = stored(a, row_major, transa, m, k, lda, stride_a);
    const struct set sb = stored(b, row_major, transb, k, n, ldb, stride_b);
    const struct set sc = stored(c, row_major, PYBLAS_OP_N, m, n, ldc, stride_c);
    const struct buffer ba = {0, a_size}, bb = {0, b_size}, bc = {0, c_size};
    return checked(handle, flags, NULL, transa, transb, m, n, k, &host_alpha, &sa, &ba, &sb, &bb, &host_beta, &sc, &bc,
                   batch);
}

int pyblas_checked_sgemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                         double alpha, const float *a, int64_t a_size, int64_t lda, const float *b, int64_t b_size,
                         int64_t ldb, double beta, float *c, int64_t c_size, int64_t ldc) {
    return on_blocks(handle, flags, transa, transb, m, n, k, alpha, (uintptr_t)a, a_size, lda, 0, (uintptr_t)b, b_size,
                     ldb, 0, beta, (uintptr_t)c, c_size, ldc, 0, 1);
}

int pyblas_checked_gemm_strided_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                        int64_t k, double alpha, const float *a, int64_t a_size, int64_t lda,
                                        int64_t stride_a, const float *b, int64_t b_size, int64_t ldb, int64_t stride_b,
                                        double beta, float *c, int64_t c_size, int64_t ldc, int64_t stride_c,
                                        int64_t batch) {
    return on_blocks(handle, flags | PYBLAS_CHECKED_STRIDED_BATCHED, transa, transb, m, n, k, alpha, (uintptr_t)a,
                     a_size, lda, stride_a, (uintptr_t)b, b_size, ldb, stride_b, beta, (uintptr_t)c, c_size, ldc,
                     stride_c, batch);
}

static int on_stream(pyblasHandle_t handle, uintptr_t stream) {
    return (int)pyblasSetStream(handle, (pyblasStream_t)stream);
}

int pyblas_checked_sgemm_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa, int transb, int64_t m,
                                int64_t n, int64_t k, double alpha, uintptr_t a, int64_t a_size, int64_t lda,
                                uintptr_t b, int64_t b_size, int64_t ldb, double beta, uintptr_t c, int64_t c_size,
                                int64_t ldc) {
    const int status = on_stream(handle, stream);
    return status ? status
                  : on_blocks(handle, flags, transa, transb, m, n, k, alpha, a, a_size, lda, 0, b, b_size, ldb, 0, beta,
                              c, c_size, ldc, 0, 1);
}

int pyblas_checked_gemm_strided_batched_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa,
                                               int transb, int64_t m, int64_t n, int64_t k, double alpha, uintptr_t a,
                                               int64_t a_size, int64_t lda, int64_t stride_a, uintptr_t b,
                                               int64_t b_size, int64_t ldb, int64_t stride_b, double beta, uintptr_t c,
                                               int64_t c_size, int64_t ldc, int64_t stride_c, int64_t batch) {
    const int status = on_stream(handle, stream);
    return status ? status
                  : on_blocks(handle, flags | PYBLAS_CHECKED_STRIDED_BATCHED, transa, transb, m, n, k, alpha, a, a_size,
                              lda, stride_a, b, b_size, ldb, stride_b, beta, c, c_size, ldc, stride_c, batch);
}

int pyblas_checked_matmul(pyblasHandle_t handle, const float *a, int64_t a_stack, int64_t m, int64_t k, const float *b,
                          int64_t b_stack, int64_t b_rows, int64_t n, float *c, int64_t c_stack, int64_t c_rows,
                          int64_t c_columns) {
    if (k != b_rows || m != c_rows || n != c_columns || a_stack != c_stack || b_stack != c_stack || k < 1 || n < 1)
        return PYBLAS_CHECKED_OTHER_SHAPES;
    if (c_stack == 1)
        return pyblas_checked_sgemm(handle, PYBLAS_CHECKED_ROW_MAJOR, PYBLAS_OP_N, PYBLAS_OP_N, m, n, k, 1.0, a, m * k,
                                    k, b, k * n, n, 0.0, c, m * n, n);
    return pyblas_checked_gemm_strided_batched(handle, PYBLAS_CHECKED_ROW_MAJOR, PYBLAS_OP_N, PYBLAS_OP_N, m, n, k, 1.0,
                                               a, c_stack * m * k, k, m * k, b, c_stack * k * n, n, k * n, 0.0, c,
                                               c_stack * m * n, n, m * n, c_stack);
}

/* Steps along the axes of a stack of matrices, in elements. */
struct steps {
    int64_t stack, row, column;
};

static int in_elements(struct steps *steps, int64_t unit) {
    for (int64_t *step = &steps->stack; step <= &steps->column; ++step) {
        const wide bytes = (wide)*step * unit;
        if (bytes % 4 != 0)
            return 0;
        *step = (int64_t)(bytes / 4);
    }
    return 1;
}

/* Whether a matrix lies in rows (1) or in columns (0), and its leading dimension; -1 if BLAS cannot say it. */
static int laid(int64_t rows, int64_t columns, const struct steps *steps, int64_t *ld) {
    for (int by_rows = 1; by_rows >= 0; --by_rows) {
        const int64_t length = by_rows ? columns : rows, vectors = by_rows ? rows : columns;
        const int64_t unit = by_rows ? steps->column : steps->row, step = by_rows ? steps->row : steps->column;
        if ((length == 1 || unit == 1) && (vectors == 1 || step >= length)) {
            *ld = vectors == 1 ? length : step;
            return by_rows;
        }
    }
    return -1;
}

/* Whether the stack is no more than a longer axis of x and c; then it becomes that. */
static int continues(int64_t stack, int64_t *length, const struct steps *x, int64_t *x_step, const struct steps *c,
                     int64_t *c_step) {
    const int single = *length == 1;
    if (!single && (x->stack != (wide)*length * *x_step || c->stack != (wide)*length * *c_step))
        return 0;
    if (single) {
        *x_step = x->stack;
        *c_step = c->stack;
    }
    *length *= stack;
    return 1;
}

int pyblas_checked_matmul_on_gpu(pyblasHandle_t handle, uintptr_t stream, int64_t unit, uintptr_t a, int64_t a_stack,
                                 int64_t m, int64_t k, int64_t a_stack_step, int64_t a_row_step, int64_t a_column_step,
                                 uintptr_t b, int64_t b_stack, int64_t b_rows, int64_t n, int64_t b_stack_step,
                                 int64_t b_row_step, int64_t b_column_step, uintptr_t c, int64_t c_stack,
                                 int64_t c_rows, int64_t c_columns, int64_t c_stack_step, int64_t c_row_step,
                                 int64_t c_column_step) {
    struct steps sa = {a_stack == 1 ? 0 : a_stack_step, a_row_step, a_column_step};
    struct steps sb = {b_stack == 1 ? 0 : b_stack_step, b_row_step, b_column_step};
    struct steps sc = {c_stack_step, c_row_step, c_column_step};
    int64_t lda, ldb, ldc, batch = c_stack;
    if (k != b_rows || m != c_rows || n != c_columns || (a_stack != 1 && a_stack != batch) ||
        (b_stack != 1 && b_stack != batch) || m < 1 || n < 1 || k < 1 || batch < 1 || !in_elements(&sa, unit) ||
        !in_elements(&sb, unit) || !in_elements(&sc, unit))
        return PYBLAS_CHECKED_OTHER_SHAPES;
    /* A stack along which only one operand moves is more rows, or more columns, of one product. */
    if (batch > 1 && ((sb.stack == 0 && sa.stack != 0 && continues(batch, &m, &sa, &sa.row, &sc, &sc.row)) ||
                      (sa.stack == 0 && sb.stack != 0 && continues(batch, &n, &sb, &sb.column, &sc, &sc.column))))
        batch = 1;
    const int c_by_rows = laid(m, n, &sc, &ldc), a_by_rows = laid(m, k, &sa, &lda), b_by_rows = laid(k, n, &sb, &ldb);
    if (c_by_rows < 0 || a_by_rows < 0 || b_by_rows < 0)
        return PYBLAS_CHECKED_OTHER_SHAPES;
    const int status = on_stream(handle, stream);
    const int flags = (c_by_rows ? PYBLAS_CHECKED_ROW_MAJOR : 0) | (batch > 1 ? PYBLAS_CHECKED_STRIDED_BATCHED : 0);
    return status ? status
                  : on_blocks(handle, flags, a_by_rows != c_by_rows, b_by_rows != c_by_rows, m, n, k, 1.0, a, -1, lda,
                              sa.stack, b, -1, ldb, sb.stack, 0.0, c, -1, ldc, sc.stack, batch);
}

int pyblas_checked_gemm_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                int64_t k, double alpha, uintptr_t alpha_address, uintptr_t a, int64_t lda, uintptr_t b,
                                int64_t ldb, double beta, uintptr_t beta_address, uintptr_t c, int64_t ldc,
                                int64_t batch) {
    const pyblasOperation_t ta = (pyblasOperation_t)transa, tb = (pyblasOperation_t)transb;
    const int on_device = flags & PYBLAS_CHECKED_DEVICE_SCALARS;
    const float host_alpha = (float)alpha, host_beta = (float)beta;
    const float *pa = on_device ? (const float *)alpha_address : &host_alpha;
    const float *pb = on_device ? (const float *)beta_address : &host_beta;
    const float *const *as = (const float *const *)a, *const *bs = (const float *const *)b;
    float *const *cs = (float *const *)c;
    return flags & PYBLAS_CHECKED_ROW_MAJOR
               ? (int)pyblasSgemmBatchedRowMajor_64(handle, ta, tb, m, n, k, pa, as, lda, bs, ldb, pb, cs, ldc, batch)
               : (int)pyblasSgemmBatched_64(handle, ta, tb, m, n, k, pa, as, lda, bs, ldb, pb, cs, ldc, batch);
}

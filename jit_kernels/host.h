/* What the kernels for the CPU share: vectors as wide as the processor's, and dot products whose
 * bits depend on nothing but their two operands.
 *
 * A dot product of any two rows is summed in one way: lane l takes elements l, l + LANES, ... in
 * order, then neighbouring lanes are added until one is left. How many products are taken together,
 * and of which rows, is a matter of speed alone. Everything else goes row by row, so that the code
 * that computes an element depends on its channel only.
 */
#ifndef UMBRA_HOST_H
#define UMBRA_HOST_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
/* Dot products taken together, as many as there are lanes: TILE_ROWS x TILE_COLUMNS or 1 x TILE. */
#define TILE LANES
#define TILE_COLUMNS 4
#define TILE_ROWS (LANES / TILE_COLUMNS)

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef float LooseVector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t LooseHalves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Numbers in one of two widths: float32, or bfloat16 where `half` is set. */
typedef struct {
    const void *data;
    int64_t stride; /* elements from row to row */
    int half;
} Matrix;

INLINE Vector load(const float *source) { return *(const LooseVector *)source; }
INLINE void store(float *target, Vector value) { *(LooseVector *)target = value; }

INLINE Vector splat(float value) { return value - (Vector){0}; }

INLINE float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to the nearest bfloat16, ties to even, and widen again. */
INLINE float rounded_to_half(float value) {
    uint32_t bits;
    if (value != value) return value;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE Vector load_at(const void *row, int64_t at, int half) {
    if (!half) return load((const float *)row + at);
    LooseHalves halves = *(const LooseHalves *)((const uint16_t *)row + at);
    return (Vector)(__builtin_convertvector(halves, Integers) << 16);
}

/* Return elements [at, at + count) with zeros behind them. */
INLINE Vector load_tail(const void *row, int64_t at, int64_t count, int half) {
    float tail[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        tail[i] = half ? widen(((const uint16_t *)row)[at + i]) : ((const float *)row)[at + i];
    return load(tail);
}

/* Return elements [at, at + LANES), or the `stored` ones that there are and zeros behind them. */
INLINE Vector load_some(const void *row, int64_t at, int64_t stored, int half) {
    if (stored >= LANES) return load_at(row, at, half);
    return stored > 0 ? load_tail(row, at, stored, half) : (Vector){0};
}

#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANES == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif

/* Return the sums of neighbours, those of `a` in the lower half, those of `b` in the upper. */
INLINE Vector pair_sums(Vector a, Vector b) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, EVEN) + __builtin_shufflevector(a, b, ODD);
#else
    return __builtin_shuffle(a, b, (Integers){EVEN}) + __builtin_shuffle(a, b, (Integers){ODD});
#endif
}

/* Return the sums of the lanes of TILE vectors, which are overwritten. */
INLINE Vector lane_sums(Vector sums[TILE]) {
#pragma GCC unroll 4
    for (int count = TILE / 2; count; count /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[i] = pair_sums(sums[2 * i], sums[2 * i + 1]);
    return sums[0];
}

INLINE float lane_sum(Vector sum) {
    for (int count = LANES / 2; count; count /= 2) sum = pair_sums(sum, sum);
    return sum[0];
}

/* Return a_r . b_c of `rows` x `columns` = TILE pairs, in the order r * columns + c. What lies
 * `ahead` bytes behind each b_c is brought into the second cache meanwhile, unless that is 0: into
 * the first one a processor brings too few lines at a time. */
INLINE Vector dots_ahead(int rows, int columns, const float *const *a, const void *const *b,
                         int half, int64_t depth, int64_t ahead) {
    Vector sums[TILE] = {{0}}, row[TILE], column[TILE];
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) {
        if (ahead)
#pragma GCC unroll 16
            for (int c = 0; c < columns; c++)
                __builtin_prefetch((const char *)b[c] + k * (half ? 2 : 4) + ahead, 0, 2);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) row[r] = load(a[r] + k);
#pragma GCC unroll 16
        for (int c = 0; c < columns; c++) column[c] = load_at(b[c], k, half);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
            for (int c = 0; c < columns; c++) sums[r * columns + c] += row[r] * column[c];
    }
    if (k < depth) {
        for (int r = 0; r < rows; r++) row[r] = load_tail(a[r], k, depth - k, 0);
        for (int c = 0; c < columns; c++) column[c] = load_tail(b[c], k, depth - k, half);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
            for (int c = 0; c < columns; c++) sums[r * columns + c] += row[r] * column[c];
    }
    return lane_sums(sums);
}

INLINE Vector dots(int rows, int columns, const float *const *a, const void *const *b, int half,
                   int64_t depth) {
    return dots_ahead(rows, columns, a, b, half, depth, 0);
}

INLINE float dot(const float *a, const float *b, int64_t depth) {
    Vector sum = {0};
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) sum += load(a + k) * load(b + k);
    if (k < depth) sum += load_tail(a, k, depth - k, 0) * load_tail(b, k, depth - k, 0);
    return lane_sum(sum);
}

INLINE Vector choose(Integers which, Vector yes, Vector no) {
    return (Vector)((which & (Integers)yes) | (~which & (Integers)no));
}

/* Return e^x to about one unit in the last place; 0 below -87, +inf above 88, NaN for NaN. */
INLINE Vector exponential(Vector x) {
    const Vector low = splat(-87.0f), high = splat(88.5f), shift = splat(12582912.0f);
    Vector bounded = choose(x > low, x, low);
    bounded = choose(bounded > high, high, bounded);
    /* Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
    Vector turns = bounded * 1.44269504f + shift;
    Vector whole = turns - shift;
    Vector rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vector result = splat(1.9875691500e-4f);
    result = result * rest + 1.3981999507e-3f;
    result = result * rest + 8.3334519073e-3f;
    result = result * rest + 4.1665795894e-2f;
    result = result * rest + 1.6666665459e-1f;
    result = result * rest + 5.0000001201e-1f;
    result = result * rest * rest + rest + 1.0f;
    Integers power = ((Integers)turns - (Integers)shift + 127) << 23;
    result = result * (Vector)power;
    result = choose(x < low, splat(0.0f), result);
    result = choose(x > high, splat(INFINITY), result);
    return choose(x == x, result, x);
}

/* Apply `exponential` to `count` floats, of which the last vector may be a part. */
INLINE void exponentials(float *values, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(values + i, exponential(load(values + i)));
    if (i < count) {
        Vector last = exponential(load_tail(values, i, count - i, 0));
        memcpy(values + i, &last, (count - i) * sizeof(float));
    }
}

/* out[r, c] = x[r] . weight[c]; `out` has a row stride of its own. */
void linear(const float *x, int64_t x_stride, Matrix weight, float *out, int64_t out_stride,
            int64_t rows, int64_t columns, int64_t depth);

/* out[r, i] = silu(min(gate, limit)) * clamp(up), rounded to bfloat16 where `half` is set. */
void gate_rows(const float *gate_up, int64_t stride, float limit, int half, float *out,
               int64_t rows, int64_t inner);

/* Code one row of `count` numbers as e4m3 with one power-of-two scale; return its exponent. */
int quantise_row(const float *x, int64_t count, uint8_t *codes);
/* Write the numbers of `count` e4m3 codes times `scale`. */
void expand_row(const uint8_t *codes, int64_t count, float scale, float *out);

INLINE float power_of_two(int exponent) {
    uint32_t bits = (uint32_t)exponent << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif

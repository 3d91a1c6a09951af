/* The race of a draw: the token with the largest logit / temperature + noise. The bits are those of
 * `noise.py` and `reference.py`: every product is rounded before it is added to anything. */
#include "../host.h"

enum { BLOCK = 256 };

/* Return a product that no sum is fused with, whatever the compiler may fuse. */
INLINE Vector product(Vector a, Vector b) {
    Vector result = a * b;
#if defined(__x86_64__)
    __asm__("" : "+x"(result));
#elif defined(__aarch64__)
    __asm__("" : "+w"(result));
#else
    __asm__("" : "+m"(result));
#endif
    return result;
}

INLINE Vector polynomial(const float coefficients[8], Vector x) {
    Vector total = splat(coefficients[7]);
#pragma GCC unroll 7
    for (int i = 6; i >= 0; i--) total = product(total, x) + splat(coefficients[i]);
    return total;
}

/* Return ln(x) of normal positive numbers. */
INLINE Vector logarithm(Vector x) {
    static const float terms[8] = {0.99999994f, -0.50000364f, 0.33335114f, -0.24970071f,
                                   0.19898565f, -0.17247014f, 0.1623419f,  -0.10134057f};
    Integers exponent = ((Integers)x - 0x3f3504f3) >> 23;
    Vector part = (Vector)((Integers)x - (exponent << 23)) - 1.0f;
    Vector whole = product(__builtin_convertvector(exponent, Vector), splat(0.6931472f));
    return product(polynomial(terms, part), part) + whole;
}

/* Return the noise of tokens of which 31 bits, 31 other bits, and the sign are given. */
INLINE Vector gumbel(Integers high, Integers low, Integers sign) {
    static const float terms[8] = {0.49999997f, 0.20834327f, 0.12460045f, 0.09319676f,
                                   0.02195178f, 0.22096539f, -0.290545f,  0.32765117f};
    Vector w = product(__builtin_convertvector(high, Vector), splat(0x1p-32f)) +
               product(__builtin_convertvector(low, Vector), splat(0x1p-63f));
    Vector log_w = logarithm(w);
    Vector late = -logarithm(-log_w);
    Vector early = -(product(polynomial(terms, w), w) + log_w);
    return choose(sign, late, early);
}

/* Write the noise of `count` tokens. */
static void make_noise(uint64_t key, const int64_t *ids, int64_t first, int count, float *noise) {
    int32_t high[BLOCK] = {0}, low[BLOCK] = {0};
    for (int i = 0; i < count; i++) {
        uint64_t id = ids ? (uint64_t)ids[i] : (uint64_t)(first + i);
        uint64_t bits = key + (id + 1) * 0x9E3779B97F4A7C15u;
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
        bits ^= bits >> 31;
        high[i] = (int32_t)(bits >> 32);
        low[i] = (int32_t)(bits & 0x7fffffff) | 1;
    }
    for (int i = 0; i < count; i += LANES) {
        Integers high_bits = (Integers)load((const float *)(const void *)(high + i));
        Integers low_bits = (Integers)load((const float *)(const void *)(low + i));
        store(noise + i, gumbel(high_bits & 0x7fffffff, low_bits, high_bits >> 31));
    }
}

/* Not part of its caller, so that no product is fused with the sum of `add_noise`. */
static __attribute__((noinline)) void scale(const float *values, double warmth, int count,
                                            double *scores) {
    for (int i = 0; i < count; i++) scores[i] = (double)values[i] * warmth;
}

/* Add noise to scores, -inf to what is no number; return the largest sum. */
static __attribute__((noinline)) double add_noise(double *scores, const float *noise, int count) {
    double largest = -INFINITY;
    for (int i = 0; i < count; i++) {
        double score = scores[i] + (double)noise[i];
        score = score == score ? score : -INFINITY;
        scores[i] = score;
        largest = score > largest ? score : largest;
    }
    return largest;
}

/* values [rows, count], ids [rows, count] or none for 0, 1, ...; temperature and keys [rows] ->
 * tokens [rows] and their scores. A stride of 0 has all rows share the ids. */
void race_rows(const float *values, int64_t stride, const int64_t *ids, int64_t ids_stride,
               const float *temperature, const int64_t *keys, int64_t *tokens, double *best,
               int64_t rows, int64_t count) {
    for (int64_t r = 0; r < rows; r++, values += stride, ids = ids ? ids + ids_stride : ids) {
        double warmth = 1.0 / (double)temperature[r];
        best[r] = -INFINITY;
        tokens[r] = INT64_MAX;
        for (int64_t first = 0; first < count; first += BLOCK) {
            float noise[BLOCK];
            double scores[BLOCK];
            int some = count - first < BLOCK ? (int)(count - first) : BLOCK;
            scale(values + first, warmth, some, scores);
            make_noise((uint64_t)keys[r], ids ? ids + first : NULL, first, some, noise);
            if (add_noise(scores, noise, some) < best[r]) continue;
            for (int i = 0; i < some; i++) {
                int64_t id = ids ? ids[first + i] : first + i;
                if (scores[i] < best[r] || (scores[i] == best[r] && id >= tokens[r])) continue;
                best[r] = scores[i];
                tokens[r] = id;
            }
        }
    }
}

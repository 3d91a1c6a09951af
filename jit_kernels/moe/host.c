/* Routed experts: tokens in blocks, the rows of one expert after another's. */
#include "../host.h"

enum { BLOCK = 256 };

/* Put the (token, choice) pairs of a block into the order of their experts. */
static void sort_pairs(const int64_t *experts, int64_t pairs, int64_t count, int64_t *first,
                       int64_t *order) {
    memset(first, 0, (count + 1) * sizeof *first);
    for (int64_t p = 0; p < pairs; p++) first[experts[p] + 1]++;
    for (int64_t e = 0; e < count; e++) first[e + 1] += first[e];
    for (int64_t p = 0; p < pairs; p++) order[first[experts[p]]++] = p;
    for (int64_t e = count; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

static void add_to_rows(float *rows, const float *bias, int64_t count, int64_t width) {
    for (int64_t r = 0; r < count; r++, rows += width)
        for (int64_t i = 0; i < width; i++) rows[i] += bias[i];
}

/* out[r, i] = (clamp(up) + 1) * g * sigmoid(alpha * g) of g = min(gate, limit), rounded to bfloat16
 * where `half` is set. */
static void sigmoid_gate_rows(const float *gate_up, float limit, float alpha, int half, float *out,
                              int64_t rows, int64_t inner) {
    for (int64_t r = 0; r < rows; r++, gate_up += 2 * inner, out += inner) {
        const float *up = gate_up + inner;
        for (int64_t i = 0; i < inner; i++)
            out[i] = -alpha * (gate_up[i] > limit ? limit : gate_up[i]);
        exponentials(out, inner);
        for (int64_t i = 0; i < inner; i++) {
            float gate = gate_up[i] > limit ? limit : gate_up[i];
            float clamped = up[i] > limit ? limit : up[i];
            clamped = clamped < -limit ? -limit : clamped;
            float value = gate / (out[i] + 1.0f) * (clamped + 1.0f);
            out[i] = half ? rounded_to_half(value) : value;
        }
    }
}

/* What products of experts have besides weights: all of it, or NULL and SwiGLU. */
typedef struct {
    const float *into, *back; /* [count, 2 * inner], [count, width] */
    float alpha;
} Biases;

static int run(const float *x, const int64_t *experts, const float *weights, const void *gate_up,
               const void *down, int64_t half, const Biases *biases, float limit, float *out,
               int64_t tokens, int64_t top_k, int64_t count, int64_t width, int64_t inner) {
    for (int64_t p = 0; p < tokens * top_k; p++)
        if (experts[p] < 0 || experts[p] >= count) return -1;
    int64_t most = (tokens < BLOCK ? tokens : BLOCK) * top_k, size = half ? 2 : 4;
    float *rows = malloc(most * (2 * width + 3 * inner) * sizeof *rows);
    int64_t *order = malloc((most + count + 1) * sizeof *order);
    if (!rows || !order) {
        free(rows);
        free(order);
        return -2;
    }
    float *sums = rows + most * width, *wide = sums + most * width;
    float *hidden = wide + most * 2 * inner;
    int64_t *first = order + most;
    for (int64_t from = 0; from < tokens; from += BLOCK) {
        int64_t here = tokens - from < BLOCK ? tokens - from : BLOCK, pairs = here * top_k;
        sort_pairs(experts + from * top_k, pairs, count, first, order);
        for (int64_t i = 0; i < pairs; i++)
            memcpy(rows + i * width, x + (from + order[i] / top_k) * width, width * sizeof *rows);
        for (int64_t e = 0; e < count; e++) {
            int64_t at = first[e], members = first[e + 1] - at;
            if (!members) continue;
            Matrix in = {(const char *)gate_up + e * 2 * inner * width * size, width, (int)half};
            Matrix back = {(const char *)down + e * width * inner * size, inner, (int)half};
            linear(rows + at * width, width, in, wide + at * 2 * inner, 2 * inner, members,
                   2 * inner, width);
            float *made = wide + at * 2 * inner, *gated = hidden + at * inner;
            if (biases) {
                add_to_rows(made, biases->into + e * 2 * inner, members, 2 * inner);
                sigmoid_gate_rows(made, limit, biases->alpha, (int)half, gated, members, inner);
            } else {
                gate_rows(made, 2 * inner, limit, (int)half, gated, members, inner);
            }
            linear(gated, inner, back, rows + at * width, width, members, width, inner);
            if (biases) add_to_rows(rows + at * width, biases->back + e * width, members, width);
        }
        /* Back into the order of tokens and choices, then choice after choice. */
        for (int64_t i = 0; i < pairs; i++)
            memcpy(sums + order[i] * width, rows + i * width, width * sizeof *rows);
        for (int64_t t = 0; t < here; t++) {
            float *sum = out + (from + t) * width;
            const float *chosen = sums + t * top_k * width, *share = weights + (from + t) * top_k;
            for (int64_t i = 0; i < width; i++) sum[i] = chosen[i] * share[0];
            for (int64_t k = 1; k < top_k; k++)
                for (int64_t i = 0; i < width; i++) sum[i] += chosen[k * width + i] * share[k];
        }
    }
    free(rows);
    free(order);
    return 0;
}

/* x [tokens, width], experts and weights [tokens, top_k], gate_up [count, 2 * inner, width],
 * down [count, width, inner], out [tokens, width]. Return -1 for an expert that is none, -2 where
 * there is no memory. */
int moe(const float *x, const int64_t *experts, const float *weights, const void *gate_up,
        const void *down, int64_t half, float limit, float *out, int64_t tokens, int64_t top_k,
        int64_t count, int64_t width, int64_t inner) {
    return run(x, experts, weights, gate_up, down, half, NULL, limit, out, tokens, top_k, count,
               width, inner);
}

/* The same with biases, into [count, 2 * inner] and back [count, width], and another gate. */
int biased_moe(const float *x, const int64_t *experts, const float *weights, const void *gate_up,
               const void *down, int64_t half, const float *into, const float *back, float limit,
               float alpha, float *out, int64_t tokens, int64_t top_k, int64_t count,
               int64_t width, int64_t inner) {
    Biases biases = {into, back, alpha};
    return run(x, experts, weights, gate_up, down, half, &biases, limit, out, tokens, top_k, count,
               width, inner);
}

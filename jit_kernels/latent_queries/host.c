/* Products of heads with a matrix each, whose rows are added in order: no row is transposed. */
#include "../host.h"

/* Sums of so many tokens and channels fit into the registers. */
enum { TOKENS = 4, CHANNELS = (LANES == 16 ? 4 : 2) * LANES };

/* out_t = sum over k of q_t[k] * keys_k, for up to TOKENS tokens and CHANNELS channels. */
INLINE void add_rows(const float *q, int64_t q_stride, Matrix keys, float *out,
                     int64_t out_stride, int64_t tokens, int64_t depth, int64_t stored, int half) {
    Vector sums[TOKENS][CHANNELS / LANES] = {{{0}}};
    const float *mine[TOKENS];
    for (int t = 0; t < TOKENS; t++) mine[t] = q + (t < tokens ? t : 0) * q_stride;
    for (int64_t k = 0; k < depth; k++) {
        const char *row = (const char *)keys.data + k * keys.stride * (half ? 2 : 4);
        Vector part[CHANNELS / LANES];
#pragma GCC unroll 4
        for (int c = 0; c < CHANNELS / LANES; c++)
            part[c] = load_some(row, c * LANES, stored - c * LANES, half);
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; t++)
#pragma GCC unroll 4
            for (int c = 0; c < CHANNELS / LANES; c++) sums[t][c] += part[c] * mine[t][k];
    }
    for (int64_t t = 0; t < TOKENS && t < tokens; t++) {
        float found[CHANNELS];
        for (int c = 0; c < CHANNELS / LANES; c++) store(found + c * LANES, sums[t][c]);
        memcpy(out + t * out_stride, found,
               (stored < CHANNELS ? stored : CHANNELS) * sizeof *found);
    }
}

/* q [tokens, heads, depth]; keys [heads, depth, columns]; out [tokens, heads, columns]. Strides in
 * numbers: of q by token and head, of keys by head and row, of out by token. */
void latent_queries(const float *q, int64_t q_stride, int64_t q_head, const char *keys,
                    int64_t keys_head, int64_t keys_row, int64_t half, float *out,
                    int64_t out_stride, int64_t tokens, int64_t heads, int64_t depth,
                    int64_t columns) {
    int64_t bytes = half ? 2 : 4;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t c = 0; c < columns; c += CHANNELS)
            for (int64_t t = 0; t < tokens; t += TOKENS) {
                Matrix block = {keys + (h * keys_head + c) * bytes, keys_row, (int)half};
                const float *first = q + t * q_stride + h * q_head;
                float *to = out + t * out_stride + h * columns + c;
                if (half)
                    add_rows(first, q_stride, block, to, out_stride, tokens - t, depth,
                             columns - c, 1);
                else
                    add_rows(first, q_stride, block, to, out_stride, tokens - t, depth,
                             columns - c, 0);
            }
}

/* Indexer scores: products of a few tokens' heads with a few hundred keys at a time. */
#include "../host.h"

enum { TOKENS = 16, KEYS = 256 };

/* out[0, count) += the weighted positive part of the products [heads, KEYS] */
INLINE void weigh(const float *products, const float *weights, float *out, int64_t heads,
                  int64_t count) {
    memset(out, 0, count * sizeof *out);
    for (int64_t h = 0; h < heads; h++, products += KEYS)
        for (int64_t b = 0; b < count; b++) {
            /* Not a comparison with zero alone: NaN has to stay. */
            float wanted = products[b] < 0.0f ? 0.0f : products[b];
            out[b] += wanted * weights[h];
        }
}

/* q [tokens, heads, width], keys [rows, slots, width], out [tokens, slots]. Return -1 for a row
 * that is none, -2 where there is no memory. */
int indexer_logits(const float *q, const float *weights, const float *keys, const int64_t *row,
                   const int64_t *visible, float *out, int64_t tokens, int64_t heads,
                   int64_t width, int64_t rows, int64_t slots) {
    for (int64_t t = 0; t < tokens; t++)
        if (row[t] < 0 || row[t] >= rows) return -1;
    float *products = malloc(TOKENS * heads * KEYS * sizeof *products);
    if (!products) return -2;
    for (int64_t first = 0, last; first < tokens; first = last) {
        int64_t most = visible[first];
        for (last = first + 1; last < tokens && last < first + TOKENS; last++) {
            if (row[last] != row[first]) break;
            most = visible[last] > most ? visible[last] : most;
        }
        most = most < slots ? most : slots;
        for (int64_t at = 0; at < most; at += KEYS) {
            int64_t count = most - at < KEYS ? most - at : KEYS;
            Matrix some = {keys + (row[first] * slots + at) * width, width, 0};
            linear(q + first * heads * width, width, some, products, KEYS, (last - first) * heads,
                   count, width);
            for (int64_t t = first; t < last; t++)
                weigh(products + (t - first) * heads * KEYS, weights + t * heads,
                      out + t * slots + at, heads, count);
        }
        for (int64_t t = first; t < last; t++)
            for (int64_t b = visible[t] > 0 ? visible[t] : 0; b < slots; b++)
                out[t * slots + b] = -INFINITY;
    }
    free(products);
    return 0;
}

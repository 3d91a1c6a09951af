/* Attention of one token after another: the keys it names, found once, then two products. */
#include "../host.h"

/* Sums of so many heads and channels fit into the registers. */
enum { HEADS = 4, CHANNELS = (LANES == 16 ? 4 : 2) * LANES };

/* p[j, h] = scale * q_h . key_j */
static void score(const float *q, const float *const *key, float *p, int64_t count, int64_t heads,
                  int64_t width, float scale) {
    for (int64_t h = 0; h < heads; h += TILE_ROWS) {
        const float *a[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++) a[r] = q + (h + r < heads ? h + r : heads - 1) * width;
        for (int64_t j = 0; j < count; j += TILE_COLUMNS) {
            const void *b[TILE_COLUMNS];
            float found[TILE];
            for (int c = 0; c < TILE_COLUMNS; c++) b[c] = key[j + c < count ? j + c : count - 1];
            store(found, dots(TILE_ROWS, TILE_COLUMNS, a, b, 0, width) * scale);
            for (int r = 0; r < TILE_ROWS && h + r < heads; r++)
                for (int c = 0; c < TILE_COLUMNS && j + c < count; c++)
                    p[(j + c) * heads + h + r] = found[r * TILE_COLUMNS + c];
        }
    }
}

/* Make weights of scores; total[h] is their sum with the sink's, in the order of the keys. */
static void weigh(float *p, const float *sink, float *total, float *greatest, int64_t count,
                  int64_t heads) {
    memcpy(greatest, sink, heads * sizeof *greatest);
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < heads; h++) {
            float logit = p[j * heads + h];
            /* NaN wins, so that it is not lost. */
            greatest[h] = greatest[h] >= logit ? greatest[h] : logit;
        }
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < heads; h++) p[j * heads + h] -= greatest[h];
    exponentials(p, count * heads);
    for (int64_t h = 0; h < heads; h++) total[h] = 0.0f;
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < heads; h++) total[h] += p[j * heads + h];
    for (int64_t h = 0; h < heads; h++) total[h] += expf(sink[h] - greatest[h]);
}

/* out[h] = sum over j of p[j, h] * key_j / total[h], for up to 4 heads and CHANNELS channels from
 * `channel`; the sums of a channel are in a vector's lane and go through the keys in order. */
INLINE void gather(const float *p, const float *const *key, const float *total, float *out,
                   int64_t count, int64_t heads, int64_t here, int64_t channel, int64_t width) {
    Vector sums[HEADS][CHANNELS / LANES] = {{{0}}};
    int64_t stored = width - channel < CHANNELS ? width - channel : CHANNELS;
    for (int64_t j = 0; j < count; j++) {
        Vector part[CHANNELS / LANES];
        if (stored == CHANNELS) {
#pragma GCC unroll 4
            for (int c = 0; c < CHANNELS / LANES; c++) part[c] = load(key[j] + channel + c * LANES);
        } else {
            float some[CHANNELS] = {0};
            memcpy(some, key[j] + channel, stored * sizeof *some);
            for (int c = 0; c < CHANNELS / LANES; c++) part[c] = load(some + c * LANES);
        }
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++) {
            float weight = p[j * heads + (h < here ? h : 0)];
#pragma GCC unroll 4
            for (int c = 0; c < CHANNELS / LANES; c++) sums[h][c] += part[c] * weight;
        }
    }
    for (int64_t h = 0; h < here; h++) {
        float found[CHANNELS];
        for (int c = 0; c < CHANNELS / LANES; c++)
            store(found + c * LANES, sums[h][c] / total[h]);
        memcpy(out + h * width + channel, found, stored * sizeof *found);
    }
}

/* q and out [tokens, heads, width], keys [rows, width], index [tokens, slots]. Return -1 for a key
 * that is none, -2 where there is no memory. */
int sparse_attention(const float *q, const float *keys, const int64_t *index, const float *sink,
                     float scale, float *out, int64_t tokens, int64_t heads, int64_t width,
                     int64_t rows, int64_t slots) {
    float *p = malloc((slots + 2) * heads * sizeof *p);
    const float **key = malloc((slots + 1) * sizeof *key);
    int fault = p && key ? 0 : -2;
    for (int64_t t = 0; t < tokens && !fault; t++, index += slots) {
        int64_t count = 0;
        for (int64_t j = 0; j < slots; j++) {
            if (index[j] < 0 || index[j] >= rows) fault = -1;
            if (index[j] > 0) key[count++] = keys + index[j] * width;
        }
        if (fault) break;
        float *total = p + slots * heads, *greatest = total + heads;
        score(q, key, p, count, heads, width, scale);
        weigh(p, sink, total, greatest, count, heads);
        for (int64_t h = 0; h < heads; h += HEADS) {
            int64_t here = heads - h < HEADS ? heads - h : HEADS;
            for (int64_t c = 0; c < width; c += CHANNELS)
                gather(p + h, key, total + h, out + h * width, count, heads, here, c, width);
        }
        q += heads * width;
        out += heads * width;
    }
    free(p);
    free(key);
    return fault;
}

/* Attention over keys and values in pages: a few tokens of a row at a time, so that keys are loaded
 * once for all of them. What a token gets does not depend on which tokens those are. */
#include "../host.h"

/* Sums of so many queries and channels fit into the registers. */
enum { QUERIES = 4, CHANNELS = (LANES == 16 ? 4 : 2) * LANES };
/* Queries of a block, unless a single token has more; MOST_SHARE of `__init__.py`. */
enum { BLOCK_QUERIES = 32, MOST_QUERIES = 128 };

/* Keys and values: where the heads of each position lie, and one head of the queries' block. */
typedef struct {
    const char *const *at; /* [positions] */
    int64_t shift, width;  /* bytes to the head; channels */
    int half;
} Column;

/* `tokens` tokens of a row, of which each has `share` queries of one head of keys. Positions count
 * from `low`, the first that any of them reads. */
typedef struct {
    int64_t first, tokens, share; /* position of the first */
    int64_t low, full;            /* all of them read from position `full` on */
    const int64_t *since;         /* what each reads from, counted from 0; NULL: everything */
} Block;

static int64_t queries_of(Block block) { return block.tokens * block.share; }
static int reads(Block block, int64_t query, int64_t position) {
    int64_t token = query / block.share;
    int64_t since = block.since ? block.since[token] - block.low : 0;
    return position >= since && position <= block.first + token;
}

/* p[j, r] = scale * q_r . key_j; -inf where a token does not read the position */
INLINE void score(const float *const *q, Column keys, Block block, float *p, float scale,
                  int tile_rows, int tile_columns) {
    int64_t queries = queries_of(block), count = block.first + block.tokens;
    for (int64_t r = 0; r < queries; r += tile_rows) {
        const float *a[TILE];
        for (int i = 0; i < tile_rows; i++) a[i] = q[r + i < queries ? r + i : queries - 1];
        for (int64_t j = 0; j < count; j += tile_columns) {
            const void *b[TILE];
            float found[TILE];
            for (int c = 0; c < tile_columns; c++)
                b[c] = keys.at[j + c < count ? j + c : count - 1] + keys.shift;
            store(found, (keys.half ? dots(tile_rows, tile_columns, a, b, 1, keys.width)
                                    : dots(tile_rows, tile_columns, a, b, 0, keys.width)) *
                             scale);
            for (int i = 0; i < tile_rows && r + i < queries; i++)
                for (int c = 0; c < tile_columns && j + c < count; c++)
                    p[(j + c) * queries + r + i] =
                        reads(block, r + i, j + c) ? found[i * tile_columns + c] : -INFINITY;
        }
    }
}

/* Make weights of scores; total[r] is their sum in the order of positions, and that of the sinks of
 * the head's queries, unless they are NULL. */
static void weigh(float *p, Block block, const float *sinks, float *total) {
    int64_t queries = queries_of(block), count = block.first + block.tokens;
    float greatest[MOST_QUERIES];
    for (int64_t r = 0; r < queries; r++) greatest[r] = sinks ? sinks[r % block.share] : -INFINITY;
    for (int64_t j = 0; j < count; j++)
        for (int64_t r = 0; r < queries; r++) {
            float logit = p[j * queries + r];
            greatest[r] = greatest[r] >= logit ? greatest[r] : logit;
        }
    for (int64_t j = 0; j < count; j++)
        for (int64_t r = 0; r < queries; r++) p[j * queries + r] -= greatest[r];
    exponentials(p, count * queries);
    for (int64_t r = 0; r < queries; r++) total[r] = 0.0f;
    for (int64_t j = 0; j < count; j++)
        for (int64_t r = 0; r < queries; r++) total[r] += p[j * queries + r];
    for (int64_t r = 0; sinks && r < queries; r++)
        total[r] += expf(sinks[r % block.share] - greatest[r]);
}

/* out_r = sum over j of p[j, r] * value_j / total[r], for up to QUERIES queries from r and CHANNELS
 * channels; the sums of a channel are in a vector's lane and go through the positions in order. */
INLINE void gather(const float *p, Column values, Block block, const float *total,
                   float *const *out, int64_t r, int64_t channel, int half) {
    Vector sums[QUERIES][CHANNELS / LANES] = {{{0}}};
    int64_t queries = queries_of(block), count = block.first + block.tokens;
    int64_t here = queries - r < QUERIES ? queries - r : QUERIES;
    int64_t stored = values.width - channel < CHANNELS ? values.width - channel : CHANNELS;
    for (int64_t j = 0; j < count; j++) {
        const void *head = values.at[j] + values.shift;
        const float *weights = p + j * queries + r;
        Vector part[CHANNELS / LANES];
#pragma GCC unroll 4
        for (int c = 0; c < CHANNELS / LANES; c++)
            part[c] = load_some(head, channel + c * LANES, stored - c * LANES, half);
#pragma GCC unroll 4
        for (int q = 0; q < QUERIES; q++) {
            /* What a token does not read may be no number: 0 times that is none. */
            int doubtful = (j > block.first || j < block.full) && q < here;
            if (doubtful && !reads(block, r + q, j)) continue;
            float weight = weights[q < here ? q : 0];
#pragma GCC unroll 4
            for (int c = 0; c < CHANNELS / LANES; c++) sums[q][c] += part[c] * weight;
        }
    }
    for (int64_t q = 0; q < here; q++) {
        float found[CHANNELS];
        for (int c = 0; c < CHANNELS / LANES; c++)
            store(found + c * LANES, sums[q][c] / total[r + q]);
        memcpy(out[r + q] + channel, found, stored * sizeof *found);
    }
}

static void attend(const float *const *q, float *const *out, Column keys, Column values,
                   Block block, float *p, const float *sinks, float scale) {
    float total[MOST_QUERIES];
    if (queries_of(block) == 1)
        score(q, keys, block, p, scale, 1, TILE);
    else
        score(q, keys, block, p, scale, TILE_ROWS, TILE_COLUMNS);
    weigh(p, block, sinks, total);
    for (int64_t r = 0; r < queries_of(block); r += QUERIES)
        for (int64_t c = 0; c < values.width; c += CHANNELS)
            if (values.half)
                gather(p, values, block, total, out, r, c, 1);
            else
                gather(p, values, block, total, out, r, c, 0);
}

/* Find which positions a block's tokens read; return -1 where one does not read itself. */
static int bound(Block *block) {
    block->low = block->first;
    for (int64_t t = 0; t < block->tokens; t++) {
        int64_t since = block->since[t];
        if (since < 0 || since > block->first + t) return -1;
        block->low = since < block->low ? since : block->low;
        block->full = since > block->full ? since : block->full;
    }
    return 0;
}

/* q [tokens, heads, width] with `stride` floats a token; keys [units, size, groups, width]; values
 * have `wide` of every `apart` numbers of a position, a head after the other; out [tokens, heads,
 * wide]; table [rows, columns]; row and position [tokens]; since [tokens] or NULL; sinks [heads] or
 * NULL. Return -1 for a page that is none or a token that does not read itself, -2 where there is
 * no memory. */
int grouped_attention(const float *q, int64_t stride, const char *keys, const char *values,
                      int64_t half, const int32_t *table, const int64_t *row,
                      const int64_t *position, const int64_t *since, const float *sinks,
                      float scale, float *out, int64_t tokens, int64_t heads, int64_t groups,
                      int64_t width, int64_t wide, int64_t apart, int64_t units, int64_t size,
                      int64_t rows, int64_t columns) {
    int64_t share = heads / groups, bytes = half ? 2 : 4, furthest = 0;
    int64_t each = groups * width * bytes; /* of a position */
    int64_t most = share < BLOCK_QUERIES ? BLOCK_QUERIES / share : 1;
    for (int64_t t = 0; t < tokens; t++)
        furthest = position[t] >= furthest ? position[t] + 1 : furthest;
    float *p = malloc(furthest * most * share * sizeof *p);
    const char **at = malloc(2 * furthest * sizeof *at);
    int fault = p && at ? 0 : -2;
    for (int64_t t = 0, here; t < tokens && !fault; t += here) {
        Block block = {position[t], 1, share, 0, 0, since ? since + t : NULL};
        while (block.tokens < most && t + block.tokens < tokens && row[t + block.tokens] == row[t])
            block.tokens++;
        here = block.tokens;
        const char **values_at = at + furthest;
        int64_t count = block.first + here, known = row[t] >= 0 && row[t] < rows;
        if (since) fault = bound(&block);
        for (int64_t j = block.low; j < count && !fault;) {
            int64_t c = j / size, page = known && c < columns ? table[row[t] * columns + c] : -1;
            if (page < 0 || page >= units) fault = -1;
            int64_t place = page * size + j % size;
            for (int64_t end = (c + 1) * size; j < end && j < count; j++, place++) {
                at[j - block.low] = keys + place * each;
                values_at[j - block.low] = values + place * apart * bytes;
            }
        }
        block.first -= block.low, block.full -= block.low;
        for (int64_t g = 0; g < groups && !fault; g++) {
            const float *mine[MOST_QUERIES];
            float *found[MOST_QUERIES];
            for (int64_t r = 0; r < here * share; r++) {
                int64_t token = t + r / share, head = g * share + r % share;
                mine[r] = q + token * stride + head * width;
                found[r] = out + (token * heads + head) * wide;
            }
            attend(mine, found, (Column){at, g * width * bytes, width, (int)half},
                   (Column){values_at, g * wide * bytes, wide, (int)half}, block, p,
                   sinks ? sinks + g * share : NULL, scale);
        }
    }
    free(p);
    free(at);
    return fault;
}

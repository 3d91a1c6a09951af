/* Pooling of blocks and folding of tokens, channel by channel. */
#include "../host.h"

enum { CHANNELS = 256 };

/* Up to CHANNELS channels of one block; kv[s] and gate[s] are those of slot s. */
INLINE void pool(const float *const *kv, const float *const *gate, float *out, int64_t slots,
                 int64_t count) {
    float greatest[CHANNELS], weight[CHANNELS], total[CHANNELS] = {0}, sum[CHANNELS] = {0};
    memcpy(greatest, gate[0], count * sizeof *greatest);
    for (int64_t s = 1; s < slots; s++)
        for (int64_t i = 0; i < count; i++)
            greatest[i] = greatest[i] >= gate[s][i] ? greatest[i] : gate[s][i];
    for (int64_t s = 0; s < slots; s++) {
        for (int64_t i = 0; i < count; i++) weight[i] = gate[s][i] - greatest[i];
        exponentials(weight, count);
        for (int64_t i = 0; i < count; i++) {
            total[i] += weight[i];
            sum[i] += weight[i] * kv[s][i];
        }
    }
    for (int64_t i = 0; i < count; i++) out[i] = sum[i] / total[i];
}

/* rows [known, stride], members [blocks, slots], out [blocks, width]; columns as in Python. Return
 * -1 for a member that is no row. */
int pool_members(const float *rows, int64_t stride, const int64_t *members, int64_t kv_column,
                 int64_t gate_column, float *out, int64_t blocks, int64_t slots, int64_t width,
                 int64_t known) {
    const float *kv[slots], *gate[slots];
    for (int64_t m = 0; m < blocks; m++, members += slots, out += width)
        for (int64_t at = 0; at < width; at += CHANNELS) {
            int64_t present = 0, left = width - at;
            for (int64_t s = 0; s < slots; s++) {
                if (members[s] >= known) return -1;
                if (members[s] < 0) continue;
                const float *row = rows + members[s] * stride + at + (s < slots / 2 ? 0 : width);
                kv[present] = row + kv_column;
                gate[present++] = row + gate_column;
            }
            if (!present) return -1;
            pool(kv, gate, out + at, present, left < CHANNELS ? left : CHANNELS);
        }
    return 0;
}

/* One token into a state of `width` maxima, sums and weighted sums. */
INLINE void fold(const float *kv, const float *gate, const float *before, float *after,
                 int64_t width) {
    float *greatest = after, *decay = after + width, *weight = after + 2 * width;
    for (int64_t i = 0; i < width; i++) {
        greatest[i] = before[i] >= gate[i] ? before[i] : gate[i];
        decay[i] = before[i] - greatest[i];
        weight[i] = gate[i] - greatest[i];
    }
    exponentials(decay, 2 * width);
    for (int64_t i = 0; i < width; i++) {
        float kept = decay[i], added = weight[i];
        decay[i] = before[width + i] * kept + added;
        weight[i] = before[2 * width + i] * kept + added * kv[i];
    }
}

/* start [segments, 3, width], out [tokens, 3, width]; step j folds into the states of step j - 1 */
void fold_blocks(const float *kv, int64_t kv_stride, const float *gate, int64_t gate_stride,
                 const float *start, const int64_t *active, float *out, int64_t steps,
                 int64_t width) {
    const float *before = start;
    for (int64_t j = 0; j < steps; j++) {
        float *after = out;
        for (int64_t i = 0; i < active[j]; i++) {
            fold(kv, gate, before + i * 3 * width, out, width);
            kv += kv_stride, gate += gate_stride, out += 3 * width;
        }
        before = after;
    }
}

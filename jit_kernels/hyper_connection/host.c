/* Streams mixed into a block and back; the Sinkhorn steps of a token are one loop. */
#include "../host.h"

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* z[t] = fn . (x[t] / rms(x[t])), [tokens, outputs] */
static void stream_logits(const float *x, const float *fn, float eps, float *z, int64_t tokens,
                          int64_t outputs, int64_t depth) {
    linear(x, depth, (Matrix){fn, depth, 0}, z, outputs, tokens, outputs, depth);
    for (int64_t t = 0; t < tokens; t++) {
        const float *row = x + t * depth;
        float factor = 1.0f / sqrtf(dot(row, row, depth) / (float)depth + eps);
        for (int64_t i = 0; i < outputs; i++) z[t * outputs + i] *= factor;
    }
}

INLINE void mix(const float *x, const float *weights, float *out, int64_t count, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        float sum = weights[0] * x[i];
        for (int64_t j = 1; j < count; j++) sum += weights[j] * x[j * width + i];
        out[i] = sum;
    }
}

INLINE void divide_columns(float *a, float eps, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        float sum = a[k];
        for (int64_t j = 1; j < count; j++) sum += a[j * count + k];
        for (int64_t j = 0; j < count; j++) a[j * count + k] /= sum + eps;
    }
}

INLINE void divide_rows(float *a, float eps, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        float sum = a[j * count];
        for (int64_t k = 1; k < count; k++) sum += a[j * count + k];
        for (int64_t k = 0; k < count; k++) a[j * count + k] /= sum + eps;
    }
}

/* Softmax of every row plus eps, then columns and rows in turn, columns first and last. */
INLINE void sinkhorn(float *a, int64_t iterations, float eps, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        float *row = a + j * count, greatest = row[0], sum = 0.0f;
        for (int64_t k = 1; k < count; k++) greatest = row[k] > greatest ? row[k] : greatest;
        for (int64_t k = 0; k < count; k++) sum += row[k] = expf(row[k] - greatest);
        for (int64_t k = 0; k < count; k++) row[k] = row[k] / sum + eps;
    }
    divide_columns(a, eps, count);
    for (int64_t i = 1; i < iterations; i++) {
        divide_rows(a, eps, count);
        divide_columns(a, eps, count);
    }
}

INLINE void mix_in(const float *x, const float *z, const float *base, const float *scale,
                   int64_t iterations, float hc_eps, float *mixed, float *mixing, int64_t count,
                   int64_t width) {
    float gates[count], *post = mixing + count * count;
    for (int64_t j = 0; j < count; j++) gates[j] = sigmoid(z[j] * scale[0] + base[j]) + hc_eps;
    z += count, base += count;
    for (int64_t j = 0; j < count; j++) post[j] = 2.0f * sigmoid(z[j] * scale[1] + base[j]);
    z += count, base += count;
    for (int64_t i = 0; i < count * count; i++) mixing[i] = z[i] * scale[2] + base[i];
    sinkhorn(mixing, iterations, hc_eps, count);
    mix(x, gates, mixed, count, width);
}

/* x [tokens, count, width]; z [tokens, (2 + count) * count] is scratch; the rest as in Python */
void mhc_pre(const float *x, const float *fn, const float *base, const float *scale, float *z,
             int64_t iterations, float norm_eps, float hc_eps, float *mixed, float *shares,
             int64_t tokens, int64_t count, int64_t width) {
    int64_t outputs = (2 + count) * count, depth = count * width;
    stream_logits(x, fn, norm_eps, z, tokens, outputs, depth);
    for (int64_t t = 0; t < tokens; t++) {
        if (count == 4) /* so that the compiler knows */
            mix_in(x + t * depth, z + t * outputs, base, scale, iterations, hc_eps,
                   mixed + t * width, shares + t * 20, 4, width);
        else
            mix_in(x + t * depth, z + t * outputs, base, scale, iterations, hc_eps,
                   mixed + t * width, shares + t * (count + 1) * count, count, width);
    }
}

/* out[t, k] = shares[t, count, k] * y[t] + sum over j of shares[t, j, k] * x[t, j] */
void mhc_post(const float *y, const float *x, const float *shares, float *out, int64_t tokens,
              int64_t count, int64_t width) {
    for (int64_t t = 0; t < tokens;
         t++, y += width, x += count * width, shares += (count + 1) * count)
        for (int64_t k = 0; k < count; k++, out += width) {
            float gate = shares[count * count + k];
            for (int64_t i = 0; i < width; i++) out[i] = gate * y[i];
            for (int64_t j = 0; j < count; j++)
                for (int64_t i = 0; i < width; i++)
                    out[i] += shares[j * count + k] * x[j * width + i];
        }
}

void mhc_head(const float *x, const float *fn, const float *base, const float *scale, float *z,
              float norm_eps, float hc_eps, float *mixed, int64_t tokens, int64_t count,
              int64_t width) {
    stream_logits(x, fn, norm_eps, z, tokens, count, count * width);
    for (int64_t t = 0; t < tokens; t++, z += count, x += count * width, mixed += width) {
        for (int64_t j = 0; j < count; j++) z[j] = sigmoid(z[j] * *scale + base[j]) + hc_eps;
        mix(x, z, mixed, count, width);
    }
}

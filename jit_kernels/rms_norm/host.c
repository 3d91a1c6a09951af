/* Root-mean-square normalisation. */
#include "../host.h"

void rms_norm(const float *x, int64_t stride, const float *weight, float eps, float *out,
              int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += stride, out += width) {
        float factor = 1.0f / sqrtf(dot(x, x, width) / (float)width + eps);
        if (weight)
            for (int64_t i = 0; i < width; i++) out[i] = x[i] * factor * weight[i];
        else
            for (int64_t i = 0; i < width; i++) out[i] = x[i] * factor;
    }
}

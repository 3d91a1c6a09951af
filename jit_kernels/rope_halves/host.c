/* Rotary embedding in place, channel i with channel i + width / 2. */
#include "../host.h"

/* x [tokens, heads, width] with `stride` floats a token; rotation [tokens, 2, width / 2] */
void rope_halves(float *x, int64_t stride, const float *rotation, int64_t tokens, int64_t heads,
                 int64_t width) {
    int64_t half = width / 2;
    for (int64_t t = 0; t < tokens; t++, rotation += width) {
        const float *cosines = rotation, *sines = rotation + half;
        for (int64_t h = 0; h < heads; h++) {
            float *low = x + t * stride + h * width, *high = low + half;
            for (int64_t i = 0; i < half; i++) {
                float a = low[i], b = high[i];
                low[i] = a * cosines[i] - b * sines[i];
                high[i] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

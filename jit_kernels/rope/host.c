/* Interleaved rotary embedding, in place. */
#include "../host.h"

INLINE void rotate(float *pair, const float *cosines, const float *sines, float sign) {
    float even = pair[0], odd = pair[1];
    pair[0] = even * cosines[0] + odd * (sign * sines[0]);
    pair[1] = odd * cosines[1] + even * (sign * sines[1]);
}

/* x [tokens, heads, width] with `stride` floats a token; rotation [tokens, 2, turned] */
void rope(float *x, int64_t stride, const float *rotation, float sign, int64_t tokens,
          int64_t heads, int64_t width, int64_t turned) {
    for (int64_t t = 0; t < tokens; t++) {
        const float *cosines = rotation + 2 * t * turned, *sines = cosines + turned;
        for (int64_t h = 0; h < heads; h++) {
            float *head = x + t * stride + h * width + width - turned;
            for (int64_t i = 0; i < turned; i += 2)
                rotate(head + i, cosines + i, sines + i, sign);
        }
    }
}

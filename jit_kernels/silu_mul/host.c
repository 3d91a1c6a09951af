/* Clamped SwiGLU. */
#include "../host.h"

void gate_rows(const float *gate_up, int64_t stride, float limit, int half, float *out,
               int64_t rows, int64_t inner) {
    for (int64_t r = 0; r < rows; r++, gate_up += stride, out += inner) {
        const float *up = gate_up + inner;
        for (int64_t i = 0; i < inner; i++) {
            float gate = gate_up[i] > limit ? limit : gate_up[i];
            out[i] = -gate;
        }
        exponentials(out, inner);
        for (int64_t i = 0; i < inner; i++) {
            float gate = gate_up[i] > limit ? limit : gate_up[i];
            float clamped = up[i] > limit ? limit : up[i];
            clamped = clamped < -limit ? -limit : clamped;
            float value = gate / (out[i] + 1.0f) * clamped;
            out[i] = half ? rounded_to_half(value) : value;
        }
    }
}

void silu_mul(const float *gate_up, int64_t stride, float limit, float *out, int64_t rows,
              int64_t inner) {
    gate_rows(gate_up, stride, limit, 0, out, rows, inner);
}

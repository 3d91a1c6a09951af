/* Indexer queries and keys: Hadamard transform, e4m3 with one scale a row, and back. */
#include "../host.h"

/* Butterflies of neighbours first, then of ever wider halves; `width` is a power of two. */
void hadamard(const float *x, int64_t stride, float *out, int64_t rows, int64_t width) {
    float scale = (float)(1.0 / sqrt((double)width));
    for (int64_t r = 0; r < rows; r++, x += stride, out += width) {
        memcpy(out, x, width * sizeof *out);
        for (int64_t half = 1; half < width; half *= 2)
            for (int64_t first = 0; first < width; first += 2 * half)
                for (int64_t i = first; i < first + half; i++) {
                    float low = out[i], high = out[i + half];
                    out[i] = low + high;
                    out[i + half] = low - high;
                }
        for (int64_t i = 0; i < width; i++) out[i] *= scale;
    }
}

/* x [rows, width] -> the numbers of its codes without their scale, and the scales */
void quantise_queries(const float *x, float *values, float *scales, int64_t rows, int64_t width) {
    uint8_t codes[width];
    for (int64_t r = 0; r < rows; r++, x += width, values += width) {
        scales[r] = power_of_two(quantise_row(x, width, codes));
        expand_row(codes, width, 1.0f, values);
    }
}

/* records [rows, width + 4]: codes, then a float32 scale */
void decode_keys(const uint8_t *records, float *out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, records += width + 4, out += width) {
        float scale;
        memcpy(&scale, records + width, sizeof scale);
        expand_row(records, width, scale, out);
    }
}

/* Packed latent records: e4m3 blocks of 128, their float32 scales, then bfloat16 channels. */
#include "../host.h"

enum { BLOCK = 128 };

/* records of plain + 4 * plain / BLOCK + 2 * rotated bytes -> out [rows, plain + rotated] */
void decode_latents(const uint8_t *records, float *out, int64_t rows, int64_t plain,
                    int64_t rotated) {
    for (int64_t r = 0; r < rows; r++, out += plain + rotated) {
        const uint8_t *scales = records + plain, *halves = scales + 4 * (plain / BLOCK);
        for (int64_t at = 0; at < plain; at += BLOCK, scales += 4) {
            float scale;
            memcpy(&scale, scales, sizeof scale);
            expand_row(records + at, BLOCK, scale, out + at);
        }
        for (int64_t i = 0; i < rotated; i++) {
            uint16_t half;
            memcpy(&half, halves + 2 * i, sizeof half);
            out[plain + i] = widen(half);
        }
        records = halves + 2 * rotated;
    }
}

/* Packed records: e4m3 blocks of 64 with power-of-two scales, bfloat16 channels behind them. */
#include "../host.h"

enum { BLOCK = 64 };

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Round a number within +-448 to e4m3, ties to even; NaN stays NaN. */
INLINE uint8_t e4m3(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 24 & 0x80, size = bits & 0x7FFFFFFF;
    uint32_t normal = ((size + 0x7FFFF + (size >> 20 & 1)) >> 20) - (120 << 3);
    /* Below 2^-6 codes are multiples of 2^-9, the last place of 2^14. */
    uint32_t small = bits_of(fabsf(value) + 16384.0f) - bits_of(16384.0f);
    uint32_t code = size < 0x3C800000 ? small : normal;
    return (uint8_t)(sign | (size > 0x7F800000 ? 0x7F : code));
}

INLINE float number(uint8_t code) {
    int32_t size = code & 0x7F, exponent = size >> 3, mantissa = size & 7;
    int32_t normal = exponent > 0;
    float value = (float)(mantissa + 8 * normal) * power_of_two(exponent - normal + 118);
    value = size == 0x7F ? NAN : value;
    return code & 0x80 ? -value : value;
}

int quantise_row(const float *x, int64_t count, uint8_t *codes) {
    /* Sizes compare as integers do, and NaN is the greatest. */
    uint32_t greatest = bits_of(1e-4f);
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = bits_of(x[i]) & 0x7FFFFFFF;
        greatest = size > greatest ? size : greatest;
    }
    float amax;
    memcpy(&amax, &greatest, sizeof amax);
    /* Adding just under one to the exponent field rounds any mantissa but zero up. */
    int exponent = (int)((bits_of(amax / 448.0f) + 0x7FFFFF) >> 23);
    float factor = power_of_two(254 - exponent);
    for (int64_t i = 0; i < count; i++) {
        float scaled = x[i] * factor;
        scaled = scaled > 448.0f ? 448.0f : scaled;
        codes[i] = e4m3(scaled < -448.0f ? -448.0f : scaled);
    }
    return exponent;
}

void expand_row(const uint8_t *codes, int64_t count, float scale, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = number(codes[i]) * scale;
}

/* kv [rows, plain + rotated] -> records of plain + 2 * rotated + scale_bytes bytes */
void encode_records(const float *kv, int64_t stride, uint8_t *out, int64_t rows, int64_t plain,
                    int64_t rotated, int64_t scale_bytes) {
    for (int64_t r = 0; r < rows; r++, kv += stride) {
        uint8_t *scales = out + plain + 2 * rotated;
        memset(scales, 0, scale_bytes);
        for (int64_t at = 0; at < plain; at += BLOCK)
            *scales++ = (uint8_t)quantise_row(kv + at, BLOCK, out + at);
        for (int64_t i = 0; i < rotated; i++) {
            uint32_t bits = bits_of(rounded_to_half(kv[plain + i]));
            uint16_t half = (uint16_t)(bits >> 16);
            memcpy(out + plain + 2 * i, &half, sizeof half);
        }
        out += plain + 2 * rotated + scale_bytes;
    }
}

void decode_records(const uint8_t *records, float *out, int64_t rows, int64_t plain,
                    int64_t rotated, int64_t scale_bytes) {
    for (int64_t r = 0; r < rows; r++, out += plain + rotated) {
        const uint8_t *halves = records + plain, *scales = halves + 2 * rotated;
        for (int64_t at = 0; at < plain; at += BLOCK)
            expand_row(records + at, BLOCK, power_of_two(*scales++), out + at);
        for (int64_t i = 0; i < rotated; i++) {
            uint16_t half;
            memcpy(&half, halves + 2 * i, sizeof half);
            out[plain + i] = widen(half);
        }
        records += plain + 2 * rotated + scale_bytes;
    }
}

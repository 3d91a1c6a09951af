// A multiplier's rows of `fn`: from the two bytes a number that `mix_rows.py` packs to what products
// take. No launch writes them: the one before need not have ended.
#pragma once

#include "layout.cuh"

// A byte under 0x43 is a bfloat16 number: 128 and more for the bytes below 128, twice the byte for
// others. Their middle is taken off.
constexpr float MIDDLE = 320.0f, LOW = 43.0f / 8192;

// What a byte's number is multiplied by, and what is added: the same pair twice.
struct Scale {
    __nv_bfloat162 by, offset;

    __device__ explicit Scale(__nv_bfloat162 unit)
        : by(unit), offset(__hmul2(unit, __float2bfloat162_rn(-MIDDLE))) {}
    // The numbers of the first two bytes of a word, or of the last two.
    __device__ unsigned expand(unsigned bytes, int pair) const {
        const unsigned numbers = __byte_perm(bytes, 0x43, pair ? 0x4342 : 0x4140);
        const auto x = reinterpret_cast<const __nv_bfloat162 &>(numbers);
        const __nv_bfloat162 scaled = __hfma2(x, by, offset);
        return reinterpret_cast<const unsigned &>(scaled);
    }
};

// Products of 16 channels, of each stream one after the other, each with EIGHTS times eight lines. Of a
// product and an eight a lane has four numbers of one line: a word of high bytes and one of low ones.
// Of four of these the high words lie together, and the low ones.
template <int EIGHTS>
struct Weights {
    static constexpr int PRODUCTS = STREAMS * STEPS;
    static constexpr int GROUPS = PRODUCTS * EIGHTS, FOURS = GROUPS / 4;
    // Fours that are under way at once.
    static constexpr int AHEAD = FOURS < 7 ? FOURS : 7;
    struct Four {
        uint4 highs, lows;
    };

    // What is under way, which a kernel asks for before it does anything else.
    struct Asked {
        const uint4 *from;
        uint4 units;
        Four fours[AHEAD];

        // A multiplier's fours lie one after the other, of each those of all lanes; after them the
        // units of eight lines, a word for each eight.
        __device__ Asked(const Call &call, const Part &part, int nth) {
            const int lane = threadIdx.x % 32;
            from = call.fn + (part.rank * MULTIPLIERS + nth) * (FOURS * 64 + 8);
            units = __ldg(from + FOURS * 64 + lane / 4);
            from += lane;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) fours[i] = load(i);
        }
        __device__ Four load(int i) const {
            return {__ldg(from + i * 64), __ldg(from + i * 64 + 32)};
        }
        __device__ __nv_bfloat162 unit(int eight) const {
            const unsigned each[3] = {units.x, units.y, units.z};
            return reinterpret_cast<const __nv_bfloat162 &>(each[eight]);
        }
    };

    unsigned high[PRODUCTS][EIGHTS][2], low[PRODUCTS][EIGHTS][2];
    __nv_bfloat162 low_unit[EIGHTS];

    __device__ __forceinline__ explicit Weights(Asked &asked) {
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            low_unit[eight] = __hmul2(asked.unit(eight), __float2bfloat162_rn(LOW));
        }
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const Four four = asked.fours[i % AHEAD];
            if (i + AHEAD < FOURS) asked.fours[i % AHEAD] = asked.load(i + AHEAD);
            take(4 * i, four.highs.x, four.lows.x, asked);
            take(4 * i + 1, four.highs.y, four.lows.y, asked);
            take(4 * i + 2, four.highs.z, four.lows.z, asked);
            take(4 * i + 3, four.highs.w, four.lows.w, asked);
        }
    }

    // Take what a lane has of the `i`th product and eight.
    __device__ __forceinline__ void take(int i, unsigned highs, unsigned lows, const Asked &asked) {
        const int product = i / EIGHTS, eight = i % EIGHTS;
        const Scale scale(asked.unit(eight));
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            high[product][eight][pair] = scale.expand(highs, pair);
            low[product][eight][pair] = Scale(low_unit[eight]).expand(lows, pair);
        }
    }

    // Multiply 16 channels, low parts first.
    __device__ __forceinline__ void multiply_step(int product, const unsigned (&x)[4],
                                                  float (&sums)[EIGHTS][4]) const {
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) multiply(sums[eight], x, low[product][eight]);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) multiply(sums[eight], x, high[product][eight]);
    }
};

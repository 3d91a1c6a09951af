// Indexer queries of 128 channels, the last 64 of which turn: turned, transformed, rounded. A warp
// goes through heads side by side, eight at once, the next ones on their way while it works on these.
//
// The transform adds over each bit of a channel's number. Of each 32 channels a lane has eight side
// by side: bits 3 and 4 of their numbers are its place among four, the rest are in its registers. Bits
// 0, 2, 3 and 4 are transformed by products with signs, which also turn what turns, the others by sums
// in registers.
#pragma once

#include "device/tiles.cuh"
#include "numbers.cuh"

constexpr int KEY = 128, KEY_TURNED = 64, HEADS_AT_ONCE = 8, QUERY_WARPS = 4, QUERY_STAGES = 2;
// Blocks of threads that a multiprocessor has registers for.
constexpr int QUERY_BLOCKS = 4;

// Heads of tokens; `padded`, a multiple of HEADS_AT_ONCE, are written, zeros past `heads`.
struct Queries {
    const __nv_bfloat16 *q;
    const float *weights;
    long long stride, weight_stride;
    const float *rotation;
    unsigned char *codes;
    float *folded;
    int tokens, heads, padded;
    float scale;
};

// What a warp asks for ahead: eight heads, eights of channels as lanes take them, and the turns of
// two tokens.
struct Ahead {
    uint4 heads[QUERY_STAGES][4][32];
    float turns[2][2 * KEY_TURNED];
};

// The signs by which a lane multiplies pairs of channels for one column of a product: of bits 3 and 4,
// and of the second channel of a pair besides.
struct Signs {
    float both, second;

    __device__ Signs(int lane) {
        both = __popc(lane % 4 & lane / 8) % 2 ? -1.0f : 1.0f;
        second = lane / 4 % 2 ? -1.0f : 1.0f;
    }
};

// What pairs of channels are multiplied by: signs, or signs and the turn of a pair. Of one product,
// bit 2 of channels first and second.
struct Factors {
    unsigned pairs[2];

    // Of the columns in which bit 2 is set.
    __device__ Factors odd() const { return {pairs[0], pairs[1] ^ 0x80008000u}; }
};

// What a lane's eight pairs that turn are multiplied by, [channels' eight][bit 1], each number as the
// sum of two bfloat16 numbers.
struct QueryTurn {
    Factors high[2][2], low[2][2];

    __device__ void make(const float *turn, int quarter, const Signs &signs) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int bit = 0; bit < 2; bit++) {
                const float *const at = turn + (i * 4 + quarter) * 8 + bit * 4;
                const float4 cosines = four(at), sines = four(at + KEY_TURNED);
                take(i, 0, bit, cosines.x * signs.both, sines.y * signs.both, signs.second);
                take(i, 1, bit, cosines.z * signs.both, sines.w * signs.both, signs.second);
            }
        }
    }

  private:
    __device__ void take(int i, int pair, int bit, float cosine, float sine, float sign) {
        const float first = fmaf(sign, sine, cosine), second = fmaf(sign, cosine, -sine);
        const unsigned both = bf16_pair(first, second);
        high[i][pair].pairs[bit] = both;
        low[i][pair].pairs[bit] = bf16_pair(first - __uint_as_float(both << 16),
                                            second - __uint_as_float(both & 0xffff0000u));
    }
};

// Numbers of a lane, by bits 5 and 6, 2, 1 and 0 of their channels.
typedef float Query[4][2][2][2];

__device__ inline void multiply(float (&sums)[4], const uint4 &pairs, const Factors &by) {
    multiply(sums, pairs.x, pairs.y, pairs.z, pairs.w, by.pairs[0], by.pairs[1]);
}

// Transform bits 0, 2, 3 and 4 of eight heads, which turn on the way. A product has two rows for each
// head: the even ones of its pairs and the odd ones, which turn by different angles.
__device__ inline void multiply_signs(Query &x, const uint4 (&heads)[4][32], int lane,
                                      const Factors &plain, const QueryTurn &turn) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 pairs = heads[i][lane];
#pragma unroll
        for (int bit = 0; bit < 2; bit++) {
            const auto times = [&](float (&sums)[4], const Factors &by) {
                multiply(sums, pairs, bit ? by.odd() : by);
            };
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                float sums[4] = {};
                if (i < 2) {
                    times(sums, plain);
                } else {
                    times(sums, turn.low[i - 2][pair]);
                    times(sums, turn.high[i - 2][pair]);
                }
                x[i][bit][pair][0] = sums[2 * pair];
                x[i][bit][pair][1] = sums[2 * pair + 1];
            }
        }
    }
}

__device__ inline void add_and_subtract(float &x, float &y) {
    const float low = x, high = y;
    x = low + high;
    y = low - high;
}

// Transform bits 1, 5 and 6.
__device__ inline void transform(Query &x) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int bit = k / 2, j = k % 2;
#pragma unroll
        for (int i = 0; i < 4; i++) add_and_subtract(x[i][bit][0][j], x[i][bit][1][j]);
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) add_and_subtract(x[i][bit][pair][j], x[i + 1][bit][pair][j]);
#pragma unroll
            for (int i = 0; i < 2; i++) add_and_subtract(x[i][bit][pair][j], x[i + 2][bit][pair][j]);
        }
    }
}

// Write a lane's codes, and return the scale of the head.
__device__ inline float write_codes(const Query &x, unsigned char *to) {
    constexpr float NORM = 0.08838834764831845f;
    float highest = 0.0f;
#pragma unroll
    for (int k = 0; k < 32; k++) {
        highest = fmaxf(highest, fabsf(x[k / 8][k / 4 % 2][k / 2 % 2][k % 2]));
    }
    const unsigned exponent = scale_exponent(largest_of_lanes<4>(highest) * NORM);
    // The factor is a power of two, so this rounds as a product with NORM does.
    const float factor = power_of_two(254 - exponent) * NORM;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const auto codes = [&](const float (&y)[2][2]) {
            return e4m3_codes(make_float4(y[0][0], y[0][1], y[1][0], y[1][1]), factor);
        };
        __stcs(reinterpret_cast<uint2 *>(to + i * 32), make_uint2(codes(x[i][0]), codes(x[i][1])));
    }
    return power_of_two(exponent);
}

__global__ void __launch_bounds__(QUERY_WARPS * 32, QUERY_BLOCKS)
    turn_queries(const Queries call) {
    __shared__ Ahead all_ahead[QUERY_WARPS];
    Ahead &ahead = all_ahead[threadIdx.x / 32];
    const int lane = threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
    const unsigned shares = call.padded / HEADS_AT_ONCE, all = call.tokens * shares;
    const unsigned warps = gridDim.x * QUERY_WARPS, each = (all + warps - 1) / warps;
    const unsigned begin = each * (blockIdx.x * QUERY_WARPS + threadIdx.x / 32);
    int left = (int)min(begin + each, all) - (int)begin;
    if (left <= 0) return;

    // What is asked for next: heads of a token, and the turn of a new one.
    int token = begin / shares, stage = 0, unasked = left;
    unsigned share = begin % shares;
    const __nv_bfloat16 *from = call.q + token * call.stride +
                                (share * HEADS_AT_ONCE + row) * KEY + quarter * 8;
    const float *turns = call.rotation + token * (2ll * KEY_TURNED) + 4 * lane;
    bool is_new = true;
    const auto ask = [&]() {
        if (unasked > 0) {
            const bool real = share * HEADS_AT_ONCE + row < call.heads;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint4 &to = ahead.heads[stage][i][lane];
                if (real) copy_ahead(&to, from + i * 32);
                else to = {};
            }
            if (is_new) copy_ahead(ahead.turns[token % 2] + 4 * lane, turns);
        }
        close_group();
        unasked--;
        stage = (stage + 1) % QUERY_STAGES;
        from += HEADS_AT_ONCE * KEY;
        is_new = ++share == shares;
        if (is_new) {
            from += call.stride - call.padded * KEY;
            turns += 2 * KEY_TURNED;
            share = 0, token++;
        }
    };
    int mine = token, first = share * HEADS_AT_ONCE, at = 0;
    const Signs signs(lane);
    const unsigned pair = bf16_pair(signs.both, signs.both * signs.second);
    const Factors plain = {pair, pair};
    const auto weight = [&]() {
        const int head = first + row;
        return head < call.heads ? call.weights[mine * call.weight_stride + head] : 0.0f;
    };
    take_turn();
#pragma unroll
    for (int i = 0; i + 1 < QUERY_STAGES; i++) ask();
    float folded = weight();
    unsigned char *to = call.codes + (begin * (long long)HEADS_AT_ONCE + row) * KEY + quarter * 8;
    float *fold = call.folded + begin * HEADS_AT_ONCE + row;
    QueryTurn turn;
    for (bool fresh = true; left > 0; left--) {
        ask();
        await_groups<QUERY_STAGES - 1>();
        __syncwarp();
        if (fresh) turn.make(ahead.turns[mine % 2], quarter, signs);
        Query x;
        multiply_signs(x, ahead.heads[at], lane, plain, turn);
        const float weighed = folded * call.scale;
        first += HEADS_AT_ONCE;
        fresh = first == call.padded;
        if (fresh) first = 0, mine++;
        if (left > 1) folded = weight();
        at = (at + 1) % QUERY_STAGES;
        transform(x);
        const float scale = write_codes(x, to);
        if (quarter == 0) *fold = weighed * scale;
        to += HEADS_AT_ONCE * KEY;
        fold += HEADS_AT_ONCE;
    }
}

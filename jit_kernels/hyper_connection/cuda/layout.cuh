// Who does what, and where it lies.
//
// A group of blocks owns all channels, every block a slice of them; its rows of `fn` stay in its
// registers for good. A group goes through tiles of 16 tokens. A block copies its slice of a tile
// into shared memory, once; multiplies it by `fn`; tells the group its sums; and when it has heard
// those of the others, mixes what still lies in its shared memory.
#pragma once

#include "hopper.cuh"

constexpr int STREAMS = 4, TOKENS = 16;
// A worker multiplies 32 channels of two streams, and mixes one token.
constexpr int WORKERS = 16, THREADS = WORKERS * 32;
constexpr int PIECE = 32, MAX_SLICE = WORKERS / 2 * PIECE;
constexpr int COPIERS = 4;
// Tiles in shared memory, those waiting for sums among them; each is mixed so many tiles later.
constexpr int STAGES = 6, DELAY = 2;
// Turns from telling a mixed tile's squares to its norm: as many mixed tiles as workers keep.
constexpr int NORM_DELAY = 2;
// Tokens begin 16 bytes apart, modulo 128: those of a matrix are read without conflict.
constexpr int ROW_BYTES = MAX_SLICE * 2, TOKEN_BYTES = STREAMS * ROW_BYTES + 16;
// Tiles whose sums are kept. Who tells those of a tile has heard all others tell of DELAY + 1 tiles
// before; they, of what lies DELAY + 1 before that.
constexpr int RING = 8;
static_assert(RING >= 2 * (DELAY + 1) && STAGES > DELAY + 1);
// Who tells a mixed tile's squares knows that all are done with the turn before that tile's product.
static_assert(RING >= 1 + DELAY + NORM_DELAY);
// Matrices are balanced by one warp, a lane each, when there are so many or no more.
constexpr int BATCH = 32;

struct Call {
    const __nv_bfloat16 *streams;
    long long token_stride, stream_stride;
    const float *fn, *base, *scale, *weight;
    __nv_bfloat16 *mixed;
    float *post, *mixing;
    void *scratch;
    int tokens, width, slice, ranks, iterations;
    float norm_eps, hc_eps, per_number, per_channel;  // the last two are 1 / (4 width), 1 / width
};

// Sums and squares are told three at a time with a tag, which no two tiles of any calls share: who
// reads the tag has read the numbers. `told` counts tiles of all calls before, `left` the blocks
// that are done.
struct Scratch {
    unsigned told, left, unused[30];
};

// Lines of `fn` are multiplied eight at a time. Of its tellings a token's first two are for its mix.
template <int EIGHTS>
struct Told {
    static constexpr int COUNT = EIGHTS == 1 ? 2 : 9;
};

template <int EIGHTS>
struct Shared {
    unsigned char streams[STAGES][TOKENS * TOKEN_BYTES];
    float sums[WORKERS][TOKENS * 8 * EIGHTS], squares[WORKERS][TOKENS];
    float lines[BATCH][25];
    unsigned long long full[STAGES];
};

// This block's part of the work.
struct Part {
    int group, groups, rank, tiles, first, channels;

    __device__ explicit Part(const Call &call) {
        group = blockIdx.x / call.ranks;
        groups = gridDim.x / call.ranks;
        rank = blockIdx.x % call.ranks;
        tiles = ((call.tokens + TOKENS - 1) / TOKENS - group + groups - 1) / groups;
        first = rank * call.slice;
        channels = min(call.slice, call.width - first);
    }
    __device__ int token(int tile) const { return (group + tile * groups) * TOKENS; }
};

// Where what is told lies: first the norms of all groups, then the sums. Both are found by a tile's
// place in the ring, which they are `*_step` apart.
template <int EIGHTS>
struct Board {
    static constexpr int COUNT = Told<EIGHTS>::COUNT;
    uint2 *norms;
    uint4 *sums;
    int ranks;
    unsigned tag;

    __device__ Board(const Call &call, const Part &part) {
        Scratch *const scratch = static_cast<Scratch *>(call.scratch);
        ranks = call.ranks;
        norms = reinterpret_cast<uint2 *>(scratch + 1);
        sums = reinterpret_cast<uint4 *>(norms + gridDim.x * RING * TOKENS);
        norms += part.group * RING * TOKENS * ranks;
        sums += part.group * RING * TOKENS * COUNT * ranks;
        tag = __ldcg(&scratch->told) + 1;
    }
    __device__ int norm(int token, int rank) const { return token * ranks + rank; }
    __device__ int norm_step(unsigned tile) const { return tile % RING * TOKENS * ranks; }
    __device__ int sum(int token, int vector, int rank) const {
        return (token * COUNT + vector) * ranks + rank;
    }
    __device__ int sum_step(unsigned tile) const { return tile % RING * TOKENS * COUNT * ranks; }
};

// Which of the four sums below a lane gets.
__device__ inline int line_of(int lane) { return lane % 2 * 2 + lane / 2 % 2; }

// Sum each of four numbers over half a warp, neighbours first; a lane gets one of the sums.
__device__ inline float sum_four(const float (&x)[4]) {
    const bool odd = threadIdx.x % 2, second = threadIdx.x / 2 % 2;
    const float low = (odd ? x[2] : x[0]) + __shfl_xor_sync(ALL, odd ? x[0] : x[2], 1);
    const float high = (odd ? x[3] : x[1]) + __shfl_xor_sync(ALL, odd ? x[1] : x[3], 1);
    float sum = (second ? high : low) + __shfl_xor_sync(ALL, second ? low : high, 2);
    sum += __shfl_xor_sync(ALL, sum, 4);
    return sum + __shfl_xor_sync(ALL, sum, 8);
}

// What ranks tell of one vector; half a warp hears it, EACH ranks a lane.
template <int EACH>
struct Hearing {
    uint4 told[EACH];

    // Ask, without waiting; `at` is the place of this lane's first rank.
    __device__ void ask(const uint4 *at, int ranks, unsigned tag) {
        for (int j = 0; j < EACH; j++) {
            told[j] = make_uint4(0, 0, 0, tag);
            if ((int)threadIdx.x % 16 * EACH + j < ranks) told[j] = read_now(at + j);
        }
    }

    // Ask again until all have told; return a lane's one of the sums over all ranks.
    __device__ float sum(const uint4 *at, int ranks, unsigned tag) {
        while (true) {
            bool ready = true;
            for (const uint4 &one : told) ready = ready && one.w == tag;
            if (__all_sync(ALL, ready)) break;
            ask(at, ranks, tag);
        }
        float sums[4] = {__uint_as_float(told[0].x), __uint_as_float(told[0].y),
                         __uint_as_float(told[0].z)};
        for (int j = 1; j < EACH; j++) {
            sums[0] += __uint_as_float(told[j].x);
            sums[1] += __uint_as_float(told[j].y);
            sums[2] += __uint_as_float(told[j].z);
        }
        return sum_four(sums);
    }
};

__device__ inline float sigmoid(float z) { return reciprocal(1.0f + exponential(-z)); }

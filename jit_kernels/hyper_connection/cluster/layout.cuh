// Who does what, and where it lies.
//
// A cluster owns all channels, every block (its rank) 256 of them; its rows of `fn` stay in
// its registers for good. A cluster goes through tiles of 16 tokens, and of a tile
//
//   the courier  copies the block's channels into shared memory, once
//   multipliers  mix in the result that is owed to the streams, in place, but for the head; multiply
//                them by `fn`
//   the adder    adds up their sums; those of each token it sends to the token's owner
//   the gater    adds up the sums of the tokens that its block owns, a few of each tile, and sends
//                the gates to all blocks; meanwhile streams that were mixed in place are copied to
//                memory
//   mixers       mix what still lies in shared memory
//   the courier  sends the squares of what is mixed to all blocks
//   mixers       norm by those of all blocks
//   the balancer balances the matrices of the block's own tokens
//
// Each is warps of their own, as many tiles ahead of the next as there are slots. What one block
// sends another lands in the slot of its tile, and a barrier there counts the bytes. A slot's next
// tile cannot come too early: its sums, and all that follows from them, need this block's own
// product of that tile, whose streams are fetched when this slot's tile is mixed.
#pragma once

#include "device.cuh"

constexpr int STREAMS = 4, TOKENS = 16, MAX_RANKS = 16;
constexpr int MULTIPLIERS = 8, MIXERS = 4;
// Warps after the mixers: the adder, the courier, the gater, the balancer.
constexpr int COURIER = 1, GATER = 2, THREADS = 32 * (MULTIPLIERS + MIXERS + 4);
// Registers of a thread in each warpgroup: two of multipliers, mixers, all others.
constexpr int MULTIPLIER_REGISTERS = 192, MIXER_REGISTERS = 80, OTHER_REGISTERS = 48;
static_assert(2 * MULTIPLIER_REGISTERS + MIXER_REGISTERS + OTHER_REGISTERS == 65536 / 128);
// Channels of a block, and of a multiplier; those are multiplied 16 at a time.
constexpr int SLICE = 256, PIECE = SLICE / MULTIPLIERS, STEPS = PIECE / 16;
// Of a tile channels lie in strips of 64, of each strip the streams, of each stream the 128 bytes of
// each token. The 16-byte chunks of a token lie at their number xor the token's, modulo 8: both the
// rows of a matrix and a token are read without conflict.
constexpr int STRIP = 64, LINE_BYTES = STRIP * 2, STRIP_BYTES = TOKENS * LINE_BYTES;
constexpr int BAND_BYTES = STREAMS * STRIP_BYTES;  // of a strip, all streams
constexpr int STRIPS = SLICE / STRIP;
// Numbers of a token that say how its streams, and the result that is owed to them, are mixed: a row
// of what each gives new streams.
constexpr int SHARES = (STREAMS + 1) * STREAMS;
// Sums of a token: 24 rows of `fn`, the squares, and three to fill up; they are sent by fours.
constexpr int LINES = 24, FOURS = LINES / 4, TOLD = LINES + 4;
static_assert(FOURS % 2 == 0 && TOKENS * 2 == 32);
// Matrices that are balanced at once, a lane each.
constexpr int BATCH = 8;

// Where the `chunk`th eight channels of a token lie in the first stream of a tile, or in a result,
// whose strips follow each other.
template <int STEP = BAND_BYTES>
__device__ inline int place_of(int token, int chunk) {
    return chunk / 8 * STEP + token * LINE_BYTES + ((chunk ^ token) % 8) * 16;
}

struct Call {
    bool same;  // all streams are one
    const float *owed;  // shares by which a result is mixed into the streams
    const uint4 *fn;  // as `mix_rows.py` packs it
    const float *base, *scale, *weight;
    __nv_bfloat16 *mixed;
    float *shares;
    int tokens, width, ranks, iterations;
    int least, more;  // of clusters: tiles of a group; the first `more` groups have one more
    float norm_eps, hc_eps, per_number, per_channel;  // the last two are 1 / (4 width), 1 / width
};

// Of a block's channels, the sums of each multiplier.
struct Parts {
    float lines[MULTIPLIERS][TOKENS][LINES], squares[MULTIPLIERS][TOKENS];
};

// COUNT tiles are there at a time. A tile is normed when the next one is
// mixed and has freed its slot, too: of squares there are two slots more.
template <int EIGHTS>
struct Shared {
    static constexpr bool OWED = EIGHTS > 1;
    static constexpr int COUNT = 5, NORM_COUNT = COUNT + 2;
    // Tiles whose results are there, which are free before streams are.
    static constexpr int OWED_TILES = 3;
    unsigned char streams[COUNT][STRIPS * BAND_BYTES];
    alignas(16) float squares[NORM_COUNT][MAX_RANKS][TOKENS];
    // What is owed to the streams, and by which shares.
    alignas(1024) unsigned char results[OWED_TILES][STRIPS * STRIP_BYTES];
    float4 owed[OWED_TILES][TOKENS][STREAMS + 1];
    alignas(16) Parts parts;
    // Of the block's own tokens, the sums that each rank sent: `own * ranks + rank`.
    float told[COUNT][TOKENS][TOLD];
    float4 gates[COUNT][TOKENS];
    // Of each lane of the mixers, squares of one token: in turn those of its four.
    float folded[2][MIXERS][32];
    // What the balancer takes: a matrix and the number of its token.
    float matrices[2][BATCH][STREAMS * STREAMS + 1];
    // Strips are there, for each of which some multipliers wait; so are the result and its shares.
    unsigned long long full[COUNT][STRIPS], brought[COUNT];
    unsigned long long heard[COUNT], gated[COUNT], mixed[COUNT];
    // Results are mixed in; streams that were so are copied.
    unsigned long long paid[COUNT], stored[COUNT];
    unsigned long long normed[NORM_COUNT], filled[2], emptied[2];
    // Sums of all multipliers are there, and have been added up.
    unsigned long long summed, added;
};
static_assert(sizeof(Shared<3>) <= 227 * 1024);

// Make a block's barriers; one thread, since lanes would take turns.
template <class Memory>
__device__ inline void make_barriers(Memory &shared) {
    for (int i = 0; i < Memory::COUNT; i++) {
        for (auto &full : shared.full[i]) make_barrier(&full);
        make_barrier(&shared.heard[i], 1);
        make_barrier(&shared.gated[i], 1);
        make_barrier(&shared.mixed[i], MIXERS);
        if constexpr (Memory::OWED) {
            make_barrier(&shared.brought[i]);
            make_barrier(&shared.paid[i], MULTIPLIERS);
            make_barrier(&shared.stored[i], 1);
        }
    }
    for (int i = 0; i < Memory::NORM_COUNT; i++) make_barrier(&shared.normed[i], 1);
    for (int i = 0; i < 2; i++) {
        make_barrier(&shared.filled[i], 1);
        make_barrier(&shared.emptied[i], 1);
    }
    make_barrier(&shared.summed, MULTIPLIERS);
    make_barrier(&shared.added, 1);
    show_barriers();
    show_to_copies();
}

// This block's part of the work. It owns the tokens `rank`, `rank + ranks` and so on of each tile.
struct Part {
    int ranks, log_ranks, rank, group, groups, tiles, first;

    __device__ explicit Part(const Call &call) {
        ranks = call.ranks;
        log_ranks = __ffs(ranks) - 1;
        rank = blockIdx.x & (ranks - 1);
        group = blockIdx.x >> log_ranks;
        groups = gridDim.x >> log_ranks;
        tiles = call.least + (group < call.more);
        first = rank * SLICE;
    }
    __device__ int token(int tile) const { return (group + tile * groups) * TOKENS; }
    __device__ int owned() const { return TOKENS >> log_ranks; }
    __device__ int owner(int token) const { return token & (ranks - 1); }
};

// A place in a ring of slots, and the phase of the barriers there.
template <int COUNT>
struct Turn {
    int slot = 0;
    unsigned phase = 0;

    __device__ void advance() {
        if (++slot == COUNT) {
            slot = 0;
            phase ^= 1;
        }
    }
};

__device__ inline unsigned pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&pair);
}

__device__ inline float4 add_fours(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ inline float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline float sigmoid(float z) { return reciprocal(1.0f + exponential(-z)); }

// What a lane makes of the sum of its line, and of the squares, over all channels.
template <bool HEAD>
struct Line {
    float gain, base;

    __device__ explicit Line(const Call &call) {
        const int lane = threadIdx.x % 32;
        gain = __ldg(call.scale + (HEAD ? 0 : min(lane / STREAMS, 2)));
        base = __ldg(call.base + min(lane, (HEAD ? STREAMS : LINES) - 1));
    }
    __device__ float logit(const Call &call, float sum) const {
        const float squares = __shfl_sync(ALL, sum, LINES);
        const float factor = reciprocal_root(fmaf(squares, call.per_number, call.norm_eps));
        return fmaf(sum * factor, gain, base);
    }
};

// The gates that the first lanes have.
__device__ inline float4 gates_of(float gate) {
    return make_float4(__shfl_sync(ALL, gate, 0), __shfl_sync(ALL, gate, 1),
                       __shfl_sync(ALL, gate, 2), __shfl_sync(ALL, gate, 3));
}

// Few tokens, second launch: a block mixes one token when the sums of its pieces are there.
//
// Before that it copies the token's streams into shared memory. The first launch lets this one
// begin when the launches before it have ended; only what that launch writes itself is read after
// `await_launch_before`. No other launch may come between the two.
#pragma once

#include "gate.cuh"
#include "mix.cuh"
#include "pieces.cuh"

// A mixer has the channels of two ranks of a cluster, `TOKEN_MIXERS` apart.
constexpr int TOKEN_MIXERS = 8, TOKEN_THREADS = (TOKEN_MIXERS + 1) * 32;
static_assert(2 * TOKEN_MIXERS == MAX_RANKS);
// A mixer's thread adds four sums of four pieces.
constexpr int FOUR_PIECES = PIECES / 4;
static_assert(FOUR_PIECES * SENT / 4 == TOKEN_MIXERS * 32);

template <class Shape>
struct TokenMemory {
    alignas(128) unsigned char streams[STREAMS][Shape::WIDTH * 2];
    float sums[FOUR_PIECES][SENT];
    float4 gates;
    float squares[TOKEN_MIXERS];
    unsigned long long fetched;
};

// Copy a token's streams into shared memory without waiting; one thread.
template <class Shape>
__device__ inline void fetch_token(const Call &call, TokenMemory<Shape> &memory, int token) {
    make_barrier(&memory.fetched, 1);
    show_barriers();
    show_to_copies();
    expect_bytes(&memory.fetched, sizeof(memory.streams));
    const __nv_bfloat16 *const from = call.streams + token * call.token_stride;
    for (int stream = 0; stream < STREAMS; stream++) {
        bulk_copy(memory.streams[stream], from + stream * call.stream_stride, Shape::WIDTH * 2,
                  &memory.fetched);
    }
}

__device__ inline float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Add up the pieces by fours; a mixer's thread has four lines. The head uses the first of them, and
// the squares.
template <bool HEAD, class Memory>
__device__ inline void add_pieces(const Call &call, Memory &memory, int token) {
    const int four = threadIdx.x % (SENT / 4), group = threadIdx.x / (SENT / 4);
    if (HEAD ? four != 0 && four != LINES / 4 : four > LINES / 4) return;
    const float *const from =
        call.sums + ((long long)token * PIECES + group * 4) * SENT + four * 4;
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = read_written(from + i * SENT);
    *reinterpret_cast<float4 *>(&memory.sums[group][four * 4]) =
        add(add(x[0], x[1]), add(x[2], x[3]));
}

// Add up what is left of one line, by pairs.
__device__ inline float add_fours(const float (&sums)[FOUR_PIECES][SENT], int line) {
    float x[FOUR_PIECES];
#pragma unroll
    for (int i = 0; i < FOUR_PIECES; i++) x[i] = sums[i][line];
#pragma unroll
    for (int step = 1; step < FOUR_PIECES; step *= 2) {
#pragma unroll
        for (int i = 0; i < FOUR_PIECES; i += 2 * step) x[i] += x[i + step];
    }
    return x[0];
}

// Make a token's gates of its sums; then, while it is mixed, write `post` and balance the matrix.
// A lane has one line.
template <bool HEAD, class Memory>
__device__ inline void run_token_gater(const Call &call, Memory &memory, int token) {
    const int lane = threadIdx.x % 32;
    // The loads themselves may come after the wait.
    ask_cache(call.scale);
    ask_cache(call.base);
    take_turn();
    const Line<HEAD> line(call);
    meet<1, TOKEN_THREADS>();
    const float sum = add_fours(memory.sums, lane < (HEAD ? STREAMS : LINES) ? lane : LINES);
    const float z = line.logit(call, sum), gate = sigmoid(z);
    const float4 gates = gates_of(gate + call.hc_eps);
    if (lane == 0) memory.gates = gates;
    __syncwarp();
    meet<1, TOKEN_THREADS>();
    if constexpr (!HEAD) {
        if (lane / STREAMS == 1) call.post[token * STREAMS + lane - STREAMS] = 2.0f * gate;
        float a[STREAMS][STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++) {
            a[i / STREAMS][i % STREAMS] = __shfl_sync(ALL, z, 2 * STREAMS + i);
        }
        if (lane == 0) balance(call, a, token);
    }
}

// The channels of a mixer's thread: by eights, `PER_RANK` of each of two ranks. Of 56 eights of a
// rank the last 8 lanes have one less.
template <class Shape>
struct Share {
    static constexpr int EIGHTS = Shape::BLOCK / 8, PER_RANK = (EIGHTS + 31) / 32;
    static constexpr int COUNT = 2 * PER_RANK;
    int lane, mixer;

    __device__ bool exists(int i) const { return lane + i % PER_RANK * 32 < EIGHTS; }
    // Those of an eight that does not exist are the rank's last.
    __device__ int channel(int i) const {
        const int rank = mixer + i / PER_RANK * TOKEN_MIXERS;
        return rank * Shape::BLOCK + min(lane + i % PER_RANK * 32, EIGHTS - 1) * 8;
    }
};

// Add up the squares of what was mixed, as blocks of a cluster do: over the lanes of each rank,
// over two ranks, over the mixers.
template <class Shape>
__device__ inline float add_squares_of_token(const Share<Shape> &share,
                                             const uint4 (&mixed)[Share<Shape>::COUNT],
                                             TokenMemory<Shape> &memory) {
    float ranks[2] = {};
#pragma unroll
    for (int i = 0; i < share.COUNT; i++) {
        ranks[i / share.PER_RANK] += share.exists(i) ? squares_of(mixed[i]) : 0.0f;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (float &sum : ranks) sum += __shfl_xor_sync(ALL, sum, step);
    }
    if (share.lane == 0) memory.squares[share.mixer] = ranks[0] + ranks[1];
    __syncwarp();
    meet<2, TOKEN_MIXERS * 32>();
    float x[TOKEN_MIXERS];
#pragma unroll
    for (int i = 0; i < TOKEN_MIXERS; i++) x[i] = memory.squares[i];
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// What eight mixed channels are multiplied by.
struct Gain {
    float eight[8];

    Gain() = default;
    __device__ Gain(const Call &call, int channel) {
        const float4 *const from = reinterpret_cast<const float4 *>(call.weight + channel);
        const float4 a = __ldg(from), b = __ldg(from + 1);
        eight[0] = a.x, eight[1] = a.y, eight[2] = a.z, eight[3] = a.w;
        eight[4] = b.x, eight[5] = b.y, eight[6] = b.z, eight[7] = b.w;
    }
};

template <class Shape, bool HEAD, bool NORM>
__device__ inline void run_token_mixer(const Call &call, TokenMemory<Shape> &memory, int token,
                                       int mixer) {
    const Share<Shape> share{(int)threadIdx.x % 32, mixer};
    constexpr int COUNT = Share<Shape>::COUNT;
    take_turn();
    add_pieces<HEAD>(call, memory, token);
    __syncwarp();
    meet<1, TOKEN_THREADS>();
    meet<1, TOKEN_THREADS>();
    await_phase(&memory.fetched, 0);
    uint4 mixed[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        mixed[i] = mix_token<Shape::WIDTH * 2>(memory.streams[0] + share.channel(i) * 2,
                                               memory.gates);
    }
    if constexpr (NORM) {
        Gain gains[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) gains[i] = Gain(call, share.channel(i));
        const float factor = norm_factor(call, add_squares_of_token(share, mixed, memory));
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            mixed[i] = norm_channels(mixed[i], factor, gains[i].eight);
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        store_if(call.mixed + (long long)token * Shape::WIDTH + share.channel(i), mixed[i],
                 share.exists(i));
    }
}

template <class Shape, bool HEAD, bool NORM>
__device__ inline void run_token(const Call &call, TokenMemory<Shape> &memory) {
    const int token = blockIdx.x, warp = warp_number();
    if (threadIdx.x == TOKEN_MIXERS * 32) {
        fetch_token(call, memory, token);
        if (NORM && token == 0) ask_cache_for_row(call.weight, Shape::WIDTH * sizeof(float));
    }
    __syncwarp();
    if (warp < TOKEN_MIXERS) {
        run_token_mixer<Shape, HEAD, NORM>(call, memory, token, warp);
    } else {
        run_token_gater<HEAD>(call, memory, token);
    }
}

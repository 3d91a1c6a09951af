// What the workers of a block do: multiply, tell, hear, mix.
#pragma once

#include "sinkhorn.cuh"

// Copy a tile's slice of streams: the last COPIERS workers, one thread each, some tokens each.
// Barriers may count bytes before they expect them.
template <int EIGHTS>
__device__ inline void fetch(const Call &call, const Part &part, Shared<EIGHTS> &shared,
                             unsigned tile, unsigned long long policy) {
    constexpr int EACH = TOKENS / COPIERS;
    const int nth = warp_number() - (WORKERS - COPIERS), stage = tile % STAGES;
    if (nth < 0 || !is_elected()) return;
    const int start = part.token(tile), live = min(TOKENS, call.tokens - start);
    const unsigned bytes = part.channels * 2;
    unsigned long long *const full = &shared.full[stage];
    if (nth == 0) expect_bytes(full, live * STREAMS * bytes);
    unsigned char *to = shared.streams[stage] + nth * EACH * TOKEN_BYTES;
    const __nv_bfloat16 *from =
        call.streams + (start + nth * EACH) * call.token_stride + part.first;
#pragma unroll 1
    for (int i = 0; i < EACH && nth * EACH + i < live; i++) {
        for (int stream = 0; stream < STREAMS; stream++) {
            bulk_copy(to + stream * ROW_BYTES, from + stream * call.stream_stride, bytes, full,
                      policy);
        }
        to += TOKEN_BYTES;
        from += call.token_stride;
    }
}

__device__ inline unsigned pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&pair);
}

__device__ inline float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// A worker's rows of `fn`, of every number three bfloat16 parts, as products take them: of two
// streams, of each 16 channels, a lane has two and two of one line.
template <int EIGHTS>
struct Weights {
    unsigned parts[2][PIECE / 16][EIGHTS][3][2];

    // Ask the cache for all of a block's rows, which may be done before the launch before has ended.
    static __device__ void ask(const Call &call, const Part &part) {
        constexpr int ROWS = (EIGHTS == 1 ? STREAMS : 24) * STREAMS, LINE = 32;
        const int lines = (part.channels + LINE - 1) / LINE;
        for (int i = threadIdx.x; i < ROWS * lines; i += THREADS) {
            const long long row = i / lines * (long long)call.width;
            ask_cache(call.fn + row + part.first + i % lines * LINE);
        }
    }

    __device__ void load(const Call &call, const Part &part) {
        const int lane = threadIdx.x % 32, worker = threadIdx.x / 32;
        for (int i = 0; i < 2 * (PIECE / 16) * EIGHTS * 2; i++) {
            const int word = i % 2, eight = i / 2 % EIGHTS, nth = i / 2 / EIGHTS;
            const int c = nth / (PIECE / 16), step = nth % (PIECE / 16);
            const int channel = worker / 2 * PIECE + step * 16 + word * 8 + lane % 4 * 2;
            const int line = eight * 8 + lane / 4, stream = worker % 2 * 2 + c;
            float2 f = {0.0f, 0.0f};
            if (line < (EIGHTS == 1 ? STREAMS : 24) && channel < part.channels) {
                const float *const row = call.fn + (long long)(line * STREAMS + stream) * call.width;
                f = __ldg(reinterpret_cast<const float2 *>(row + part.first + channel));
            }
            for (int p = 0; p < 3; p++) {
                const unsigned pair = pack(f.x, f.y);
                parts[c][step][eight][p][word] = pair;
                f.x -= low_of(pair);
                f.y -= high_of(pair);
            }
        }
    }
};

// Multiply a worker's channels of a tile, and when all others have come so far, write its sums and
// squares for them to add. The squares are the diagonal of the rows' product with the first eight of
// themselves, and with the last.
template <int EIGHTS>
__device__ inline void multiply_tile(const Weights<EIGHTS> &weights, Shared<EIGHTS> &shared,
                                     int stage, bool live) {
    const int lane = threadIdx.x % 32, worker = threadIdx.x / 32, row = lane / 4;
    float sums[EIGHTS][4] = {}, low[4] = {}, high[4] = {};
    // Lanes name rows 0 to 15 of the first eight channels, then of the second.
    const unsigned char *at = shared.streams[stage] + lane % 16 * TOKEN_BYTES +
                              worker % 2 * 2 * ROW_BYTES +
                              (worker / 2 * PIECE + lane / 16 * 8) * 2;
    for (int i = 0; i < 2 * (PIECE / 16) && live; i++) {
        const int c = i / (PIECE / 16), step = i % (PIECE / 16);
        unsigned a[4];
        load_matrices(a, at + c * ROW_BYTES + step * 32);
        for (int p = 2; p >= 0; p--) {
            for (int eight = 0; eight < EIGHTS; eight++) {
                multiply(sums[eight], a, weights.parts[c][step][eight][p]);
            }
        }
        multiply(low, a, {a[0], a[2]});
        multiply(high, a, {a[1], a[3]});
    }
    __syncthreads();
    float *const to = shared.sums[worker] + row * 8 * EIGHTS + lane % 4 * 2;
    for (int eight = 0; eight < EIGHTS; eight++) {
        const float(&mine)[4] = sums[eight];
        *reinterpret_cast<float2 *>(to + eight * 8) = make_float2(mine[0], mine[1]);
        *reinterpret_cast<float2 *>(to + (8 * EIGHTS + eight) * 8) = make_float2(mine[2], mine[3]);
    }
    if (lane % 4 == row / 2) {
        shared.squares[worker][row] = row % 2 ? low[1] : low[0];
        shared.squares[worker][row + 8] = row % 2 ? high[3] : high[2];
    }
}

// Add one number of each worker, by pairs: half as many workers in twice as many blocks add alike.
__device__ inline float add_workers(const float *numbers, int stride) {
    float sums[WORKERS];
    for (int w = 0; w < WORKERS; w++) sums[w] = numbers[w * stride];
    for (int step = 1; step < WORKERS; step *= 2) {
        for (int w = 0; w < WORKERS; w += 2 * step) sums[w] += sums[w + step];
    }
    return sums[0];
}

// Tell the group this block's sums of a tile: lines 0 to 2, line 3 and the squares, then by threes.
template <int EIGHTS>
__device__ inline void tell(const Board<EIGHTS> &board, const Part &part, const Shared<EIGHTS> &shared,
                            int tile) {
    constexpr int COUNT = Told<EIGHTS>::COUNT, LINES = 8 * EIGHTS;
    const int token = threadIdx.x / COUNT, vector = threadIdx.x % COUNT;
    if (token >= TOKENS) return;
    const float *sums = shared.sums[0] + token * LINES;
    const int line = vector == 0 ? 0 : 3 * vector - 2;
    float words[3];
    words[0] = add_workers(sums + (vector == 1 ? 3 : line), TOKENS * LINES);
    words[1] = vector == 1 ? add_workers(shared.squares[0] + token, TOKENS)
                           : add_workers(sums + line + 1, TOKENS * LINES);
    words[2] = vector == 1 || line + 2 >= LINES ? 0.0f
                                                : add_workers(sums + line + 2, TOKENS * LINES);
    write_now(board.sums + board.sum_step(tile) + board.sum(token, vector, part.rank),
              make_uint4(__float_as_uint(words[0]), __float_as_uint(words[1]),
                         __float_as_uint(words[2]), board.tag + tile));
}

// Mix one token's streams: a lane has eight channels of each, and one of the lines' sums.
__device__ inline uint4 mix(const Call &call, const unsigned char *streams, float sum) {
    const int lane = threadIdx.x % 32;
    const float squares = __shfl_sync(ALL, sum, 18);
    const float factor = reciprocal_root(squares * call.per_number + call.norm_eps);
    // The gates of the first three streams are in the lower lanes, that of the last in the upper.
    const float base = __ldg(call.base + (lane < 16 ? line_of(lane) : STREAMS - 1));
    const float mine = sigmoid(sum * factor * __ldg(call.scale) + base) + call.hc_eps;
    const float gates[STREAMS] = {__shfl_sync(ALL, mine, 0), __shfl_sync(ALL, mine, 2),
                                  __shfl_sync(ALL, mine, 1), __shfl_sync(ALL, mine, 16)};
    float mixed[8] = {};
    for (int stream = 0; stream < STREAMS; stream++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(streams + stream * ROW_BYTES + lane * 16);
        const unsigned pairs[4] = {x.x, x.y, x.z, x.w};
        for (int j = 0; j < 4; j++) {
            mixed[2 * j] += low_of(pairs[j]) * gates[stream];
            mixed[2 * j + 1] += high_of(pairs[j]) * gates[stream];
        }
    }
    return make_uint4(pack(mixed[0], mixed[1]), pack(mixed[2], mixed[3]),
                      pack(mixed[4], mixed[5]), pack(mixed[6], mixed[7]));
}

__device__ inline void store(const Call &call, const Part &part, int tile, uint4 mixed) {
    const int channel = threadIdx.x % 32 * 8, token = part.token(tile) + threadIdx.x / 32;
    if (channel >= part.channels || token >= call.tokens) return;
    __nv_bfloat16 *const to = call.mixed + (long long)token * call.width + part.first + channel;
    write_back(to, mixed);
}

// The sum over a warp, neighbours first.
__device__ inline float sum_of_warp(float x) {
    for (int step = 1; step < 32; step *= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

// Tell the group the squares of this block's channels of a mixed token.
__device__ inline void tell_norm(uint2 *to, unsigned tag, bool mine, uint4 mixed) {
    float squares = 0.0f;
    if (mine) {
        for (const unsigned pair : {mixed.x, mixed.y, mixed.z, mixed.w}) {
            squares += low_of(pair) * low_of(pair) + high_of(pair) * high_of(pair);
        }
    }
    squares = sum_of_warp(squares);
    if (threadIdx.x % 32 == 0) write_now(to, make_uint2(__float_as_uint(squares), tag));
}

// Norm one mixed token as soon as all have told their squares. `at` is the place of a lane's rank,
// and `told` what was there before.
__device__ inline uint4 norm(const Call &call, const Part &part, const uint2 *at, uint2 told,
                             unsigned tag, uint4 mixed) {
    const int lane = threadIdx.x % 32;
    float4 weight[2] = {};
    if (lane * 8 < part.channels) {
        const float *const from = call.weight + part.first + lane * 8;
        weight[0] = __ldg(reinterpret_cast<const float4 *>(from));
        weight[1] = __ldg(reinterpret_cast<const float4 *>(from + 4));
    }
    const bool speaks = lane < call.ranks;
    while (!__all_sync(ALL, !speaks || told.y == tag)) {
        if (speaks) told = read_now(at);
    }
    const float squares = sum_of_warp(speaks ? __uint_as_float(told.x) : 0.0f);
    const float factor = reciprocal_root(squares * call.per_channel + call.norm_eps);
    const auto normed = [=](unsigned pair, float low, float high) {
        return pack(low_of(pair) * factor * low, high_of(pair) * factor * high);
    };
    return make_uint4(normed(mixed.x, weight[0].x, weight[0].y),
                      normed(mixed.y, weight[0].z, weight[0].w),
                      normed(mixed.z, weight[1].x, weight[1].y),
                      normed(mixed.w, weight[1].z, weight[1].w));
}

// Go through the tiles of the group. The first barrier of a turn says that all are done with the
// turn before: a stage and the room for sums are free, lines are complete. The last matrices are
// balanced when all else is done.
template <int EIGHTS, bool NORM, int EACH>
__device__ inline void work(const Call &call, const Part &part, Shared<EIGHTS> &shared) {
    const int worker = warp_number(), lane = threadIdx.x % 32;
    const bool live = worker / 2 * PIECE < part.channels;
    // Streams that do not fit into the cache leave room there for what the blocks tell.
    const bool passing = (long long)call.tokens * call.width * STREAMS * 2 > 1 << 25;
    const unsigned long long policy = cache_policy(passing);
    for (int tile = 0; tile < min(part.tiles, STAGES); tile++) {
        fetch(call, part, shared, tile, policy);
    }
    Weights<EIGHTS> weights;
    weights.load(call, part);
    const Board<EIGHTS> board(call, part);
    const uint4 *const sums = board.sums + board.sum(worker, lane / 16, lane % 16 * EACH);
    uint2 *const norms = board.norms + board.norm(worker, 0);
    // Of the last two tiles mixed, the later one in `mixed`.
    uint4 mixed = {}, before = {};
    const int turns = part.tiles + DELAY + (NORM ? NORM_DELAY : 0);
    for (int tile = 0; tile < turns; tile++) {
        const int ripe = tile - DELAY, next = ripe - 1 + STAGES, normed = ripe - NORM_DELAY;
        const bool mixes = ripe >= 0 && ripe < part.tiles;
        const unsigned tag = board.tag + ripe;
        // What others told some turns ago is asked for now, and needed after the product.
        Hearing<EACH> hearing, gathered;
        if (mixes) hearing.ask(sums + board.sum_step(ripe), call.ranks, tag);
        if constexpr (EIGHTS > 1) {
            if (mixes) ask_gathered<EACH>(board, part, ripe, gathered);
        }
        const uint2 *const norms_at = norms + board.norm_step(normed) + lane;
        uint2 told = {};
        if (NORM && normed >= 0 && lane < call.ranks) told = read_now(norms_at);
        if (tile < part.tiles) {
            await_phase(&shared.full[tile % STAGES], tile / STAGES % 2);
            multiply_tile(weights, shared, tile % STAGES, live);
        } else {
            __syncthreads();
        }
        if constexpr (EIGHTS > 1) balance_batch(call, part, shared, ripe, false);
        __syncthreads();
        if (tile < part.tiles) tell(board, part, shared, tile);
        if (ripe > 0 && next < part.tiles) fetch(call, part, shared, next, policy);
        if (NORM && normed >= 0) {
            const unsigned old = board.tag + normed;
            store(call, part, normed, norm(call, part, norms_at, told, old, before));
        }
        if (!mixes) {
            before = mixed;
            continue;
        }
        const float sum = hearing.sum(sums + board.sum_step(ripe), call.ranks, tag);
        before = mixed;
        mixed = mix(call, shared.streams[ripe % STAGES] + worker * TOKEN_BYTES, sum);
        if (NORM) {
            uint2 *const to = norms + board.norm_step(ripe) + part.rank;
            tell_norm(to, tag, lane * 8 < part.channels, mixed);
        } else {
            store(call, part, ripe, mixed);
        }
        if constexpr (EIGHTS > 1) gather<EACH>(board, part, shared, ripe, gathered);
    }
    if constexpr (EIGHTS > 1) {
        __syncthreads();
        balance_batch(call, part, shared, part.tiles, true);
    }
}

// What a team makes of its tiles: scores, weights, and sums of values by weight.
#pragma once

#include "records.cuh"

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// A number to subtract from scores, of which `greatest` is the greatest: where there is none, 0.
__device__ inline float base_of(float greatest) {
    return greatest == minus_infinity() ? 0.0f : greatest;
}

__device__ inline unsigned pair_of(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&pair);
}

// Numbers of the four lanes that share heads, added up; or the greatest.
__device__ inline float added(float x) {
    x += __shfl_xor_sync(ALL, x, 1);
    return x + __shfl_xor_sync(ALL, x, 2);
}

__device__ inline float greatest_of(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL, x, 2));
}

// Multiply queries and keys over half of the channels: the first four warps, 16 heads each.
template <bool LAST>
__device__ inline void score_keys(float (&scores)[32], const Shared &shared) {
#pragma unroll
    for (int i = 0; i < CHUNKS * 2; i++) {
        const int chunk = (LAST ? CHUNKS / 2 : 0) + i / 4, step = i % 4 * IN_LINES;
        multiply<false>(scores, operand(shared.queries[chunk]) + step,
                        operand(shared.keys[chunk]) + step, !LAST && !i);
    }
}

// Weigh the keys of this block's tile by their scores.
__device__ inline void weigh_keys(float (&scores)[32], const Shared &shared, Weights &weights,
                                  float scale, int warp, int lane) {
    float greatest[2] = {minus_infinity(), minus_infinity()}, total[2] = {};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const bool found = shared.found[i / 4 * 8 + lane % 4 * 2 + i % 2] != 0.0f;
        float &score = scores[i];
        score = found ? score * scale : minus_infinity();
        greatest[i / 2 % 2] = fmaxf(greatest[i / 2 % 2], score);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        greatest[half] = greatest_of(greatest[half]);
        const float base = base_of(greatest[half]);
        const int head = warp * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float low = power(scores[j * 4 + half * 2] - base);
            const float high = power(scores[j * 4 + half * 2 + 1] - base);
            total[half] += low + high;
            const int at = head * CHUNK + (j ^ head % 8) * 8 + lane % 4 * 2;
            *reinterpret_cast<unsigned *>(weights.p + at) = pair_of(low, high);
        }
        total[half] = added(total[half]);
        if (lane % 4 == 0) {
            weights.greatest[head] = greatest[half];
            weights.total[head] = total[half];
        }
    }
}

// A thread's sums: of two heads, eight apart, and 16 of its warps' 64 channels. Their order is that
// of `multiply`.
struct Sums {
    float values[32] = {};
    float greatest[2] = {minus_infinity(), minus_infinity()}, total[2] = {};
};

// Where the values of a tile of the team begin, those that are this block's.
__device__ inline const Tile *values_of(const Shared &shared, int tile, int rank) {
    if (tile == rank) return shared.keys + rank * OWN;
    return shared.values[tile < rank ? tile : tile - 1];
}

// Add the first LIVE tiles of the team to the sums.
template <int LIVE>
__device__ inline void add_tiles(Sums &sums, const Shared &shared, int rank, int warp, int lane) {
    float tiles[LIVE][32] = {};
    open_products(tiles);
#pragma unroll
    for (int t = 0; t < LIVE; t++) {
        const unsigned long long weights = operand(shared.team[t].weights.p);
        const unsigned long long values = operand(values_of(shared, t, rank)[warp / 4]);
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            multiply<true>(tiles[t], weights + i * IN_LINES, values + i * NEXT_LINES, !i);
        }
    }
    await_products(tiles);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = warp % 4 * 16 + half * 8 + lane / 4;
        float greatest = sums.greatest[half];
#pragma unroll
        for (int t = 0; t < LIVE; t++) {
            greatest = fmaxf(greatest, shared.team[t].weights.greatest[head]);
        }
        const float base = base_of(greatest);
        const float before = power(sums.greatest[half] - base);
        sums.greatest[half] = greatest;
        sums.total[half] *= before;
#pragma unroll
        for (int j = 0; j < 16; j++) sums.values[j / 2 * 4 + half * 2 + j % 2] *= before;
#pragma unroll
        for (int t = 0; t < LIVE; t++) {
            const Weights &weights = shared.team[t].weights;
            const float factor = power(weights.greatest[head] - base);
            sums.total[half] += factor * weights.total[head];
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int i = j / 2 * 4 + half * 2 + j % 2;
                sums.values[i] += factor * tiles[t][i];
            }
        }
    }
}

// Send the values of this block's keys to those whose channels they are: the first half of the
// team, or the last.
template <bool LAST>
__device__ inline void send_values(Shared &shared, int rank) {
    for (int i = 0; i < TEAM / 2; i++) {
        const int other = (LAST ? TEAM / 2 : 0) + i;
        if (other == rank) continue;
        const Tile *const to = shared.values[rank < other ? rank : rank - 1];
        send(at_rank(to, other), shared.keys + other * OWN, OWN * TILE_BYTES,
             at_rank(&shared.filled, other));
    }
}

__device__ inline void send_weights(Shared &shared, int rank) {
    for (int other = 0; other < TEAM; other++) {
        if (other == rank) continue;
        Weights &mine = shared.team[rank].weights;
        send(at_rank(&mine, other), &mine, WEIGHTS_BYTES, at_rank(&shared.filled, other));
    }
}

// Take this block's tile, which there is and whose records are on their way: the team gets its
// values, then its weights. While one half of the channels is multiplied the other is decoded.
__device__ inline void take_tile(const Call &call, Shared &shared, Record &record, bool found,
                                 int rank, int warp, int lane) {
    const int key = warp * 8 + lane / 4, quarter = lane % 4;
    const bool sends = threadIdx.x == THREADS / 2;
    if (!quarter) shared.found[key] = found ? 1.0f : 0.0f;
    record.pin();
    record.place<false>(shared.keys, key, quarter);
    await_copies();
    show_to_copies();
    __syncthreads();
    Weights &weights = shared.team[rank].weights;
    if (warp < 4) {
        float scores[1][32] = {};
        open_products(scores);
        score_keys<false>(scores[0], shared);
        close_products();
        record.place<true>(shared.keys, key, quarter);
        show_to_copies();
        __syncthreads();
        score_keys<true>(scores[0], shared);
        await_products(scores);
        weigh_keys(scores[0], shared, weights, call.scale, warp, lane);
        show_to_copies();
    } else {
        if (sends) send_values<false>(shared, rank);
        record.place<true>(shared.keys, key, quarter);
        show_to_copies();
        __syncthreads();
        if (sends) send_values<true>(shared, rank);
    }
    __syncthreads();
    if (threadIdx.x == 0) send_weights(shared, rank);
}

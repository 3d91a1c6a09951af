// What a team makes of its tiles: scores, weights, and sums of values by weight.
#pragma once

#include "records.cuh"

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

// Bring this block's tile, whose slots are known: the second group of warps. Each chunk is told to
// the first group when its numbers are there.
__device__ inline void bring_tile(const Keys &keys, Shared &shared, const int (&slots)[2],
                                  unsigned warp, unsigned lane) {
    const unsigned key = warp % 4 * 16 + lane / 4;
    Record first(keys, shared, slots[0], key, lane % 4);
    Record second(keys, shared, slots[1], key + 8, lane % 4);
    await_copies();
    first.take_scales();
    second.take_scales();
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (chunk < CODE_BLOCKS) {
            first.decode(shared.keys[chunk]);
            second.decode(shared.keys[chunk]);
        }
        show_to_products();
        tell_half(1 + chunk, THREADS);
    }
}

// The number in the cluster of a block of this one's team.
__device__ inline int in_cluster(int rank) { return cluster_rank() / TEAM * TEAM + rank; }

// Send the values of this block's keys to the one whose channels they are.
__device__ inline void send_values(Shared &shared, int rank, int other) {
    const Tile *const to = shared.values[rank < other ? rank : rank - 1];
    send(at_rank(to, in_cluster(other)), shared.keys + other * OWN, OWN * TILE_BYTES,
         at_rank(&shared.filled, in_cluster(other)));
}

__device__ inline void send_weights(Shared &shared, int rank) {
#pragma unroll 1
    for (int i = 1; i < TEAM; i++) {
        const int other = in_cluster(rank ^ i);
        Weights &mine = shared.team[rank].weights;
        send(at_rank(&mine, other), &mine, WEIGHTS_BYTES, at_rank(&shared.filled, other));
    }
}

// Multiply queries and keys, 16 heads a warp of the first group, as chunks come; the team gets the
// values that it needs.
__device__ inline void score_keys(float (&scores)[32], Shared &shared, int rank) {
    unsigned long long queries = operand(shared.queries), keys = operand(shared.keys);
    pin(scores);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        await_half(1 + chunk, THREADS);
        const int other = chunk / OWN;
        if (threadIdx.x == 0 && chunk % OWN == OWN - 1 && other != rank) {
            send_values(shared, rank, other);
        }
        __syncwarp();
        open_products();
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) {
            multiply(scores, queries + i * IN_LINES, keys + i * IN_LINES);
        }
        close_products();
        queries += TILE_BYTES >> 4;
        keys += TILE_BYTES >> 4;
    }
    await_products();
    pin(scores);
}

// Weigh the keys of this block's tile by their scores.
__device__ inline void weigh_keys(float (&scores)[32], const Shared &shared, Weights &weights,
                                  float scale, unsigned warp, unsigned lane) {
    float greatest[2] = {minus_infinity(), minus_infinity()}, total[2] = {};
    lane = from_here(lane) % 32;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        scores[i] = fmaf(scores[i], scale, shared.bias[i / 4 * 8 + lane % 4 * 2 + i % 2]);
        greatest[i / 2 % 2] = fmaxf(greatest[i / 2 % 2], scores[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        greatest[half] = ceilf(greatest_of(greatest[half]));
        const float base = base_of(greatest[half]);
        const unsigned head = warp * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float low = power_of_two(scores[j * 4 + half * 2] - base);
            const float high = power_of_two(scores[j * 4 + half * 2 + 1] - base);
            total[half] += low + high;
            const unsigned at = head * CHUNK + (j ^ head % 8) * 8 + lane % 4 * 2;
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

// The biased exponent of a power of two that is at most 1, by its logarithm: 0 if it is too small.
__device__ inline unsigned exponent_of(float logarithm) {
    return (unsigned)fmaxf(logarithm + 127.0f, 0.0f);
}

// Add the first tiles of the team to the sums. Weights become relative to one base, which changes
// them by powers of two.
__device__ inline void add_tiles(Sums &sums, const Shared &shared, int live, int rank,
                                 unsigned warp, unsigned lane) {
    lane = from_here(lane) % 32;
    const unsigned head = warp % 4 * 16 + lane / 4;
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float greatest = sums.greatest[half];
#pragma unroll
        for (int t = 0; t < TEAM; t++) {
            const float other = shared.team[t].weights.greatest[head + half * 8];
            if (t < live) greatest = fmaxf(greatest, other);
        }
        base[half] = base_of(greatest);
        const unsigned before = exponent_of(sums.greatest[half] - base[half]);
        const float factor = __int_as_float(before << 23);
        sums.greatest[half] = greatest;
        sums.total[half] *= factor;
#pragma unroll
        for (int j = 0; j < 16; j++) sums.values[j / 2 * 4 + half * 2 + j % 2] *= factor;
    }
    pin(sums.values);
#pragma unroll 1
    for (int t = 0; t < live; t++) {
        const Weights &weights = shared.team[t].weights;
        const unsigned long long values = operand(values_of(shared, t, rank)[warp / 4]);
        unsigned held[KEYS / 4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned line = head + half * 8;
            const unsigned exponent = exponent_of(weights.greatest[line] - base[half]);
            sums.total[half] += __int_as_float(exponent << 23) * weights.total[line];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                const unsigned at = line * CHUNK + (j ^ line % 8) * 8 + lane % 4 * 2;
                const unsigned pair = *reinterpret_cast<const unsigned *>(weights.p + at);
                held[j * 2 + half] = times(pair, exponent * (0x10001u << 7));
            }
        }
        pin(held);
        open_products();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            multiply_held(sums.values, held + i * 4, values + i * NEXT_LINES);
        }
        close_products();
        await_products();
        pin(held);
    }
    pin(sums.values);
}

// Take this block's tile, which there is: the team gets its values, then its weights.
__device__ inline void take_tile(const Call &call, const Keys &keys, Shared &shared,
                                 const int (&slots)[2], int rank, unsigned warp, unsigned lane) {
    Weights &weights = shared.team[rank].weights;
    if (warp < 4) {
        await_copies();
        show_to_products();
        float scores[32] = {};
        score_keys(scores, shared, rank);
        weigh_keys(scores, shared, weights, call.scale, warp, lane);
        show_to_products();
    } else {
        bring_tile(keys, shared, slots, warp, lane);
    }
    __syncthreads();
    if (threadIdx.x == 0) send_weights(shared, rank);
}

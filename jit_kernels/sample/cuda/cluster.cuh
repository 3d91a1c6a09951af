// Eight blocks that hold a row of logits together, and what they find out about all of it.
#pragma once

#include "device/lanes.cuh"

constexpr int RANKS = 8, WARPS = 32, THREADS = 32 * WARPS, MOST_SUMS = 6;

using Whole = unsigned long long;

// What the blocks tell each other; the next turn is told in the other half.
struct Exchange {
    Whole parts[MOST_SUMS][WARPS], heard[2][RANKS][MOST_SUMS], sums[MOST_SUMS], before;
    Whole best_parts[WARPS], best[RANKS];
    Whole score_parts[WARPS], scores[RANKS], id_parts[WARPS], ids[RANKS];
};

// Where in the cluster this thread is, and whose turn it is.
struct Place {
    int rank, warp, lane, turn = 0;

    __device__ Place() : rank(blockIdx.x % RANKS), warp(warp_number()), lane(threadIdx.x % 32) {}
};

// Write eight bytes where `mine` is, in the block of another rank.
__device__ inline void tell(const void *mine, int rank, Whole value) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.b64 [there], %2;\n"
        "}" ::"r"((unsigned)__cvta_generic_to_shared(mine)),
        "r"(rank), "l"(value)
        : "memory");
}

// Wait for all threads of the cluster; what they wrote is there.
__device__ inline void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The sum of whole numbers below 2^BITS, by parts of which 32 are below 2^32.
template <int BITS>
__device__ inline Whole sum_of_warp(Whole x) {
    constexpr int PART = 27, PARTS = (BITS + PART - 1) / PART;
    Whole sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const unsigned mine = (unsigned)(x >> part * PART) & ((1u << PART) - 1);
        sum += (Whole)__reduce_add_sync(ALL, mine) << part * PART;
    }
    return sum;
}

// What the first of some sums has in this block, and in the blocks of lower ranks.
struct Share {
    double before, mine;
};

// Add up whole numbers of all threads of the cluster, each below 2^48, sums below 2^53: their order
// is nothing then.
template <int COUNT>
__device__ inline Share sum_up(Exchange &shared, Place &place, double (&x)[COUNT]) {
    static_assert(COUNT <= MOST_SUMS);
    bool some = false;
#pragma unroll
    for (int q = 0; q < COUNT; q++) some = some || x[q] != 0.0;
    // Most warps have nothing as soon as bounds are close.
    some = __any_sync(ALL, some);
#pragma unroll
    for (int q = 0; q < COUNT; q++) {
        const Whole sum = some ? sum_of_warp<48>((Whole)x[q]) : 0;
        if (place.lane == 0) shared.parts[q][place.warp] = sum;
    }
    __syncthreads();
    Whole(&heard)[RANKS][MOST_SUMS] = shared.heard[place.turn];
    place.turn ^= 1;
    if (place.warp < COUNT) {
        const Whole sum = sum_of_warp<53>(shared.parts[place.warp][place.lane]);
        if (place.lane < RANKS) tell(&heard[place.rank][place.warp], place.lane, sum);
    }
    meet();
    if (place.warp < COUNT) {
        const Whole told = place.lane < RANKS ? heard[place.lane][place.warp] : 0;
        const Whole sum = sum_of_warp<53>(told);
        if (place.lane == 0) shared.sums[place.warp] = sum;
        if (place.warp == 0) {
            const Whole before = sum_of_warp<53>(place.lane < place.rank ? told : 0);
            if (place.lane == 0) shared.before = before;
        }
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < COUNT; q++) x[q] = (double)shared.sums[q];
    return {(double)shared.before, (double)heard[place.rank][0]};
}

__device__ inline Whole largest_of_warp(Whole x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Whole other = __shfl_xor_sync(ALL, x, step);
        x = other > x ? other : x;
    }
    return x;
}

// The largest number of all threads of the cluster. It may be asked for once.
__device__ inline Whole find_largest(Exchange &shared, const Place &place,
                                                  Whole x) {
    x = largest_of_warp(x);
    if (place.lane == 0) shared.best_parts[place.warp] = x;
    __syncthreads();
    if (place.warp == 0) {
        x = largest_of_warp(shared.best_parts[place.lane]);
        if (place.lane < RANKS) tell(&shared.best[place.rank], place.lane, x);
    }
    meet();
    return largest_of_warp(shared.best[place.lane % RANKS]);
}

// A token in a race; the larger score wins, of equals the lower id.
struct Runner {
    Whole score;  // a number that orders as the score does
    unsigned id;
};

__device__ inline Runner winner_of_warp(Runner x) {
    const Whole most = largest_of_warp(x.score);
    return {most, __reduce_min_sync(ALL, x.score == most ? x.id : 0xffffffffu)};
}

// The winner of all threads of the cluster, in the first warp of rank 0 only. It may be asked for
// once.
__device__ inline Runner find_winner(Exchange &shared, const Place &place, Runner x) {
    x = winner_of_warp(x);
    if (place.lane == 0) shared.score_parts[place.warp] = x.score, shared.id_parts[place.warp] = x.id;
    __syncthreads();
    if (place.warp == 0) {
        x = winner_of_warp({shared.score_parts[place.lane], (unsigned)shared.id_parts[place.lane]});
        if (place.lane == 0) {
            tell(&shared.scores[place.rank], 0, x.score);
            tell(&shared.ids[place.rank], 0, x.id);
        }
    }
    meet();
    const int rank = place.lane % RANKS;
    return winner_of_warp({shared.scores[rank], (unsigned)shared.ids[rank]});
}

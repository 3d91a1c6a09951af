// Blocks of 4 tokens in small steps, in one launch. A block of threads makes a block of tokens;
// those of the first cluster are the only ones that touch rings: they make the blocks that read
// them, and write entries when all of the cluster have read what they need, so that no second
// launch is needed.
#pragma once

#include "cluster.cuh"
#include "pool.cuh"

constexpr int POOL_RANKS = 8, RANK_ENTRIES = 2;
// Blocks and entries of a step that is taken so: what the lanes of a warp and a few registers hold.
constexpr int FEW_BLOCKS = 32 * POOL_RANKS, FEW_ENTRIES = RANK_ENTRIES * POOL_RANKS;

// Whether some of a block's slots are those of a ring.
__device__ inline bool reads_ring(const Wanted &block) {
    return block.fresh < SLOTS - 1 && block.fresh < block.position;
}

// The token that finishes a block if there is one row that begins with a block, else -1.
__device__ inline long long likely_end(const PoolChunks &call, long long nth) {
    const long long end = nth * RATIO + RATIO - 1;
    return call.rows == 1 && end < call.tokens ? end : -1;
}

// What is known of a block before its token's chunk is; `position` and `row` are those of the
// likely token. A block that there is not has no slot.
struct Guess {
    long long slot, token, likely, position, row;

    __device__ Guess(const PoolChunks &call, long long nth) {
        slot = token = position = row = 0;
        likely = likely_end(call, nth);
        if (nth >= call.blocks) return;
        slot = call.ended.slots[nth], token = call.chunks.last[nth];
        if (likely >= 0) position = call.chunks.position[likely], row = call.chunks.row[likely];
    }
    // All lanes of a warp take part.
    __device__ Wanted check(const PoolChunks &call, const Begins &begins) {
        if (slot > 0 && token != likely) {
            position = call.chunks.position[token], row = call.chunks.row[token];
        }
        const Begin begin = begins.of(call.chunks, slot > 0 ? row : 0);
        return {slot, token, position, position - begin.start, begin.ring,
                call.rings.place(position)};
    }
};

// Load the slots of a thread's channels up to a token; those that are not there are left alone.
__device__ inline void load_slots(const PoolChunks &call, long long token, const Columns &at,
                                  float4 (&kv)[SLOTS], float4 (&gate)[SLOTS]) {
    const float *const row = call.from.rows + token * call.from.stride + at.kv;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const int back = SLOTS - 1 - i, series = i < RATIO ? 0 : at.series;
        if (back > token) continue;
        const float *const from = row - back * call.from.stride + series;
        kv[i] = four(from), gate[i] = four(from + 2 * at.series);
    }
}

// Load what is added to the gates of a block's slots.
__device__ inline void load_ape(const PoolChunks &call, const Columns &at, float4 (&ape)[SLOTS]) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        ape[i] = four(call.from.ape + i % RATIO * ROW + at.gate + (i < RATIO ? 0 : at.series));
    }
}

// The mean of a block whose slots of the chunk are loaded. Those before position 0 are none; those
// of a ring, which have all that is added, are loaded here.
template <bool RINGS>
__device__ inline float4 loaded_mean(const PoolChunks &call, const Wanted &block, const Columns &at,
                                     float4 (&kv)[SLOTS], float4 (&gate)[SLOTS],
                                     const float4 (&ape)[SLOTS]) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const int back = SLOTS - 1 - i, series = i < RATIO ? 0 : at.series;
        if (back <= block.fresh) {
            gate[i] = sum(gate[i], ape[i]);
        } else if (RINGS && back <= block.position) {
            const float *const kept = call.rings.entry(block.ring, block.place, back) + series;
            kv[i] = four(kept + at.kv), gate[i] = four(kept + at.gate);
        } else {
            kv[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            gate[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        }
    }
    return mean_of(kv, gate);
}

// Make a block that reads no ring.
__device__ inline void pool_few_block(const PoolChunks &call, long long nth, float *groups) {
    const Columns at;
    float4 kv[SLOTS] = {}, gate[SLOTS] = {}, ape[SLOTS];
    load_ape(call, at, ape);
    const float4 gain = gain_of(call.main, call.index);
    take_turn();
    Guess guess(call, nth);
    Begins begins;
    begins.load(call.chunks, call.rows);
    if (guess.likely >= 0) load_slots(call, guess.likely, at, kv, gate);
    const Turn turn = turn_of(call.ended, nth);
    if (guess.slot <= 0) return;
    const Place place = place_of(call.main, call.index, guess.slot);
    const Wanted block = guess.check(call, begins);
    if (reads_ring(block)) return;
    if (block.token != guess.likely) load_slots(call, block.token, at, kv, gate);
    const float4 mean = loaded_mean<false>(call, block, at, kv, gate, ape);
    store_block(place, mean, gain, turn, call.eps, groups);
}

// An entry to be written, of which a thread has ROW_PARTS times four columns.
struct Entry {
    float4 parts[ROW_PARTS], ape[ROW_PARTS];
    long long source, target, likely, position;

    __device__ static void load(float4 (&to)[ROW_PARTS], const float *from) {
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) {
            to[i] = four(from + 4 * (i * POOL_THREADS + threadIdx.x));
        }
    }
    __device__ void load_token(const PoolChunks &call, long long token, int phase) {
        position = call.chunks.position[token];
        load(parts, call.from.rows + token * call.from.stride);
        load(ape, call.from.ape + phase * ROW);
    }
    // Ask for what it likely is: one of the last tokens of one row that begins with a block.
    __device__ void ask(const PoolChunks &call, int nth) {
        const Saves &saves = call.saves;
        source = likely = -1;
        if (nth >= saves.count) return;
        source = saves.source[nth], target = saves.target[nth];
        const long long token = (long long)call.tokens - saves.count + nth;
        if (call.rows != 1 || token < 0) return;
        likely = token;
        load_token(call, token, (int)(token % RATIO));
    }
    // Read what it is, once that is known.
    __device__ void read(const PoolChunks &call) {
        const long long token = source - call.saves.old;
        if (source < 0) return;
        if (token < 0) {
            const long long ring = call.chunks.ring[source / call.rings.span];
            load(parts, call.rings.entry(ring, (int)(source % call.rings.span), 0));
            return;
        }
        if (token != likely || position % RATIO != likely % RATIO) {
            load_token(call, token, (int)(call.chunks.position[token] % RATIO));
        }
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) parts[i] = sum(parts[i], ape[i]);
    }
    __device__ void write(const PoolChunks &call) const {
        if (source < 0) return;
        float *const to = call.rings.state + target * ROW;
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) {
            *reinterpret_cast<float4 *>(to + 4 * (i * POOL_THREADS + threadIdx.x)) = parts[i];
        }
    }
};

struct RingBlocks {
    Wanted list[32];
    unsigned readers;
};

// Make a rank's share of the blocks that read rings, and write its share of the entries.
__device__ inline void pool_few_rings(const PoolChunks &call, int rank, RingBlocks &shared,
                                      float (*groups)[GROUPS]) {
    Entry entries[RANK_ENTRIES];
    take_turn();
#pragma unroll
    for (int i = 0; i < RANK_ENTRIES; i++) entries[i].ask(call, rank + i * POOL_RANKS);
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        Guess guess(call, rank + (long long)lane * POOL_RANKS);
        Begins begins;
        begins.load(call.chunks, call.rows);
        const Wanted block = guess.check(call, begins);
        shared.list[lane] = block;
        const unsigned readers = __ballot_sync(ALL, block.slot > 0 && reads_ring(block));
        if (lane == 0) shared.readers = readers;
    }
#pragma unroll
    for (int i = 0; i < RANK_ENTRIES; i++) entries[i].read(call);
    __syncthreads();
    int made = 0;
    for (unsigned readers = shared.readers; readers; readers &= readers - 1) {
        const int which = __ffs(readers) - 1;
        const Wanted &block = shared.list[which];
        const Columns at;
        float4 kv[SLOTS] = {}, gate[SLOTS] = {}, ape[SLOTS];
        load_slots(call, block.token, at, kv, gate);
        load_ape(call, at, ape);
        const float4 mean = loaded_mean<true>(call, block, at, kv, gate, ape);
        const Turn turn = turn_of(call.ended, rank + (long long)which * POOL_RANKS);
        store_block(place_of(call.main, call.index, block.slot), mean,
                    gain_of(call.main, call.index), turn, call.eps, groups[made]);
        made ^= 1;
    }
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
#pragma unroll
    for (int i = 0; i < RANK_ENTRIES; i++) entries[i].write(call);
}

__global__ void __launch_bounds__(POOL_THREADS, 2) pool_few(const PoolChunks call) {
    __shared__ RingBlocks shared;
    __shared__ float groups[2][GROUPS];
    const int block = (int)blockIdx.x - POOL_RANKS;
    if (block < 0) {
        pool_few_rings(call, blockIdx.x, shared, groups);
    } else if (block < call.blocks) {
        pool_few_block(call, block, groups[0]);
    }
}

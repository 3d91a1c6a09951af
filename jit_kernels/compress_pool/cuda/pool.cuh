// Blocks of 4 tokens. A block of threads makes one block of tokens at a time, both branches: four
// warps have the record, one the key, every thread four channels of all eight slots.
#pragma once

#include "blocks.cuh"

constexpr int SLOTS = 8, RATIO = 4, MAIN_THREADS = MAIN / 4, POOL_THREADS = (MAIN + INDEX) / 4;
constexpr int ROW = 4 * (MAIN + INDEX), ROW_PARTS = ROW / 4 / POOL_THREADS;

// Rings of `span` entries, at least SLOTS.
struct Rings {
    float *state;
    int span;

    __device__ int place(long long position) const {
        const bool small = position < 1ll << 31;
        return small ? (unsigned)position % (unsigned)span : position % span;
    }
    // The entry of the position that is `back` before the one of `place`.
    __device__ float *entry(long long ring, int place, int back) const {
        const int before = place - back;
        return state + (ring * span + (before < 0 ? before + span : before)) * ROW;
    }
};

// Rows of float32 and what is added to their gates, by position.
struct Rows {
    const float *rows, *ape;
    long long stride;
};

// Chunks of tokens, and entries of rings to write, as `jit_kernels.compress_pool` describes them;
// `fetched` holds those that come from rings.
struct Chunks {
    const long long *position, *row, *start;
    const int *ring;
    const long long *last;
};

struct Saves {
    const long long *source, *target;
    float *fetched;
    long long old;
    int count;
};

// Four channels of a branch: the columns of their kv and gates, series a; series b is `series`
// further on.
struct Columns {
    int kv, gate, series;
    bool main;

    __device__ Columns() {
        const int thread = threadIdx.x;
        main = thread < MAIN_THREADS;
        series = main ? MAIN : INDEX;
        kv = main ? 4 * thread : 4 * MAIN + 4 * (thread - MAIN_THREADS);
        gate = kv + 2 * series;
    }
};

// The mean weighted by e^gate. What the highest loses in its product all weights lose alike.
__device__ inline float mean_of(const float (&kv)[SLOTS], const float (&gate)[SLOTS]) {
    float highest = gate[0], weight[SLOTS];
#pragma unroll
    for (int i = 1; i < SLOTS; i++) highest = fmaxf(highest, gate[i]);
    highest = __fmul_rn(highest, LOG2_E);
#pragma unroll
    for (int i = 0; i < SLOTS; i++) weight[i] = power(fmaf(gate[i], LOG2_E, -highest));
    float sums[RATIO], products[RATIO];
#pragma unroll
    for (int i = 0; i < RATIO; i++) {
        sums[i] = __fadd_rn(weight[i], weight[i + RATIO]);
        products[i] = fmaf(weight[i], kv[i], __fmul_rn(weight[i + RATIO], kv[i + RATIO]));
    }
    const float total = __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
    const float even = __fadd_rn(products[0], products[2]);
    return quotient(__fadd_rn(even, __fadd_rn(products[1], products[3])), total);
}

__device__ inline float4 mean_of(const float4 (&kv)[SLOTS], const float4 (&gate)[SLOTS]) {
    float values[4][SLOTS], gates[4][SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        values[0][i] = kv[i].x, values[1][i] = kv[i].y;
        values[2][i] = kv[i].z, values[3][i] = kv[i].w;
        gates[0][i] = gate[i].x, gates[1][i] = gate[i].y;
        gates[2][i] = gate[i].z, gates[3][i] = gate[i].w;
    }
    return make_float4(mean_of(values[0], gates[0]), mean_of(values[1], gates[1]),
                       mean_of(values[2], gates[2]), mean_of(values[3], gates[3]));
}

// Norm, rotate and store a block. `groups` is where the warps of a record meet; what they left
// there the time before last is not read any more.
__device__ inline void store_block(const Place &place, float4 x, float4 gain, const Turn &turn,
                                   float eps, float *groups) {
    const int thread = threadIdx.x, lane = thread % GROUP_LANES, group = thread / GROUP_LANES;
    if (thread >= MAIN_THREADS) {
        store_key(place, x, gain, turn, eps);
        return;
    }
    const float squares = squares_of_group(x);
    if (lane == 0) groups[group] = squares;
    asm volatile("bar.sync 1, %0;" ::"n"(MAIN_THREADS) : "memory");
    x = normed<MAIN>(x, squares_of_record(groups), gain, eps);
    store_group(place, group, lane, x, turn);
}

// Where a thread's branch of a block is stored.
__device__ inline Place place_of(const Pages &main, const Pages &index, long long slot) {
    return threadIdx.x < MAIN_THREADS ? main.place(slot) : index.place(slot);
}

// Which threads of a block have channels that turn, or may ask for a turn at no cost.
__device__ inline Turn turn_of(const Ended &ended, long long nth) {
    Turn turn = {};
    if (threadIdx.x >= MAIN_THREADS - 32) turn.load(ended.turn(nth), threadIdx.x % GROUP_LANES);
    return turn;
}

__device__ inline float4 gain_of(const Pages &main, const Pages &index) {
    const int thread = threadIdx.x;
    return thread < MAIN_THREADS ? four(main.weight + 4 * thread)
                                 : four(index.weight + 4 * (thread - MAIN_THREADS));
}

struct PoolTokens {
    Rows from;
    Rings rings;
    const long long *position;
    const int *ring;
    Ended ended;
    Pages main, index;
    float eps;
};

// Advance one decoding row: write its entry, store the block it finishes.
__global__ void __launch_bounds__(POOL_THREADS) pool_tokens(const PoolTokens call) {
    __shared__ float groups[GROUPS];
    const Columns at;
    const float4 gain = gain_of(call.main, call.index);
    take_turn();
    const long long token = blockIdx.x;
    const float *const mine = call.from.rows + token * call.from.stride;
    const float4 kv_a = four(mine + at.kv), kv_b = four(mine + at.kv + at.series);
    float4 gate_a = four(mine + at.gate), gate_b = four(mine + at.gate + at.series);
    const long long position = call.position[token], slot = call.ended.slots[token];
    const long long ring = call.ring[token];
    const Turn turn = turn_of(call.ended, token);
    if (position < 0) return;
    const int last = call.rings.place(position);
    const float *const ape = call.from.ape + position % RATIO * ROW + at.gate;
    float4 kv[SLOTS], gate[SLOTS];
    if (slot > 0) {
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++) {
            const int back = SLOTS - 1 - i, series = i < RATIO ? 0 : at.series;
            kv[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            gate[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (back > position) continue;
            const float *const kept = call.rings.entry(ring, last, back);
            kv[i] = four(kept + at.kv + series);
            gate[i] = four(kept + at.gate + series);
        }
    }
    gate_a = sum(gate_a, four(ape));
    gate_b = sum(gate_b, four(ape + at.series));
    float *const entry = call.rings.entry(ring, last, 0);
    *reinterpret_cast<float4 *>(entry + at.kv) = kv_a;
    *reinterpret_cast<float4 *>(entry + at.kv + at.series) = kv_b;
    *reinterpret_cast<float4 *>(entry + at.gate) = gate_a;
    *reinterpret_cast<float4 *>(entry + at.gate + at.series) = gate_b;
    if (slot <= 0) return;
    kv[SLOTS - 1] = kv_b;
    gate[SLOTS - 1] = gate_b;
    const Place place = place_of(call.main, call.index, slot);
    store_block(place, mean_of(kv, gate), gain, turn, call.eps, groups);
}

struct PoolChunks {
    Rows from;
    Rings rings;
    Chunks chunks;
    Ended ended;
    Saves saves;
    Pages main, index;
    float eps;
    int blocks;
};

// What is known of a block to be made: where it goes, the token that finishes it, that token's
// position and place in a ring, how many tokens before it are in the chunk, and the ring that has
// the others.
struct Wanted {
    long long slot, token, position, fresh, ring;
    int place;
};

constexpr int STAGES = 2, LISTED = 32;
struct PoolShared {
    float4 staged[STAGES][2 * SLOTS][POOL_THREADS];
    Wanted list[LISTED];
    float groups[2][GROUPS];
};

__device__ inline Wanted wanted_block(const PoolChunks &call, long long nth) {
    Wanted block = {};
    if (nth >= call.blocks) return block;
    const Chunks &chunks = call.chunks;
    block.slot = call.ended.slots[nth];
    block.token = chunks.last[nth];
    if (block.slot <= 0) return block;
    const long long row = chunks.row[block.token];
    block.position = chunks.position[block.token];
    block.fresh = block.position - chunks.start[row];
    block.ring = chunks.ring[row];
    block.place = call.rings.place(block.position);
    return block;
}

// Bring the slots of a block's channels on their way, each thread its own; FRESH if all are those
// of tokens of the chunk.
template <bool FRESH>
__device__ inline void stage_slots(const PoolChunks &call, const Wanted &block, const Columns &at,
                                   float4 (*staged)[POOL_THREADS]) {
    const float *const row = call.from.rows + block.token * call.from.stride + at.kv;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const int back = SLOTS - 1 - i, series = i < RATIO ? 0 : at.series;
        if (!FRESH && back > block.position) continue;
        const float *const from = FRESH || back <= block.fresh
                                      ? row - back * call.from.stride
                                      : call.rings.entry(block.ring, block.place, back) + at.kv;
        copy_ahead(&staged[2 * i][threadIdx.x], from + series);
        copy_ahead(&staged[2 * i + 1][threadIdx.x], from + series + 2 * at.series);
    }
}

__device__ inline void stage_block(const PoolChunks &call, const Wanted &block, const Columns &at,
                                   float4 (*staged)[POOL_THREADS]) {
    if (block.slot > 0) {
        if (block.fresh >= SLOTS - 1) {
            stage_slots<true>(call, block, at, staged);
        } else {
            stage_slots<false>(call, block, at, staged);
        }
    }
    close_group();
}

template <bool FRESH>
__device__ inline float4 staged_mean(const Wanted &block, const float4 (*staged)[POOL_THREADS],
                                     const float4 (&ape)[SLOTS]) {
    float4 kv[SLOTS], gate[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const int back = SLOTS - 1 - i;
        kv[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        gate[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (!FRESH && back > block.position) continue;
        kv[i] = staged[2 * i][threadIdx.x];
        gate[i] = staged[2 * i + 1][threadIdx.x];
        if (FRESH || back <= block.fresh) gate[i] = sum(gate[i], ape[i]);
    }
    return mean_of(kv, gate);
}

// Store the blocks that chunks finish, the next one's numbers on their way while one is made, and
// fetch the entries that are saved from rings.
__global__ void __launch_bounds__(POOL_THREADS, 2) pool_chunks(const PoolChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    PoolShared &shared = *reinterpret_cast<PoolShared *>(memory);
    const Columns at;
    float4 ape[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        ape[i] = four(call.from.ape + i % RATIO * ROW + at.gate + (i < RATIO ? 0 : at.series));
    }
    const float4 gain = gain_of(call.main, call.index);
    take_turn();
    int made = 0;
    const long long step = gridDim.x;
    for (long long first = blockIdx.x; first < call.blocks; first += LISTED * step) {
        __syncthreads();
        if (threadIdx.x < LISTED) {
            shared.list[threadIdx.x] = wanted_block(call, first + threadIdx.x * step);
        }
        __syncthreads();
        stage_block(call, shared.list[0], at, shared.staged[0]);
        for (int i = 0; i < LISTED && first + i * step < call.blocks; i++) {
            if (i + 1 < LISTED) {
                stage_block(call, shared.list[i + 1], at, shared.staged[(i + 1) % STAGES]);
                await_groups<1>();
            } else {
                await_groups<0>();
            }
            const Wanted &block = shared.list[i];
            if (block.slot <= 0) continue;
            const Turn turn = turn_of(call.ended, first + i * step);
            const Place place = place_of(call.main, call.index, block.slot);
            const auto staged = shared.staged[i % STAGES];
            const float4 mean = block.fresh >= SLOTS - 1 ? staged_mean<true>(block, staged, ape)
                                                         : staged_mean<false>(block, staged, ape);
            store_block(place, mean, gain, turn, call.eps, shared.groups[made]);
            made ^= 1;
        }
        await_groups<0>();
    }
    const Saves &saves = call.saves;
    for (int nth = blockIdx.x; nth < saves.count; nth += gridDim.x) {
        const long long source = saves.source[nth];
        if (source < 0 || source >= saves.old) continue;
        const long long ring = call.chunks.ring[source / call.rings.span];
        const float *const from = call.rings.entry(ring, (int)(source % call.rings.span), 0);
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) {
            const int column = 4 * (i * POOL_THREADS + threadIdx.x);
            *reinterpret_cast<float4 *>(saves.fetched + nth * (long long)ROW + column) =
                four(from + column);
        }
    }
}

// Write one entry to its ring: what a token leaves, which is read before the launch that makes
// blocks has ended, or what that launch fetched.
__global__ void __launch_bounds__(POOL_THREADS) write_entries(const PoolChunks call) {
    const Saves &saves = call.saves;
    const long long nth = blockIdx.x, source = saves.source[nth], target = saves.target[nth];
    float4 entry[ROW_PARTS] = {};
    if (source >= saves.old) {
        const long long token = source - saves.old;
        const float *const from = call.from.rows + token * call.from.stride + 4 * threadIdx.x;
        const float *const ape =
            call.from.ape + call.chunks.position[token] % RATIO * ROW + 4 * threadIdx.x;
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++) {
            entry[i] = sum(four(from + 4 * i * POOL_THREADS), four(ape + 4 * i * POOL_THREADS));
        }
    }
    take_turn();
    if (source < 0) return;
    float *const to = call.rings.state + target * ROW + 4 * threadIdx.x;
    const float *const fetched = saves.fetched + nth * ROW + 4 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < ROW_PARTS; i++) {
        if (source < saves.old) entry[i] = four(fetched + 4 * i * POOL_THREADS);
        *reinterpret_cast<float4 *>(to + 4 * i * POOL_THREADS) = entry[i];
    }
}

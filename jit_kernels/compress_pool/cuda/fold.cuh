// Blocks of 128 tokens. A state is a maximum, a sum and a weighted sum; the order of the sums is
// that of the tokens. Maxima know no order: those before each token come first, then all weights at
// once, and what is left to do one after the other is two additions a token.
#pragma once

#include "cluster.cuh"
#include "pool.cuh"

constexpr int BLOCK = 128, FOLDED_ROW = 2 * MAIN, FOLD_THREADS = MAIN / 4;
constexpr int FOLD_WARPS = 8, EACH = BLOCK / FOLD_WARPS;

struct Banks {
    float *state;
    int count;

    __device__ long long bank(long long ring, long long position) const {
        const bool small = position < 1ll << 31;
        return ring * count +
               (small ? (unsigned)position % (unsigned)count : position % count);
    }
    __device__ float *at(long long bank) const { return state + bank * (3 * MAIN); }
};

// One channel of a state, and one token more.
struct Sums {
    float total, weighted;

    __device__ void add(float decay, float weight, float product) {
        total = fmaf(total, decay, weight);
        weighted = fmaf(weighted, decay, product);
    }
};

__device__ inline float4 quotients(float4 x, float4 y) {
    return make_float4(quotient(x.x, y.x), quotient(x.y, y.y), quotient(x.z, y.z),
                       quotient(x.w, y.w));
}

__device__ inline float scaled(float gate) { return __fmul_rn(gate, LOG2E); }

// What a token weighs, and what it takes from those before it; both gates are scaled, which changes
// no order of theirs.
struct Weight {
    float highest, decay, weight;
};

// The lower of both gates decides; what belongs to the higher one is one.
__device__ inline Weight weight_of(float before, float gate) {
    const float lower = power(-fabsf(__fsub_rn(before, gate)));
    const bool higher = gate > before;
    return {fmaxf(before, gate), higher ? lower : 1.0f, higher ? 1.0f : lower};
}

struct FoldTokens {
    Rows from;
    Banks banks;
    const long long *position;
    const int *ring;
    Ended ended;
    Pages pages;
    float eps;
};

__device__ inline void fold(float &highest, float &total, float &weighted, float kv, float gate) {
    const Weight one = weight_of(scaled(highest), scaled(gate));
    Sums sums = {total, weighted};
    sums.add(one.decay, one.weight, __fmul_rn(one.weight, kv));
    highest = fmaxf(highest, gate), total = sums.total, weighted = sums.weighted;
}

// Advance one decoding row: write its bank, store the record that it finishes.
__global__ void __launch_bounds__(FOLD_THREADS) fold_tokens(const FoldTokens call) {
    __shared__ float groups[GROUPS];
    const int thread = threadIdx.x, lane = thread % GROUP_LANES, group = thread / GROUP_LANES;
    const long long token = blockIdx.x;
    const float *const mine = call.from.rows + token * call.from.stride + 4 * thread;
    const float4 kv = four(mine), plain = four(mine + MAIN);
    const long long position = call.position[token], slot = call.ended.slots[token];
    const long long ring = call.ring[token];
    const float4 gain = four(call.pages.weight + 4 * thread);
    Turn turn = {};
    if (group == GROUPS - 1) turn.load(call.ended.turn(token), lane);
    if (position < 0) return;
    const int phase = position % BLOCK;
    const float4 ape = four(call.from.ape + phase * FOLDED_ROW + MAIN + 4 * thread);
    float4 highest = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY), total = {},
           weighted = {};
    if (phase) {
        const long long before = call.banks.bank(ring, position - 1);
        const float *const kept = call.banks.at(before) + 4 * thread;
        highest = four(kept), total = four(kept + MAIN), weighted = four(kept + 2 * MAIN);
    }
    const float4 gate = sum(plain, ape);
    fold(highest.x, total.x, weighted.x, kv.x, gate.x);
    fold(highest.y, total.y, weighted.y, kv.y, gate.y);
    fold(highest.z, total.z, weighted.z, kv.z, gate.z);
    fold(highest.w, total.w, weighted.w, kv.w, gate.w);
    float4 *const to =
        reinterpret_cast<float4 *>(call.banks.at(call.banks.bank(ring, position))) + thread;
    to[0] = highest, to[MAIN / 4] = total, to[MAIN / 2] = weighted;
    if (slot <= 0) return;
    float4 x = quotients(weighted, total);
    const float squares = squares_of_group(x);
    if (lane == 0) groups[group] = squares;
    __syncthreads();
    x = normed<MAIN>(x, squares_of_record(groups), gain, call.eps);
    store_group(call.pages, slot, group, lane, x, turn);
}

struct FoldChunks {
    Rows from;
    Banks banks;
    Chunks chunks;
    const long long *window_from;
    Ended ended;
    Saves saves;
    Pages pages;
    float eps;
    int blocks, tokens, rows;
};

__device__ inline float2 two(const float *from) { return *reinterpret_cast<const float2 *>(from); }
__device__ inline void put(float *to, float2 x) { *reinterpret_cast<float2 *>(to) = x; }

// What a cluster folds: tokens of phases [first, last] of a block, `token` being the last of them,
// from a bank on, or from nothing.
struct Part {
    long long token, bank;
    int first, last;
};

struct FoldShared {
    float kv[BLOCK][GROUP], gate[BLOCK][GROUP];
    float highest[FOLD_WARPS][GROUP], total[GROUP], weighted[GROUP];
    float groups[GROUPS], gain[GROUP], turn[2 * TURNED];
};

// Bring on its way what a record takes besides its tokens.
__device__ inline void stage_norm(const FoldChunks &call, long long nth, int group,
                                  FoldShared &shared) {
    const int thread = threadIdx.x;
    if (thread < GROUP_LANES) {
        copy_ahead(&shared.gain[4 * thread], call.pages.weight + group * GROUP + 4 * thread);
    }
    if (group == GROUPS - 1 && thread < 2 * GROUP_LANES) {
        copy_ahead(&shared.turn[4 * thread], call.ended.turn(nth) + 4 * thread);
    }
}

// Bring a warp's tokens of phases up to `last` on their way, those that lie where `token` says.
__device__ inline void stage_tokens(const FoldChunks &call, long long token, int last, int group,
                                    FoldShared &shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = 4 * (lane % GROUP_LANES);
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        const int phase = warp * EACH + i + lane / GROUP_LANES;
        const long long mine = token - (last - phase);
        if (phase > last || mine < 0) continue;
        const float *const row = call.from.rows + mine * call.from.stride + group * GROUP + column;
        copy_ahead(&shared.kv[phase][column], row);
        copy_ahead(&shared.gate[phase][column], row + MAIN);
    }
    end_copies();
}

// What there is to fold up to a token at a position, in a chunk that begins so.
__device__ inline Part part_from(const FoldChunks &call, long long token, long long position,
                                 const Begin &begin) {
    const int last = position % BLOCK;
    const long long fresh = position - begin.start;
    Part part = {token, -1, fresh < last ? last - (int)fresh : 0, last};
    if (part.first > 0 && begin.start > begin.from) {
        part.bank = call.banks.bank(begin.ring, begin.start - 1);
    }
    return part;
}

__device__ inline Part part_of(const FoldChunks &call, long long token) {
    const Chunks &chunks = call.chunks;
    const long long position = chunks.position[token], row = chunks.row[token];
    return part_from(call, token, position, begin_of(chunks, call.window_from, row));
}

// A warp's tokens of a part: those of its phases that are live, every one of them if WHOLE.
template <bool WHOLE>
struct Tokens {
    int first, last;

    __device__ bool live(int i) const { return WHOLE || (first <= i && i <= last); }

    // Add gates to ape, which is in `gate`; return the highest of a lane's two channels.
    __device__ float2 add_gates(float2 (&gate)[EACH], const float (*plain)[GROUP],
                                int column) const {
        float2 highest = make_float2(-INFINITY, -INFINITY);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float2 mine = two(&plain[i][column]);
            gate[i].x = live(i) ? __fadd_rn(mine.x, gate[i].x) : -INFINITY;
            gate[i].y = live(i) ? __fadd_rn(mine.y, gate[i].y) : -INFINITY;
            highest = make_float2(fmaxf(highest.x, gate[i].x), fmaxf(highest.y, gate[i].y));
        }
        return highest;
    }
    // Let weights take the place of gates, products that of kv, decays that of gates in
    // registers. A token that is none changes no bit.
    __device__ void weigh(float2 (&gate)[EACH], float2 highest, float (*weights)[GROUP],
                          float (*kv)[GROUP], int column) const {
        highest = make_float2(scaled(highest.x), scaled(highest.y));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float2 weight = make_float2(-0.0f, -0.0f), product = weight;
            float2 decay = make_float2(1.0f, 1.0f);
            if (live(i)) {
                const Weight low = weight_of(highest.x, scaled(gate[i].x));
                const Weight high = weight_of(highest.y, scaled(gate[i].y));
                const float2 value = two(&kv[i][column]);
                highest = make_float2(low.highest, high.highest);
                decay = make_float2(low.decay, high.decay);
                weight = make_float2(low.weight, high.weight);
                product = make_float2(__fmul_rn(weight.x, value.x), __fmul_rn(weight.y, value.y));
            }
            put(&weights[i][column], weight);
            put(&kv[i][column], product);
            gate[i] = decay;
        }
    }
};

// Fold a part whose tokens are on their way: leave its sums in shared memory, and return the maxima
// of a lane's two channels.
__device__ inline float2 fold_part(const FoldChunks &call, const Part &part, int group,
                                   FoldShared &shared) {
    const int warp = threadIdx.x / 32, column = 2 * (threadIdx.x % 32), begin = warp * EACH;
    const float *const kept = call.banks.at(part.bank < 0 ? 0 : part.bank) + group * GROUP + column;
    const float *const ape = call.from.ape + begin * FOLDED_ROW + MAIN + group * GROUP + column;
    const Tokens<true> all = {};
    const Tokens<false> some = {part.first - begin, part.last - begin};
    const bool whole = some.first <= 0 && some.last >= EACH - 1;
    float2 gate[EACH], highest = make_float2(-INFINITY, -INFINITY), total = {}, weighted = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) gate[i] = two(ape + i * FOLDED_ROW);
    if (part.bank >= 0) {
        highest = two(kept), total = two(kept + MAIN), weighted = two(kept + 2 * MAIN);
    }
    await_copies<0>();
    __syncwarp();
    const auto weights = shared.gate + begin, products = shared.kv + begin;
    put(&shared.highest[warp][column],
        whole ? all.add_gates(gate, weights, column) : some.add_gates(gate, weights, column));
    __syncthreads();
    float2 every = highest;
#pragma unroll
    for (int i = 0; i < FOLD_WARPS; i++) {
        const float2 theirs = two(&shared.highest[i][column]);
        if (i < warp) highest = make_float2(fmaxf(highest.x, theirs.x), fmaxf(highest.y, theirs.y));
        every = make_float2(fmaxf(every.x, theirs.x), fmaxf(every.y, theirs.y));
    }
    if (whole) {
        all.weigh(gate, highest, weights, products, column);
    } else {
        some.weigh(gate, highest, weights, products, column);
    }
    for (int turn = 0; turn < FOLD_WARPS; turn++) {
        if (turn == warp) {
            if (turn) total = two(&shared.total[column]), weighted = two(&shared.weighted[column]);
            Sums low = {total.x, weighted.x}, high = {total.y, weighted.y};
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float2 weight = two(&weights[i][column]), product = two(&products[i][column]);
                low.add(gate[i].x, weight.x, product.x);
                high.add(gate[i].y, weight.y, product.y);
            }
            put(&shared.total[column], make_float2(low.total, high.total));
            put(&shared.weighted[column], make_float2(low.weighted, high.weighted));
        }
        __syncthreads();
    }
    return every;
}

// Norm and store a record, of which each block of the cluster has the sums of a group.
__device__ inline void store_folded(const FoldChunks &call, long long slot, int group,
                                    FoldShared &shared) {
    const int lane = threadIdx.x % GROUP_LANES;
    const float4 x = quotients(four(&shared.weighted[4 * lane]), four(&shared.total[4 * lane]));
    Turn turn = {};
    if (group == GROUPS - 1) turn.load(shared.turn, lane);
    if (threadIdx.x < 32) {
        const float squares = squares_of_group(x);
        const unsigned at = (unsigned)__cvta_generic_to_shared(&shared.groups[group]);
        if (threadIdx.x < GROUPS) store_in_cluster(at, threadIdx.x, squares);
    }
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
    if (threadIdx.x >= 32) return;
    const float4 gain = four(&shared.gain[4 * lane]);
    const float4 y = normed<MAIN>(x, squares_of_record(shared.groups), gain, call.eps);
    store_group(call.pages, slot, group, lane, y, turn);
}

// Fold up to the end of a block and store its record, or up to a token whose state is saved and
// leave it in `fetched`. A cluster of GROUPS blocks has a part, each block 64 channels.
__global__ void __cluster_dims__(GROUPS, 1, 1) __launch_bounds__(FOLD_WARPS * 32, 3)
    fold_chunks(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    FoldShared &shared = *reinterpret_cast<FoldShared *>(memory);
    let_next_begin();
    const int nth = blockIdx.x / GROUPS, group = blockIdx.x % GROUPS;
    if (nth < call.blocks) {
        const long long slot = call.ended.slots[nth], token = call.chunks.last[nth];
        if (slot <= 0) return;
        // Others of the cluster must have begun when their memory is written.
        begin_in_cluster();
        stage_norm(call, nth, group, shared);
        // Where the chunk begins is not known yet: rows before it are read for nothing.
        stage_tokens(call, token, BLOCK - 1, group, shared);
        fold_part(call, part_of(call, token), group, shared);
        await_cluster();
        store_folded(call, slot, group, shared);
        return;
    }
    const Saves &saves = call.saves;
    const long long source = saves.source[nth - call.blocks];
    if (source < 0) return;
    const int thread = threadIdx.x;
    float *const to = saves.fetched + (nth - call.blocks) * (3ll * MAIN) + group * GROUP;
    if (source < saves.old) {
        const long long ring = call.chunks.ring[source / call.banks.count];
        const long long bank = ring * call.banks.count + source % call.banks.count;
        const float *const from = call.banks.at(bank) + group * GROUP;
        if (thread < 3 * GROUP) {
            const int at = thread / GROUP * MAIN + thread % GROUP;
            to[at] = from[at];
        }
        return;
    }
    const Part part = part_of(call, source - saves.old);
    stage_tokens(call, part.token, part.last, group, shared);
    const float2 highest = fold_part(call, part, group, shared);
    if (thread < 32) put(to + 2 * thread, highest);
    if (thread < GROUP) {
        to[MAIN + thread] = shared.total[thread];
        to[2 * MAIN + thread] = shared.weighted[thread];
    }
}

// Write one bank.
__global__ void __launch_bounds__(FOLD_THREADS) write_banks(const FoldChunks call) {
    const Saves &saves = call.saves;
    const long long nth = blockIdx.x, source = saves.source[nth], target = saves.target[nth];
    await_launch_before();
    if (source < 0) return;
    const float4 *const from =
        reinterpret_cast<const float4 *>(saves.fetched + nth * (3 * MAIN)) + threadIdx.x;
    float4 *const to = reinterpret_cast<float4 *>(call.banks.at(target)) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 3; i++) to[i * (MAIN / 4)] = from[i * (MAIN / 4)];
}

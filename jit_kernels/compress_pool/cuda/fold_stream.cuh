// Blocks of 128 tokens in large steps: a warp folds 128 channels of a part, token after token,
// while the tokens to come are on their way to its own piece of shared memory. Each lane reads what
// it asked for itself, four channels, so that nothing waits but for memory. Warps side by side fold
// the same channels of different parts and share what is added to their gates; the blocks of a
// cluster have the channels of a record.
#pragma once

#include "fold.cuh"

constexpr int SLICES = 4, SLICE = MAIN / SLICES, STAGE = 4;
// Tokens on their way to a block of threads, 1 KiB each.
constexpr int STREAMED = 96;

template <int PARTS>
struct StreamShared {
    float4 staged[PARTS][STREAMED / PARTS][2][32];
    float groups[PARTS][GROUPS];
};

// Four channels of a state; `scaled_highest` is what its name says.
struct Folded {
    float4 highest, scaled_highest, total, weighted;

    __device__ void begin(const float *bank) {
        const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        highest = scaled_highest = none, total = weighted = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!bank) return;
        highest = four(bank), total = four(bank + MAIN), weighted = four(bank + 2 * MAIN);
        scaled_highest = make_float4(scaled(highest.x), scaled(highest.y), scaled(highest.z),
                                     scaled(highest.w));
    }
    __device__ void add(float4 kv, float4 gate) {
        add_one(highest.x, scaled_highest.x, total.x, weighted.x, kv.x, gate.x);
        add_one(highest.y, scaled_highest.y, total.y, weighted.y, kv.y, gate.y);
        add_one(highest.z, scaled_highest.z, total.z, weighted.z, kv.z, gate.z);
        add_one(highest.w, scaled_highest.w, total.w, weighted.w, kv.w, gate.w);
    }
    __device__ static void add_one(float &highest, float &scaled_highest, float &total,
                                   float &weighted, float kv, float gate) {
        const Weight one = weight_of(scaled_highest, scaled(gate));
        Sums sums = {total, weighted};
        sums.add(one.decay, one.weight, __fmul_rn(one.weight, kv));
        highest = fmaxf(highest, gate), scaled_highest = one.highest;
        total = sums.total, weighted = sums.weighted;
    }
    __device__ void store(float *to) const {
        *reinterpret_cast<float4 *>(to) = highest;
        *reinterpret_cast<float4 *>(to + MAIN) = total;
        *reinterpret_cast<float4 *>(to + 2 * MAIN) = weighted;
    }
};

// Tokens of phases [first, last] on their way to a lane, AHEAD of them at once.
template <int AHEAD>
struct Stream {
    static constexpr int STAGES = AHEAD / STAGE, TOKEN = 2 * SLICE * sizeof(float);
    float4 (*staged)[2][32];
    long long stride;
    // Of the tokens to be asked for next: row, phase, place.
    const float *row;
    int first, last, phase, place;

    // `row_of` is that of the token of phase `to`.
    __device__ void begin(const float *row_of, int from, int to) {
        row = row_of - (to - from) * stride, first = phase = from, last = to, place = 0;
#pragma unroll 1
        for (int stage = 0; stage < STAGES; stage++) ask();
    }
    __device__ void ask() {
        const unsigned at =
            (unsigned)__cvta_generic_to_shared(&staged[place][0][threadIdx.x % 32]);
        if (phase + STAGE - 1 <= last) {
#pragma unroll
            for (int i = 0; i < STAGE; i++, row += stride) ask_one(at + i * TOKEN);
        } else {
#pragma unroll 1
            for (int i = 0; phase + i <= last; i++, row += stride) ask_one(at + i * TOKEN);
        }
        end_copies();
        phase += STAGE;
        place = place + STAGE == AHEAD ? 0 : place + STAGE;
    }
    __device__ void ask_one(unsigned at) const {
        copy_ahead(at, row);
        copy_ahead(at + TOKEN / 2, row + MAIN);
    }
    // Fold all of them; `ape` is that of phase 0. The place of the oldest is that of the next ones.
    __device__ void fold(const float *ape, Folded &state) {
        const int lane = threadIdx.x % 32;
        float4 added[STAGE];
#pragma unroll
        for (int i = 0; i < STAGE; i++) added[i] = four(ape + min(first + i, last) * FOLDED_ROW);
#pragma unroll 1
        for (int done = first; done <= last; done += STAGE) {
            float4 kv[STAGE], gate[STAGE];
            await_copies<STAGES - 1>();
#pragma unroll
            for (int i = 0; i < STAGE; i++) {
                kv[i] = staged[place + i][0][lane];
                gate[i] = sum(staged[place + i][1][lane], added[i]);
                added[i] = four(ape + min(done + STAGE + i, last) * FOLDED_ROW);
            }
            if (done + STAGE - 1 <= last) {
#pragma unroll
                for (int i = 0; i < STAGE; i++) state.add(kv[i], gate[i]);
            } else {
#pragma unroll
                for (int i = 0; i < STAGE; i++) {
                    if (done + i <= last) state.add(kv[i], gate[i]);
                }
            }
            ask();
        }
    }
};

template <int AHEAD>
__device__ inline void fold_streamed(const FoldChunks &call, const Part &part, int column,
                                     Stream<AHEAD> &stream, Folded &state) {
    state.begin(part.bank < 0 ? nullptr : call.banks.at(part.bank) + column);
    stream.fold(call.from.ape + MAIN + column, state);
}

__device__ inline const float *row_at(const FoldChunks &call, long long token, int column) {
    return call.from.rows + token * call.from.stride + column;
}

// Fold a block, and return its slot. What it is likely to be is asked for before it is known: the
// nth whole block of the only row, which begins with a block.
template <int AHEAD>
__device__ inline long long fold_ended(const FoldChunks &call, long long nth, int column,
                                       Stream<AHEAD> &stream, Folded &state) {
    const Chunks &chunks = call.chunks;
    const long long likely = nth * BLOCK + BLOCK - 1;
    const bool bold = call.rows == 1 && likely < call.tokens;
    const long long slot = call.ended.slots[nth], token = chunks.last[nth];
    long long position = 0, row = 0;
    if (bold) position = chunks.position[likely], row = chunks.row[likely];
    Begins begins;
    begins.load(chunks, call.window_from, call.rows);
    if (bold) stream.begin(row_at(call, likely, column), 0, BLOCK - 1);
    if (slot <= 0) {
        await_copies<0>();
        return 0;
    }
    const bool right = bold && token == likely;
    if (!right) position = chunks.position[token], row = chunks.row[token];
    const Part part =
        part_from(call, token, position, begins.of(chunks, call.window_from, row));
    if (!right || part.first > 0) {
        await_copies<0>();
        stream.begin(row_at(call, token, column), part.first, part.last);
    }
    fold_streamed(call, part, column, stream, state);
    return slot;
}

// Leave in `fetched` what an entry is to be.
template <int AHEAD>
__device__ inline void fold_saved(const FoldChunks &call, int nth, int column,
                                  Stream<AHEAD> &stream, Folded &state) {
    const Saves &saves = call.saves;
    const long long source = saves.source[nth];
    if (source < 0) return;
    if (source < saves.old) {
        const long long ring = call.chunks.ring[source / call.banks.count];
        const long long bank = ring * call.banks.count + source % call.banks.count;
        state.begin(call.banks.at(bank) + column);
    } else {
        const Part part = part_of(call, source - saves.old);
        stream.begin(row_at(call, part.token, column), part.first, part.last);
        fold_streamed(call, part, column, stream, state);
    }
    state.store(saves.fetched + nth * (3ll * MAIN) + column);
}

template <int PARTS>
__global__ void __cluster_dims__(SLICES, 1, 1) __launch_bounds__(PARTS * 32)
    fold_stream(const FoldChunks call) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto &shared = *reinterpret_cast<StreamShared<PARTS> *>(memory);
    let_next_begin();
    // Others of the cluster must have begun when their memory is written.
    begin_in_cluster();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = blockIdx.x % SLICES;
    const int nth = blockIdx.x / SLICES * PARTS + warp, column = slice * SLICE + 4 * lane;
    const int group = column / GROUP, group_lane = lane % GROUP_LANES;
    Stream<STREAMED / PARTS> stream = {shared.staged[warp], call.from.stride};
    Folded state;
    long long slot = 0;
    if (nth < call.blocks) {
        slot = fold_ended(call, nth, column, stream, state);
    } else if (nth - call.blocks < call.saves.count) {
        fold_saved(call, nth - call.blocks, column, stream, state);
    }
    __syncwarp();
    await_cluster();
    float4 x = {}, gain = {};
    Turn turn = {};
    if (slot > 0) {
        x = quotients(state.weighted, state.total);
        const float squares = squares_of_group(x);
        const unsigned at = (unsigned)__cvta_generic_to_shared(&shared.groups[warp][group]);
        if (group_lane < SLICES) store_in_cluster(at, group_lane, squares);
        gain = four(call.pages.weight + column);
        if (group == GROUPS - 1) turn.load(call.ended.turn(nth), group_lane);
    }
    __syncwarp();
    arrive_in_cluster();
    await_cluster();
    if (slot <= 0) return;
    const float4 y = normed<MAIN>(x, squares_of_record(shared.groups[warp]), gain, call.eps);
    store_group(call.pages, slot, group, group_lane, y, turn);
}

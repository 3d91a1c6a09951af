// Products of few rows and the 4-bit weights of their experts. An item is a block of rows of one
// expert and some lines of its weight; a block of threads goes through items that follow each
// other. Every warp streams its own 16 lines, 256 channels a step, through a ring that runs on from
// item to item. The rows are there for all of them, 1,024 channels at a time; who is the last to be
// done with such a chunk copies another one over it.
//
// A number of four bits becomes a bfloat16 by moving its bits, 2^126 too small; rows come 2^96 too
// large, so that products are numbers float32 keeps whole. Sums of 32 channels are scaled in it.
#pragma once

#include <cuda_bf16.h>

#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/order.cuh"
#include "device/tiles.cuh"

constexpr int STEP = 256, CHUNK = 1024, GROUP = 32;
constexpr int LINES = 16, LINE_BYTES = STEP / 2, STAGE_BYTES = LINES * LINE_BYTES;
// Rows begin 16 bytes apart modulo 128: those of a matrix are read without conflict.
constexpr int ROW_BYTES = CHUNK * 2 + 16;
// A line's scales of a chunk, apart so that those of eight lines are read without conflict.
constexpr int SCALE_BYTES = 48;
constexpr float DOWN_SHIFT = 1073741824.0f, UP_SHIFT = 7.922816251426434e28f;  // 2^30, 2^96

struct Call {
    const unsigned char *weight, *scales;
    const __nv_bfloat16 *rows;
    const int *slots, *expert;
    void *out;
    long long row_stride;
    // `lines` of the result; a slot divided by `share` is its row.
    int blocks, lines, depth, share;
    float limit;
    // Of a row that was not sorted: how many experts there are, and 4-byte words of an id of `expert`,
    // which may be none of theirs.
    int experts, id_words;
};

// EIGHTS  rows of a block by eight
template <int WARPS, int STAGES, int EIGHTS>
struct Shared {
    static constexpr int CHUNKS = EIGHTS == 1 ? 3 : 2;
    // Chunks whose scales are there or asked for: that of the step at work, and those ahead.
    static constexpr int SCALED = STAGES / (CHUNK / STEP) + 1;
    static_assert(STAGES % (CHUNK / STEP) == 0);
    unsigned char weight[WARPS][STAGES][STAGE_BYTES];
    unsigned char rows[CHUNKS][8 * EIGHTS * ROW_BYTES];
    unsigned char scales[WARPS][SCALED][LINES * SCALE_BYTES];
    unsigned long long full[CHUNKS];
    int done[CHUNKS];
};

// Blocks that have an expert, which come first; all threads ask.
__device__ inline int live_blocks(const Call &call) {
    int blocks = 0;
    for (int first = 0; first < call.blocks; first += blockDim.x) {
        const int block = first + threadIdx.x;
        blocks += __syncthreads_count(block < call.blocks && call.expert[block] >= 0);
    }
    return blocks;
}

// The items of this block of threads, of all those of `blocks`.
struct Work {
    int tiles, begin, end;

    __device__ Work(const Call &call, int tile_lines, int blocks) {
        tiles = call.lines / tile_lines;
        const unsigned items = blocks * tiles, each = items / gridDim.x;
        // The first blocks of threads have what is left over.
        const unsigned over = items - each * gridDim.x;
        begin = each * blockIdx.x + min(blockIdx.x, over);
        end = begin + each + (blockIdx.x < over);
    }
};

// A warp's way through the weights of its items, some steps ahead of the products. With GATES, the
// upper eight lines are those that multiply the lower ones' gates.
template <int WARPS, int STAGES, int EIGHTS, bool GATES>
struct Stream {
    static constexpr int OWN = GATES ? LINES / 2 : LINES;
    const Call &call;
    const Work &work;
    const unsigned char *line, *scale;
    unsigned to, scale_to;
    int item, step, steps, warp, lane;
    unsigned nth;
    long long upper;

    __device__ Stream(const Call &call, const Work &work, Shared<WARPS, STAGES, EIGHTS> &shared,
                      int warp)
        : call(call), work(work), item(work.begin), step(0), steps(call.depth / STEP),
          warp(warp), lane(threadIdx.x % 32), nth(0) {
        upper = (GATES ? call.lines : LINES / 2) * (long long)(call.depth / 2);
        // A lane copies a sixteenth of every fourth line, and half the scales of one line.
        to = shared_address(shared.weight[warp]);
        to += lane / 8 * LINE_BYTES + (lane % 8 ^ lane / 8) * 16;
        scale_to = shared_address(shared.scales[warp]) + lane / 2 * SCALE_BYTES + lane % 2 * 16;
        find();
    }
    __device__ void find() {
        if (item >= work.end) return;
        const long long expert = __ldg(call.expert + item / work.tiles);
        const long long first = expert * (GATES ? 2 : 1) * call.lines +
                                (item % work.tiles * WARPS + warp) * OWN;
        line = call.weight + (first + lane / 8) * (call.depth / 2) + lane % 8 * 16;
        const int mine = lane / 2;
        const long long half = mine < LINES / 2 || !GATES ? 0 : call.lines - LINES / 2;
        scale = call.scales + (first + mine + half) * (call.depth / GROUP) + lane % 2 * 16;
    }
    // Ask for one step more.
    __device__ void ask() {
        if (item < work.end) {
            const unsigned stage = to + nth % STAGES * STAGE_BYTES;
            const unsigned char *const from = line + step * LINE_BYTES;
            const long long four = 4ll * (call.depth / 2);
            // Of lines four further on bit 2 of their number is turned over.
            copy_ahead(stage, from);
            copy_ahead((stage + 4 * LINE_BYTES) ^ 64, from + four);
            copy_ahead(stage + 8 * LINE_BYTES, from + upper);
            copy_ahead((stage + 12 * LINE_BYTES) ^ 64, from + upper + four);
            if (step % (CHUNK / STEP) == 0) {
                const int slot = nth / (CHUNK / STEP) % Shared<WARPS, STAGES, EIGHTS>::SCALED;
                copy_ahead(scale_to + slot * LINES * SCALE_BYTES, scale + step * (STEP / GROUP));
            }
            nth++;
            if (++step == steps) {
                step = 0;
                item++;
                find();
            }
        }
        close_group();
    }
};

// Of a word of four numbers, the first two parts and the last two as bfloat16.
__device__ inline void unpack(unsigned word, unsigned (&parts)[4]) {
    parts[0] = word & 0x81c081c0u;
    parts[1] = word << 3 & 0x81c081c0u;
    // Both shifts at once: 66 is 2^6 + 2^1, and no two of the bits that are left meet.
    parts[2] = (word & 0x40074007u) * 66 & 0x81c081c0u;
    parts[3] = (word >> 3 & 0x01c001c0u) | (word << 2 & 0x80008000u);
}

// One of the four scales in a word, b standing for 2^(b - 127).
__device__ inline float scale_of(unsigned word, int nth) {
    const unsigned bits = nth < 3 ? word << (23 - 8 * nth) : word >> 1;
    return __uint_as_float(bits & 0x7f800000u);
}

// Add one step's products to a warp's sums. A lane's row is the one it names when matrices of rows
// are loaded: number lane % 8 of eight, from channel lane / 8 * 8 on. Scales of two lines lie
// SCALE_PITCH bytes apart.
template <int EIGHTS, int SCALE_PITCH>
__device__ inline void multiply_step(float (&sums)[EIGHTS][4], unsigned weight, unsigned row,
                                     const unsigned char *scales) {
    const int lane = threadIdx.x % 32;
    const uint2 low = *reinterpret_cast<const uint2 *>(scales + lane / 4 * SCALE_PITCH);
    const uint2 high = *reinterpret_cast<const uint2 *>(scales + (lane / 4 + 8) * SCALE_PITCH);
    // Lanes name lines 0 to 15 of one group of 32 channels, then of the next.
    const int line = lane % 16;
#pragma unroll
    for (int pair = 0; pair < STEP / GROUP / 2; pair++) {
        unsigned words[4];
        const int place = (2 * pair + lane / 16) ^ (line & 7);
        load_matrices(words, weight + line * LINE_BYTES + place * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int group = 2 * pair + half;
            unsigned upper[4], lower[4];
            unpack(words[2 * half], upper);
            unpack(words[2 * half + 1], lower);
            const float first = scale_of(group < 4 ? low.x : low.y, group % 4);
            const float second = scale_of(group < 4 ? high.x : high.y, group % 4);
#pragma unroll
            for (int eight = 0; eight < EIGHTS; eight++) {
                unsigned b[4];
                load_matrices(b, row + eight * 8 * ROW_BYTES + group * (GROUP * 2));
                float part[4] = {};
                multiply(part, {upper[0], lower[0], upper[1], lower[1]}, {b[0], b[1]});
                multiply(part, {upper[2], lower[2], upper[3], lower[3]}, {b[2], b[3]});
                sums[eight][0] = fmaf(part[0], first, sums[eight][0]);
                sums[eight][1] = fmaf(part[1], first, sums[eight][1]);
                sums[eight][2] = fmaf(part[2], second, sums[eight][2]);
                sums[eight][3] = fmaf(part[3], second, sums[eight][3]);
            }
        }
    }
}

// Write a lane's sums of lines `line` and the eighth after it for one slot, if it has a pair: gated
// and 2^96 too large for the next product, or as they are.
template <bool GATES>
__device__ inline void store(const Call &call, float lower, float upper, long long slot,
                             int line) {
    if (slot < 0) return;
    const long long at = slot * call.lines + line;
    lower *= DOWN_SHIFT;
    upper *= DOWN_SHIFT;
    if (GATES) {
        const float gate = fminf(lower, call.limit);
        const float up = fminf(fmaxf(upper, -call.limit), call.limit);
        const __nv_bfloat16 hidden =
            __float2bfloat16_rn(__fdividef(gate, 1.0f + __expf(-gate)) * up);
        static_cast<__nv_bfloat16 *>(call.out)[at] =
            __float2bfloat16_rn(__bfloat162float(hidden) * UP_SHIFT);
    } else {
        static_cast<float *>(call.out)[at] = lower;
        static_cast<float *>(call.out)[at + 8] = upper;
    }
}

// Write a warp's sums of one item.
template <int EIGHTS, bool GATES>
__device__ inline void store(const Call &call, const float (&sums)[EIGHTS][4], int block,
                             int line) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) {
        const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
        const int slot = __ldg(call.slots + block * (8 * EIGHTS) + row);
        store<GATES>(call, sums[i / 2][i % 2], sums[i / 2][i % 2 + 2], slot, line + lane / 4);
    }
}

// Copy the `nth` chunk of rows of all that the items take, if there is one; a lane has a row.
template <int WARPS, int STAGES, int EIGHTS>
__device__ inline void copy_rows(const Call &call, const Work &work,
                                 Shared<WARPS, STAGES, EIGHTS> &shared, unsigned nth) {
    constexpr int CHUNKS = Shared<WARPS, STAGES, EIGHTS>::CHUNKS, ROWS = 8 * EIGHTS;
    const unsigned chunks = call.depth / CHUNK;
    const int item = work.begin + nth / chunks, place = nth % CHUNKS, lane = threadIdx.x % 32;
    if (item >= work.end) return;
    const int slot = lane < ROWS ? __ldg(call.slots + item / work.tiles * ROWS + lane) : -1;
    const int live = __popc(__ballot_sync(ALL, slot >= 0));
    if (lane == 0) expect_bytes(&shared.full[place], live * CHUNK * 2);
    __syncwarp();
    if (slot < 0) return;
    const __nv_bfloat16 *const row = call.rows + slot / call.share * call.row_stride;
    bulk_copy(shared.rows[place] + lane * ROW_BYTES, row + nth % chunks * CHUNK, CHUNK * 2,
              &shared.full[place]);
}

// Say that this warp is done with a chunk of rows; the last one copies what takes its place.
template <int WARPS, int STAGES, int EIGHTS>
__device__ inline void give_back(const Call &call, const Work &work,
                                 Shared<WARPS, STAGES, EIGHTS> &shared, unsigned nth) {
    constexpr int CHUNKS = Shared<WARPS, STAGES, EIGHTS>::CHUNKS;
    int before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence_block();
        before = atomicAdd(&shared.done[nth % CHUNKS], 1);
        __threadfence_block();
        if (before == WARPS - 1) shared.done[nth % CHUNKS] = 0;
    }
    if (__shfl_sync(ALL, before, 0) != WARPS - 1) return;
    show_to_copies();
    copy_rows(call, work, shared, nth + CHUNKS);
}

template <int WARPS, int STAGES, int EIGHTS, bool GATES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    stream_experts(const __grid_constant__ Call call) {
    constexpr int CHUNKS = Shared<WARPS, STAGES, EIGHTS>::CHUNKS;
    constexpr int SCALED = Shared<WARPS, STAGES, EIGHTS>::SCALED;
    constexpr int OWN = GATES ? LINES / 2 : LINES;
    extern __shared__ __align__(128) unsigned char memory[];
    auto &shared = *reinterpret_cast<Shared<WARPS, STAGES, EIGHTS> *>(memory);
    if (threadIdx.x < CHUNKS) {
        make_barrier(&shared.full[threadIdx.x]);
        shared.done[threadIdx.x] = 0;
    }
    show_to_copies();
    __syncthreads();
    const Work work(call, WARPS * OWN, live_blocks(call));
    const int warp = warp_number();
    if (warp == 0) {
        for (int nth = 0; nth < CHUNKS; nth++) copy_rows(call, work, shared, nth);
    }
    Stream<WARPS, STAGES, EIGHTS, GATES> stream(call, work, shared, warp);
    for (int stage = 0; stage < STAGES - 1; stage++) stream.ask();
    const unsigned weight = shared_address(shared.weight[warp]);
    const unsigned lane_row = threadIdx.x % 8 * ROW_BYTES + threadIdx.x % 32 / 8 * 16;
    unsigned chunk = 0;
    for (int item = work.begin; item < work.end; item++) {
        float sums[EIGHTS][4] = {};
        for (int channel = 0; channel < call.depth; channel += CHUNK, chunk++) {
            const int place = chunk % CHUNKS;
            await_own_phase(&shared.full[place], chunk / CHUNKS % 2);
            const unsigned row = shared_address(shared.rows[place]) + lane_row;
            const unsigned char *const scales = shared.scales[warp][chunk % SCALED];
#pragma unroll 1
            for (int step = 0; step < CHUNK / STEP; step++) {
                // The stage that is asked for was multiplied in the step before.
                await_groups<STAGES - 2>();
                __syncwarp();
                stream.ask();
                const unsigned stage = (chunk * (CHUNK / STEP) + step) % STAGES;
                multiply_step<EIGHTS, SCALE_BYTES>(sums, weight + stage * STAGE_BYTES,
                                                   row + step * (STEP * 2),
                                                   scales + step * (STEP / GROUP));
            }
            give_back(call, work, shared, chunk);
        }
        store<EIGHTS, GATES>(call, sums, item / work.tiles,
                             (item % work.tiles * WARPS + warp) * OWN);
    }
    await_groups<0>();
}

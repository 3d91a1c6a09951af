// Products of blocks of eight rows in small parts. A unit is a block and 16 lines of its expert's
// weight, and one warp's: 1,536 of them for six experts of 4,096 lines fill twelve warps of 128
// multiprocessors, each with the bytes of a whole ring under way from the start. A block of threads
// goes through units that follow each other. Its warps wait for each other only where rows change:
// it has all channels of the rows of a phase, which is as many blocks as have eight rows between
// them. Sums are those of `stream.cuh`, in the same order.
//
// A single row is not sorted: each of its choices is a block of one pair. An expert that is none of
// those here gives zeros: its row is cleared, and the weights of the first expert are taken.
#pragma once

#include "stream.cuh"

namespace units {

constexpr int WARPS = 12, THREADS = WARPS * 32, STAGES = 3;
// Of a thread: all that there are. Told the number of threads instead, the compiler spills some.
constexpr int REGISTERS = 168;
// Rows of a block and of a phase, and the most blocks of a phase.
constexpr int ROWS = 8, BLOCKS = 8;
// A stage is two steps, one after the other, then the scales of both line by line.
constexpr int STEPS = 2, SCALES = STEPS * STEP / GROUP;
constexpr int STAGE = STEPS * STAGE_BYTES + LINES * SCALES;
static_assert(CHUNK % (STEPS * STEP) == 0 && SCALES == 16 && STAGE % 128 == 0);

struct Shared {
    unsigned char stages[WARPS][STAGES][STAGE];
    unsigned long long full;
    // Rows of `row_bytes`, as many as there are in a phase.
    __align__(16) unsigned char rows[];
};

// Rows begin 16 bytes apart modulo 128: those of a matrix are read without conflict.
__host__ __device__ constexpr int row_bytes(int depth) { return depth * 2 + 16; }
__host__ __device__ constexpr int shared_bytes(int depth) {
    return sizeof(Shared) + ROWS * row_bytes(depth);
}

// The expert that a row has chosen; -1 if it is none of those here. An id's first word is its value.
__device__ inline int choice_of(const Call &call, int block) {
    const int id = call.expert[block * call.id_words];
    return 0 <= id && id < call.experts ? id : -1;
}

// A warp's way through the weights of its units, a ring ahead of the products. With GATES, the
// upper eight lines are those that multiply the lower ones' gates.
template <bool GATES, bool SORTED>
struct Stream {
    static constexpr int OWN = GATES ? LINES / 2 : LINES;
    const Call &call;
    const Work &work;
    const unsigned char *line, *scale;
    unsigned to, scale_to, ring;
    int unit, left, lane;
    long long upper;

    __device__ Stream(const Call &call, const Work &work, unsigned stages, int warp)
        : call(call), work(work), ring(0), unit(work.begin + warp), lane(threadIdx.x % 32) {
        upper = (GATES ? call.lines : LINES / 2) * (long long)(call.depth / 2);
        // A lane copies an eighth of every fourth line of a step, and the scales of one line.
        to = stages + lane / 8 * LINE_BYTES + (lane % 8 ^ lane / 8) * 16;
        scale_to = stages + STEPS * STAGE_BYTES + lane % LINES * SCALES;
        find();
    }
    __device__ void find() {
        left = call.depth / (STEPS * STEP);
        if (unit >= work.end) return;
        const int block = unit / work.tiles;
        const long long expert = SORTED ? call.expert[block] : max(choice_of(call, block), 0);
        const long long first = expert * (GATES ? 2 : 1) * call.lines + unit % work.tiles * OWN;
        line = call.weight + (first + lane / 8) * (call.depth / 2) + lane % 8 * 16;
        const int mine = lane % LINES;
        const int half = mine < LINES / 2 || !GATES ? 0 : call.lines - LINES / 2;
        scale = call.scales + (first + mine + half) * (call.depth / GROUP);
    }
    // Ask for one stage more.
    __device__ void ask() {
        if (unit < work.end) {
            const long long four = 4ll * (call.depth / 2);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const unsigned stage = to + ring + step * STAGE_BYTES;
                // Of lines four further on bit 2 of their number is turned over.
                const unsigned turned = (to ^ 64) + ring + step * STAGE_BYTES;
                const unsigned char *const from = line + step * LINE_BYTES;
                copy_ahead(stage, from);
                copy_ahead(turned + 4 * LINE_BYTES, from + four);
                copy_ahead(stage + 8 * LINE_BYTES, from + upper);
                copy_ahead(turned + 12 * LINE_BYTES, from + upper + four);
            }
            if (lane < LINES) copy_ahead(scale_to + ring, scale);
            line += STEPS * LINE_BYTES;
            scale += SCALES;
            if (--left == 0) {
                unit += WARPS;
                find();
            }
        }
        ring = ring == (STAGES - 1) * STAGE ? 0 : ring + STAGE;
        close_group();
    }
};

// Blocks whose rows are there together. Every warp has the slots of all, four blocks a register.
template <bool SORTED>
struct Phase {
    int first, end, slots[2];
    // A bit for each place of the blocks that has a row, in the order that rows lie in.
    unsigned long long live;

    __device__ Phase(const Call &call, const Work &work, int first) : first(first), live(0) {
        const int lane = threadIdx.x % 32, last = (work.end - 1) / work.tiles;
        unsigned found[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int block = first + half * (BLOCKS / 2) + lane / ROWS;
            slots[half] = -1;
            if (SORTED && block <= last) slots[half] = call.slots[block * ROWS + lane % ROWS];
            if (!SORTED && block <= last && lane % ROWS == 0) slots[half] = block;
            found[half] = __ballot_sync(ALL, slots[half] >= 0);
        }
        const unsigned long long all = (unsigned long long)found[1] << 32 | found[0];
        int blocks = 1;
        while (blocks < BLOCKS && first + blocks <= last &&
               __popcll(all & before((blocks + 1) * ROWS)) <= ROWS) {
            blocks++;
        }
        live = all & before(blocks * ROWS);
        end = min(work.end, (first + blocks) * work.tiles);
    }
    // A bit for each of the places before this one, at most 64.
    __device__ static unsigned long long before(int place) {
        return place < 64 ? (1ull << place) - 1 : ~0ull;
    }
    __device__ int rows() const { return __popcll(live); }
    // Where the row of a place is; for a place without one, where another of its block is.
    __device__ int row_of(int place) const {
        return __popcll(live & before(live >> place & 1 ? place : place / ROWS * ROWS));
    }
    // The slot of a place; all lanes of a warp ask for one of the same block.
    __device__ int slot_of(int place) const {
        return __shfl_sync(ALL, place < 32 ? slots[0] : slots[1], place % 32);
    }
};

// Let one warp copy all rows of a phase.
template <bool SORTED>
__device__ inline void copy_rows(const Call &call, Shared &shared, const Phase<SORTED> &phase) {
    const int lane = threadIdx.x % 32, bytes = call.depth * 2;
    if (lane == 0) expect_bytes(&shared.full, phase.rows() * bytes);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int place = half * 32 + lane;
        if (!(phase.live >> place & 1)) continue;
        bulk_copy(shared.rows + phase.row_of(place) * row_bytes(call.depth),
                  call.rows + phase.slots[half] / call.share * call.row_stride, bytes,
                  &shared.full);
    }
}

// Make the rows of the first product 2^96 times larger, or clear them.
template <bool SORTED>
__device__ inline void enlarge_rows(const Call &call, Shared &shared,
                                    const Phase<SORTED> &phase) {
    const int pieces = call.depth / 8, rows = phase.rows();
    for (int piece = threadIdx.x; piece < rows * pieces; piece += THREADS) {
        const int nth = piece / pieces;
        unsigned char *const row = shared.rows + nth * row_bytes(call.depth);
        uint4 &at = reinterpret_cast<uint4 *>(row)[piece % pieces];
        if (!SORTED && choice_of(call, phase.first + nth) < 0) {
            at = {};
            continue;
        }
        unsigned words[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
        for (unsigned &word : words) {
            const __nv_bfloat162 larger =
                __floats2bfloat162_rn(__uint_as_float(word << 16) * UP_SHIFT,
                                      __uint_as_float(word & 0xffff0000u) * UP_SHIFT);
            word = *reinterpret_cast<const unsigned *>(&larger);
        }
        at = {words[0], words[1], words[2], words[3]};
    }
    __syncthreads();
}

// Whoever launches this lets its launch be prepared while the one before ends: gates wait for what
// chose the experts or sorted the pairs, the second product asks for a stage of weights before it waits
// for the first one's rows. All else is asked for after rows: copies come in the order of requests, and
// until rows are there no stage is free again.
template <bool GATES, bool SORTED>
__global__ void __maxnreg__(REGISTERS) stream_units(const __grid_constant__ Call call) {
    constexpr int OWN = Stream<GATES, SORTED>::OWN;
    extern __shared__ __align__(128) unsigned char memory[];
    auto &shared = *reinterpret_cast<Shared *>(memory);
    const int warp = warp_number(), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) make_barrier(&shared.full);
    show_to_copies();
    if (GATES) {
        await_launch_before();
        let_next_begin();
    }
    const Work work(call, OWN, SORTED ? live_blocks(call) : call.blocks);
    const unsigned stages = shared_address(shared.stages[warp]);
    Phase<SORTED> phase(call, work, work.begin / work.tiles);
    const bool copies = warp == 0 && work.begin < work.end;
    if (GATES && copies) copy_rows(call, shared, phase);
    Stream<GATES, SORTED> stream(call, work, stages, warp);
    if (!GATES) {
        stream.ask();
        await_launch_before();
        if (copies) copy_rows(call, shared, phase);
    }
    __syncthreads();
    for (int stage = GATES ? 0 : 1; stage < STAGES; stage++) stream.ask();
    int unit = work.begin + warp;
    unsigned ring = 0;
    for (int done = work.begin, nth = 0; done < work.end; nth++) {
        if (nth) {
            phase = Phase<SORTED>(call, work, done / work.tiles);
            if (warp == 0) copy_rows(call, shared, phase);
        }
        await_own_phase(&shared.full, nth % 2);
        if (GATES) enlarge_rows(call, shared, phase);
        for (; unit < phase.end; unit += WARPS) {
            const int first = (unit / work.tiles - phase.first) * ROWS;
            unsigned row = shared_address(shared.rows) + lane / 8 * 16 +
                           phase.row_of(first + lane % ROWS) * row_bytes(call.depth);
            float sums[1][4] = {};
#pragma unroll 1
            for (int stage = 0; stage < call.depth / (STEPS * STEP); stage++) {
                await_groups<STAGES - 1>();
                __syncwarp();
                const unsigned char *const scales =
                    shared.stages[warp][0] + ring + STEPS * STAGE_BYTES;
#pragma unroll
                for (int step = 0; step < STEPS; step++, row += STEP * 2) {
                    multiply_step<1, SCALES>(sums, stages + ring + step * STAGE_BYTES, row,
                                             scales + step * (STEP / GROUP));
                }
                ring = ring == (STAGES - 1) * STAGE ? 0 : ring + STAGE;
                // All lanes are done with the stage that is asked for anew.
                __syncwarp();
                stream.ask();
            }
            const int line = unit % work.tiles * OWN + lane / 4;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int slot = phase.slot_of(first + lane % 4 * 2 + i);
                store<GATES>(call, sums[0][i], sums[0][i + 2], slot, line);
            }
        }
        done = phase.end;
        // Rows that were multiplied give way to copies of others.
        show_to_copies();
        __syncthreads();
    }
    await_groups<0>();
}

}  // namespace units

// Pairs sorted by expert without a comparison: a pair's place is where its expert's blocks begin, plus
// the pairs of that expert before it. Those are counted chunk by chunk, in a chunk warp by warp, and
// in a warp by lanes that look for their like; so the order is that of the pairs, whatever runs first.
#pragma once

#include "device/lanes.cuh"
#include "device/order.cuh"

constexpr int MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / 32, MOST_EXPERTS = 512;

struct Call {
    const void *experts;
    // Of each chunk, two experts a word, the lower one in the lower half.
    unsigned *counts;
    int *slots, *whose, *member, *place;
    // Of each kind so many; a chunk and what a block of `1 << shift` places holds are pairs.
    int pairs, chunk, num_experts, shift, limit;

    __device__ int words() const { return (num_experts + 1) / 2; }
    __device__ int size() const { return 1 << shift; }
    __device__ int blocks_of(int count) const { return (count + size() - 1) >> shift; }
};

struct alignas(16) Shared {
    union {
        // Pairs of each expert in the warps before, of one tile; eight experts are 16 bytes.
        unsigned short before[MOST_WARPS][MOST_EXPERTS];
        // Pairs of two experts in some of the chunks: of all, and of those before this one.
        int parts[4][MOST_THREADS];
    };
    // The place of the next pair of an expert; how many pairs it has, and its first block.
    int next[MOST_EXPERTS], count[MOST_EXPERTS], first[MOST_EXPERTS];
    int sums[32];
};

// The expert of a pair, -1 past the end and for those of other ranks.
template <class Id>
__device__ inline int expert_of(const Call &call, int pair, int end) {
    if (pair >= end) return -1;
    const Id id = static_cast<const Id *>(call.experts)[pair];
    return id >= 0 && id < call.num_experts ? (int)id : -1;
}

// Count the pairs of a tile, one a thread, all of the block. Returns how many pairs the thread's
// number, as an expert, has in the tile; `rank` becomes how many the pair has before it in its warp.
__device__ inline int count_tile(const Call &call, Shared &shared, int expert, int &rank) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int eights = (call.num_experts + 7) / 8;
    __syncthreads();
    for (int i = threadIdx.x; i < warps * eights; i += blockDim.x) {
        const int line = i / eights;
        reinterpret_cast<uint4 *>(shared.before[line])[i - line * eights] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    const unsigned alike = __match_any_sync(ALL, expert);
    rank = __popc(alike & ((1u << (threadIdx.x % 32)) - 1));
    if (expert >= 0 && rank == 0) shared.before[warp][expert] = (unsigned short)__popc(alike);
    __syncthreads();
    int total = 0;
    if (threadIdx.x < call.num_experts) {
        constexpr int AT_ONCE = 8;
        for (int first = 0; first < warps; first += AT_ONCE) {
            int found[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                found[j] = first + j < warps ? shared.before[first + j][threadIdx.x] : 0;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (first + j < warps) shared.before[first + j][threadIdx.x] = (unsigned short)total;
                total += found[j];
            }
        }
    }
    return total;
}

// Write where the pair of each thread is, and that it is there. What `next` says must be seen by all.
__device__ inline void put_tile(const Call &call, const Shared &shared, int pair, int end, int expert,
                                int rank) {
    if (pair >= end) return;
    int at = -1;
    if (expert >= 0) {
        at = shared.next[expert] + shared.before[threadIdx.x / 32][expert] + rank;
        call.slots[at] = pair;
        call.member[at] = expert;
    }
    call.place[pair] = at;
}

// Add up the counts of all chunks for the thread's number as an expert: `count` of all of them, and
// what it returns of those before this block's.
__device__ inline int sum_chunks(const Call &call, Shared &shared, int &count) {
    const int words = call.words(), groups = min(MOST_THREADS / words, 32), chunks = gridDim.x;
    const int group = threadIdx.x / words, word = threadIdx.x - group * words;
    int low = 0, high = 0, low_before = 0, high_before = 0;
    if (group < groups) {
#pragma unroll 8
        for (int chunk = group; chunk < chunks; chunk += groups) {
            const unsigned two = call.counts[chunk * words + word];
            const int is_before = chunk < (int)blockIdx.x;
            low += two & 0xffffu;
            high += two >> 16;
            low_before += is_before ? two & 0xffffu : 0;
            high_before += is_before ? two >> 16 : 0;
        }
    }
    shared.parts[0][threadIdx.x] = low;
    shared.parts[1][threadIdx.x] = high;
    shared.parts[2][threadIdx.x] = low_before;
    shared.parts[3][threadIdx.x] = high_before;
    __syncthreads();
    int before = 0;
    count = 0;
    if (threadIdx.x < call.num_experts) {
        const int half = threadIdx.x % 2, mine = threadIdx.x / 2;
        for (int i = 0; i < groups; i++) {
            count += shared.parts[half][i * words + mine];
            before += shared.parts[2 + half][i * words + mine];
        }
    }
    return before;
}

// Lay the blocks of all experts one after the other; a thread gives the pairs of its number as an
// expert, and those before this block's chunk. Returns how many blocks there are.
__device__ inline int lay_blocks(const Call &call, Shared &shared, int count, int before) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int mine = call.blocks_of(count);
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) shared.sums[warp] = upto;
    __syncthreads();
    const int sum = lane < warps ? shared.sums[lane] : 0;
    const int first = __reduce_add_sync(ALL, lane < warp ? sum : 0) + upto - mine;
    if (threadIdx.x < call.num_experts) {
        shared.count[threadIdx.x] = count;
        shared.first[threadIdx.x] = first;
        shared.next[threadIdx.x] = (first << call.shift) + before;
    }
    __syncthreads();
    return __reduce_add_sync(ALL, sum);
}

// Write whose each block is, and -1 to what no pair is put at; the grid shares it out, a warp to an
// expert.
__device__ inline void fill_rest(const Call &call, const Shared &shared, int used) {
    constexpr int LANES = 32;
    const int lane = threadIdx.x % LANES, teams = blockDim.x / LANES;
    int e = threadIdx.x / LANES * gridDim.x + blockIdx.x;
    for (; e < call.num_experts; e += teams * gridDim.x) {
        const int count = shared.count[e], first = shared.first[e], blocks = call.blocks_of(count);
        for (int block = lane; block < blocks; block += LANES) call.whose[first + block] = e;
        for (int i = count + lane; i < blocks << call.shift; i += LANES) {
            call.slots[(first << call.shift) + i] = -1;
            call.member[(first << call.shift) + i] = -1;
        }
    }
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (int i = (used << call.shift) + thread; i < call.limit << call.shift; i += threads) {
        call.slots[i] = -1;
        call.member[i] = -1;
    }
    for (int block = used + thread; block < call.limit; block += threads) call.whose[block] = -1;
}

// Write how many pairs each expert has in one chunk.
template <class Id>
__global__ void __launch_bounds__(MOST_THREADS) count_pairs(const __grid_constant__ Call call) {
    __shared__ Shared shared;
    await_launch_before();
    const int begin = blockIdx.x * call.chunk, end = min(begin + call.chunk, call.pairs);
    int total = 0;
    for (int first = begin; first < end; first += blockDim.x) {
        int rank;
        const int expert = expert_of<Id>(call, first + threadIdx.x, end);
        total += count_tile(call, shared, expert, rank);
    }
    // Two neighbours' counts make a word.
    const int next = __shfl_down_sync(ALL, total, 1);
    if (threadIdx.x % 2 == 0 && threadIdx.x / 2 < call.words()) {
        call.counts[blockIdx.x * call.words() + threadIdx.x / 2] = total | (unsigned)next << 16;
    }
}

// Place the pairs of one chunk.
template <class Id>
__global__ void __launch_bounds__(MOST_THREADS) place_pairs(const __grid_constant__ Call call) {
    __shared__ Shared shared;
    await_launch_before();
    const int begin = blockIdx.x * call.chunk, end = min(begin + call.chunk, call.pairs);
    int count;
    const int before = sum_chunks(call, shared, count);
    const int used = lay_blocks(call, shared, count, before);
    for (int first = begin; first < end; first += blockDim.x) {
        int rank;
        const int expert = expert_of<Id>(call, first + threadIdx.x, end);
        const int total = count_tile(call, shared, expert, rank);
        __syncthreads();
        put_tile(call, shared, first + threadIdx.x, end, expert, rank);
        __syncthreads();
        if (threadIdx.x < call.num_experts) shared.next[threadIdx.x] += total;
    }
    fill_rest(call, shared, used);
}

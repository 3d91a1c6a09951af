// Scores of few rows, keys read once. Groups of four warps are the workers: each takes pages of all
// rows in turn, and has several of them under way into shared memory. A page is multiplied as it
// lies there: a warp takes 16 keys through its registers.
#pragma once

#include "scores.cuh"

constexpr int MOST_ROWS = 8, MOST_STAGES = 6;
constexpr int BARRIER_BYTES = GROUPS * MOST_STAGES * 8, LIMIT_BYTES = MOST_ROWS * 4;

// A group has `stages` pages under way.
struct FewRows : Call {
    int stages;
};

// Bytes of shared memory; what lies where in it is `Shared`.
constexpr int shared_bytes(int rows, int stages) {
    return rows * ROW_BYTES + GROUPS * stages * PAGE_BYTES + BARRIER_BYTES + LIMIT_BYTES;
}

struct Shared {
    unsigned char *queries, *pages;
    float *weights;
    unsigned long long *barriers;
    int *limits;

    __device__ Shared(unsigned char *from, const FewRows &call) {
        queries = from;
        pages = queries + call.rows * QUERY_BYTES;
        weights = reinterpret_cast<float *>(pages + GROUPS * call.stages * PAGE_BYTES);
        barriers = reinterpret_cast<unsigned long long *>(weights + call.rows * HEADS);
        limits = reinterpret_cast<int *>(barriers + GROUPS * MOST_STAGES);
    }
};

// The pages of a worker, row by row: every `workers`-th. Each row begins at another worker.
struct Cursor {
    int row, page, worker, workers;

    __device__ Cursor(int worker, int workers) : row(0), page(worker), worker(worker),
                                                 workers(workers) {}

    // Go on to a page that there is, or behind the last row.
    __device__ void settle(const int *limits, int rows) {
        while (row < rows && page * PAGE_KEYS >= limits[row]) {
            row++;
            page = worker + row * (workers / MOST_ROWS);
            if (page >= workers) page -= workers;
        }
    }

    __device__ void advance(const int *limits, int rows) {
        page += workers;
        settle(limits, rows);
    }
};

// Lay out the queries of all rows as operands, and their weights as they are.
__device__ inline void place_queries(const Call &call, unsigned char *queries, float *weights) {
    for (int i = threadIdx.x; i < call.rows * HEADS * CHUNKS; i += WORKERS) {
        const int head = i / CHUNKS, chunk = i % CHUNKS ^ head % CHUNKS;
        reinterpret_cast<uint4 *>(queries)[head * CHUNKS + chunk] =
            reinterpret_cast<const uint4 *>(call.queries)[i];
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < call.rows * HEADS; i += WORKERS) weights[i] = call.weights[i];
    show_to_copies();
}

// Load four bytes of each chunk of two of a warp's keys: of number lane / 4, and of 8 more. Keys
// lie side by side, so a load takes another chunk of each, and every lane puts its own in order.
__device__ inline void load_keys(unsigned (&keys)[2][CHUNKS], const unsigned char *rows, int lane) {
    const int row = lane % 8, chunk = (lane / 8 + row) % CHUNKS, turn = lane / 4;
    const unsigned at = shared_address(rows) + row * WIDTH, other = chunk ^ CHUNKS / 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned(&mine)[CHUNKS] = keys[half];
        load_matrices(mine, at + half * 8 * WIDTH + chunk * 16);
        load_matrices(mine + CHUNKS / 2, at + half * 8 * WIDTH + other * 16);
#pragma unroll
        for (int step = 1; step < CHUNKS; step *= 2) {
            unsigned turned[CHUNKS];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) turned[(i + step) % CHUNKS] = mine[i];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) mine[i] = turn & step ? turned[i] : mine[i];
        }
    }
}

__device__ inline int named_page(const Call &call, const Cursor &at) {
    return call.table[at.row * call.table_stride + at.page];
}

__device__ inline void send(const Call &call, int page, unsigned char *to,
                            unsigned long long *barrier) {
    expect_bytes(barrier, PAGE_BYTES);
    bulk_copy(to, call.pages + (long long)page * PAGE_BYTES, PAGE_BYTES, barrier);
}

// Send for as many pages as there are stages, and leave the cursor at the next one. `named` are
// pages of the first row: they go first, then those whose names must be waited for.
__device__ inline void send_first(const FewRows &call, const int *limits, int (&named)[MOST_STAGES],
                                  Cursor &next, unsigned char *pages,
                                  unsigned long long *barriers) {
    const int limit = limits[0];
    int known = 0, count;
#pragma unroll
    for (int i = 0; i < MOST_STAGES; i++) {
        if (i >= call.stages || next.page * PAGE_KEYS >= limit) continue;
        send(call, named[i], pages + i * PAGE_BYTES, barriers + i);
        next.page += next.workers;
        known = i + 1;
    }
    count = known;
    next.settle(limits, call.rows);
#pragma unroll
    for (int i = 0; i < MOST_STAGES; i++) {
        if (i < known || i >= call.stages || next.row >= call.rows) continue;
        named[i] = named_page(call, next);
        next.advance(limits, call.rows);
        count = i + 1;
    }
#pragma unroll
    for (int i = 0; i < MOST_STAGES; i++) {
        if (i >= known && i < count) send(call, named[i], pages + i * PAGE_BYTES, barriers + i);
    }
}

__global__ void __launch_bounds__(WORKERS, 1) few_rows(const __grid_constant__ FewRows call) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared shared(memory, call);
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL, (int)threadIdx.x / 32, 0);
    const int group = warp / 4, line = warp % 4 * 16 + lane / 4, quarter = lane % 4;
    const bool leads = threadIdx.x % GROUP_THREADS == 0;
    unsigned char *const pages = shared.pages + group * call.stages * PAGE_BYTES;
    unsigned long long *const barriers = shared.barriers + group * MOST_STAGES;
    const Cursor first(group * gridDim.x + blockIdx.x, GROUPS * gridDim.x);
    if (leads) {
        for (int i = 0; i < MOST_STAGES; i++) make_barrier(barriers + i);
        show_to_copies();
    }
    await_kernels();
    // The first row's pages are looked up before its length is known.
    int named[MOST_STAGES] = {};
    if (leads) {
#pragma unroll
        for (int i = 0; i < MOST_STAGES; i++) {
            const int page = first.page + i * first.workers;
            if (page * PAGE_KEYS < call.columns) named[i] = call.table[page];
        }
    }
    if (threadIdx.x < call.rows) {
        shared.limits[threadIdx.x] = min(call.blocks[threadIdx.x], call.columns);
    }
    __syncthreads();
    Cursor next = first;
    int coming = 0;
    if (leads) {
        send_first(call, shared.limits, named, next, pages, barriers);
        if (next.row < call.rows) coming = named_page(call, next);
    }
    place_queries(call, shared.queries, shared.weights);
    __syncthreads();

    Cursor now = first;
    now.settle(shared.limits, call.rows);
    float sums[32] = {}, weights[16];
    int stage = 0, phase = 0, held = -1;
    for (; now.row < call.rows; now.advance(shared.limits, call.rows)) {
        if (held != now.row) {
            held = now.row;
            take_weights(weights, shared.weights + held * HEADS, quarter);
        }
        unsigned char *const page = pages + stage * PAGE_BYTES;
        await_phase(barriers + stage, phase);
        unsigned keys[2][CHUNKS];
        load_keys(keys, page + warp % 4 * 16 * WIDTH, lane);
        const float *const scales = reinterpret_cast<const float *>(page + PAGE_KEYS * WIDTH);
        const float scale = scales[line], other_scale = scales[line + 8];
        await_group(group);
        if (leads && next.row < call.rows) {
            send(call, coming, page, barriers + stage);
            next.advance(shared.limits, call.rows);
            if (next.row < call.rows) coming = named_page(call, next);
        }
        __syncwarp();
        const unsigned long long heads = operand(shared.queries + held * QUERY_BYTES);
        open_products(sums, keys);
#pragma unroll
        for (int i = 0; i < CHUNKS; i += 2) {
            // An operand goes on by a chunk of each of its rows.
            multiply(sums, keys[0][i], keys[1][i], keys[0][i + 1], keys[1][i + 1], heads + i, !i);
        }
        await_products(sums);
        const float2 both = weighed(sums, weights, scale, other_scale);
        const int column = now.page * PAGE_KEYS + line + (quarter == 1) * 8;
        if (quarter < 2 && column < shared.limits[now.row]) {
            call.scores[(long long)now.row * call.columns + column] = quarter ? both.y : both.x;
        }
        if (++stage == call.stages) {
            stage = 0;
            phase ^= 1;
        }
    }
}

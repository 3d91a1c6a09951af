// Scores of rows of any length at the speed of memory. One warp sends for the pages of all rows,
// many ahead of their use, and for a row's queries with its first page. Groups of four warps
// multiply pages where they lie, each every fourth page of the block of threads. The launch before
// makes queries: pages, and where they are named, are read before it has ended.
#pragma once

#include "scores.cuh"

namespace streamed {

// A page is 66 lines of 128 bytes to copies: 64 keys, then their scales. Copies put the 16-byte
// chunks of a line where products look for them, at their number xor the line's, modulo 8.
constexpr int PAGE_LINES = PAGE_BYTES / WIDTH;
// Pages under way: a processor's share of memory's speed times its latency is five.
constexpr int STAGES = 20, STAGE_BYTES = (PAGE_BYTES + 1023) / 1024 * 1024;
// Pages that are sent for before the first queries: copies come in the order in which they were asked
// for, and until queries are there no place of a page is free again.
constexpr int AHEAD = 4;
// Rows whose queries are held. A group meets one of any four pages, so that it is never further
// behind than four rows.
constexpr int SLOTS = 5;
constexpr int MOST_ROWS = 128, LISTS = MOST_ROWS / 32;
constexpr int GROUP_WARPS = GROUP_THREADS / 32, SENDER = WORKERS / 32, THREADS = WORKERS + 32;

struct Shared {
    alignas(1024) unsigned char pages[STAGES][STAGE_BYTES];
    alignas(1024) unsigned char queries[SLOTS][QUERY_BYTES];
    alignas(128) float weights[SLOTS][HEADS];
    // A page has come, and all warps of its group are done with it; the same of a row's queries,
    // which every warp leaves behind.
    unsigned long long full[STAGES], empty[STAGES], known[SLOTS], left[SLOTS];
    // Row r has the pages `starts[r]` to before `starts[r + 1]` of all, and `limits[r]` scores.
    int starts[MOST_ROWS + 1], limits[MOST_ROWS];
    // The row of a block's first page.
    int first_row;
};

static_assert(PAGE_BYTES % WIDTH == 0 && STAGES % GROUPS == 0 && STAGES < 32);
static_assert(AHEAD <= STAGES && SLOTS > GROUPS);
static_assert(sizeof(Shared) <= MOST_SHARED);

struct Tensors {
    CUtensorMap keys, queries;
};

// The pages of a block of threads, by their number among those of all rows: `begin`, and then every
// `step`-th before `end`. One row's are dealt out in turn, so that they can be looked up before its
// length is known; of several rows a block takes neighbours, so that it meets few rows.
struct Span {
    int begin, step, end;

    __device__ Span(int rows, int total) : begin(blockIdx.x), step(gridDim.x), end(total) {
        if (rows == 1) return;
        const int each = total / step, more = total % step;
        end = min(begin + 1, more) + (begin + 1) * each;
        begin = min(begin, more) + begin * each;
        step = 1;
    }

    __device__ int number(int i) const { return begin + i * step; }
};

// The warp that sends for pages.
struct Sender {
    const Call &call;
    const Tensors &tensors;
    Shared &shared;
    const int lane;
    Span span;
    // The id of a lane's page in this round of 32 pages and its row, and those in the next round.
    int id, row, next_id, next_row;
    // The row of the last page that was sent for, and how many rows came before it.
    int held, passed;

    __device__ Sender(const Call &call, const Tensors &tensors, Shared &shared)
        : call(call), tensors(tensors), shared(shared), lane(threadIdx.x % 32), span(1, 0),
          id(0), row(0), next_id(0), next_row(0), held(-1), passed(-1) {}

    // Make the barriers, and where rows begin and end, while the kernel before this one runs.
    __device__ void prepare() {
        if (lane == 0) {
            ask_for(&tensors.keys);
            ask_for(&tensors.queries);
            for (int i = 0; i < STAGES; i++) {
                make_barrier(shared.full + i);
                make_barrier(shared.empty + i, GROUP_WARPS);
            }
            for (int i = 0; i < SLOTS; i++) {
                make_barrier(shared.known + i);
                make_barrier(shared.left + i, GROUPS * GROUP_WARPS);
            }
            show_to_copies();
        }
        __syncwarp();
        open();
    }

    // Write where rows begin and end, and look up the first pages.
    __device__ void open() {
        if (call.rows == 1) {
            open_one();
        } else {
            open_all();
            look_up(lane, id, row);
        }
    }

    // Whether a lane's first page is looked up before the length of the only row is known.
    __device__ bool is_guess() const {
        return call.rows == 1 && span.number(lane) * PAGE_KEYS < call.columns;
    }

    __device__ void open_one() {
        if (is_guess()) id = call.table[span.number(lane)];
        const int limit = max(min(call.blocks[0], call.columns), 0);
        const int total = (limit + PAGE_KEYS - 1) / PAGE_KEYS;
        if (lane == 0) {
            shared.limits[0] = limit;
            shared.starts[0] = shared.first_row = 0;
            shared.starts[1] = total;
        }
        span = Span(1, total);
    }

    __device__ void open_all() {
        const int rows = call.rows;
        int sums[LISTS], total = 0, before = 0;
#pragma unroll
        for (int i = 0; i < LISTS; i++) {
            const int mine = i * 32 + lane;
            sums[i] = mine < rows ? max(min(call.blocks[mine], call.columns), 0) : 0;
        }
#pragma unroll
        for (int i = 0; i < LISTS; i++) {
            if (i * 32 < rows) total = list(sums[i], i * 32, total);
        }
        span = Span(rows, total);
#pragma unroll
        for (int i = 0; i < LISTS; i++) {
            before += __popc(__ballot_sync(ALL, i * 32 + lane < rows && sums[i] <= span.begin));
        }
        if (lane == 0) {
            shared.starts[0] = 0;
            shared.first_row = before;
        }
        __syncwarp();
    }

    // Turn the scores of 32 rows into pages up to their end; `before` belong to rows before them.
    // Returns the pages up to the end of the last row.
    __device__ int list(int &sum, int first, int before) {
        const int here = min(call.rows - first, 32);
        if (lane < here) shared.limits[first + lane] = sum;
        sum = (sum + PAGE_KEYS - 1) / PAGE_KEYS + (lane == 0 ? before : 0);
#pragma unroll 1
        for (int other = 1; other < here; other *= 2) {
            const int more = __shfl_up_sync(ALL, sum, other);
            if (lane >= other) sum += more;
        }
        if (lane < here) shared.starts[first + lane + 1] = sum;
        return __shfl_sync(ALL, sum, here - 1);
    }

    // Find the id and the row of the i-th page, if there is one.
    __device__ void look_up(int i, int &id, int &row) const {
        const int number = span.number(i);
        if (number >= span.end) return;
        row = shared.first_row;
        while (number >= shared.starts[row + 1]) row++;
        id = call.table[row * call.table_stride + number - shared.starts[row]];
    }

    // Send for the queries of the i-th page's row unless they are there. They take the place of
    // those of `SLOTS` rows before.
    __device__ void send_queries(int i) {
        const int of = __shfl_sync(ALL, row, i % 32);
        if (of == held) return;
        held = of;
        passed++;
        const int slot = passed % SLOTS;
        if (passed >= SLOTS) await_own_phase(shared.left + slot, (passed / SLOTS - 1) % 2);
        if (lane == 0) {
            unsigned long long *const known = shared.known + slot;
            expect_bytes(known, ROW_BYTES);
            copy_tile(shared.queries[slot], &tensors.queries, of * HEADS, known);
            bulk_copy(shared.weights[slot], call.weights + of * HEADS, HEADS * 4, known);
        }
        __syncwarp();
    }

    // Send for the i-th page, when the one in its place is done with.
    __device__ void send_page(int i) {
        if (i % 32 == 0 && i) {
            id = next_id;
            row = next_row;
        }
        if (i % 32 == STAGES) look_up(i - STAGES + 32 + lane, next_id, next_row);
        const int page = __shfl_sync(ALL, id, i % 32), stage = i % STAGES;
        if (i >= STAGES) await_own_phase(shared.empty + stage, (i / STAGES - 1) % 2);
        if (lane == 0) {
            expect_bytes(shared.full + stage, PAGE_BYTES);
            copy_tile(shared.pages[stage], &tensors.keys, page * PAGE_LINES, shared.full + stage);
        }
        __syncwarp();
    }

    // Send for all pages: the first before the kernel before this one has made the queries.
    __device__ void send() {
        int ahead = 0;
        for (; ahead < AHEAD && span.number(ahead) < span.end; ahead++) send_page(ahead);
        take_turn();
        for (int i = 0; i < ahead; i++) send_queries(i);
        for (int i = ahead; span.number(i) < span.end; i++) {
            send_page(i);
            send_queries(i);
        }
    }
};

// Where the scale of a key lies in a page.
__device__ inline int scale_place(int key) { return PAGE_KEYS * WIDTH + (key * 4 ^ key / 32 * 16); }

// A warp's place among the rows of its block of threads.
struct Place {
    int row, begin, end, limit, passed;

    __device__ explicit Place(const Shared &shared)
        : row(shared.first_row - 1), begin(0), end(-1), limit(0), passed(-1) {}

    // Go on to the row of a page, and leave behind the queries of rows before it. Those of every
    // row are waited for: a barrier tells one use from the next, and no more.
    __device__ void advance(Shared &shared, int number, int lane) {
        __syncwarp();
        do {
            row++;
            begin = shared.starts[row];
            end = shared.starts[row + 1];
            if (begin == end) continue;
            if (passed >= 0 && lane == 0) arrive(shared.left + passed % SLOTS);
            passed++;
            await_own_phase(shared.known + passed % SLOTS, passed / SLOTS % 2);
        } while (number >= end);
        limit = shared.limits[row];
    }
};

// Score the pages of one group.
__device__ inline void score(const Call &call, Shared &shared, int warp) {
    const int group = warp / GROUP_WARPS, lane = threadIdx.x % 32, quarter = lane % 4;
    const int line = warp % GROUP_WARPS * 16 + lane / 4;
    const int scale_at = scale_place(line), other_at = scale_place(line + 8);
    const int mine = line + (quarter == 1) * 8;
    const Span span(call.rows, shared.starts[call.rows]);
    Place place(shared);
    float sums[32] = {}, weights[16] = {};
    for (int i = group; span.number(i) < span.end; i += GROUPS) {
        const int number = span.number(i), stage = i % STAGES;
        if (number >= place.end) {
            place.advance(shared, number, lane);
            take_weights(weights, shared.weights[place.passed % SLOTS], quarter);
        }
        const unsigned char *const page = shared.pages[stage];
        const unsigned long long keys = line_operand(page);
        const unsigned long long heads = line_operand(shared.queries[place.passed % SLOTS]);
        await_own_phase(shared.full + stage, i / STAGES % 2);
        open_products(sums);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
            multiply(sums, keys + chunk, heads + chunk, !chunk);
        }
        const float scale = *reinterpret_cast<const float *>(page + scale_at);
        const float other_scale = *reinterpret_cast<const float *>(page + other_at);
        await_products(sums);
        __syncwarp();
        if (lane == 0) arrive(shared.empty + stage);
        const float2 both = weighed(sums, weights, scale, other_scale);
        const int column = (number - place.begin) * PAGE_KEYS + mine;
        if (quarter < 2 && column < place.limit) {
            call.scores[(long long)place.row * call.columns + column] = quarter ? both.y : both.x;
        }
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    kernel(const __grid_constant__ Call call, const __grid_constant__ Tensors tensors) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    const int warp = __shfl_sync(ALL, (int)threadIdx.x / 32, 0);
    Sender sender(call, tensors, shared);
    if (warp == SENDER) sender.prepare();
    __syncthreads();
    if (warp == SENDER) {
        sender.send();
    } else {
        take_turn();
        score(call, shared, warp);
    }
}

}  // namespace streamed

// Split plans of FlashMLA's kernels: a block of threads plans one kind of calls.
//
// How rows are divided, and what that costs, is told in `cuda_splits_backend.py`; the layout of a plan
// is told in `split_plans.py`. Code is short on purpose: it runs once a step, so that every
// instruction of it comes from far away.
#include <climits>
#include <cstring>
#include <cuda_runtime.h>

#include "device/lanes.cuh"

namespace {

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int MOST_ROWS = THREADS, MOST_KINDS = 3;
constexpr int TILE = 64;
// Sizes of pieces that are tried, and the threads that try one.
constexpr int SIZES = 64, LANES = THREADS / SIZES;
constexpr int TOO_MANY = 1 << 30;

// Keys that rows read: lengths, or columns for all where there are none.
struct Kind {
    const int *window, *extra;
    int window_columns, extra_columns;
};

struct Plans {
    int4 *records;  // [kinds, processors, 2]
    int *splits;    // [kinds, rows + 1]
    int rows, processors;
    int begin_tiles, tile_cost, part_cost, add_cost, kinds;
    Kind kind[MOST_KINDS];
};

// A size and what it costs.
struct Choice {
    int cost, size;
};

// Return x / y rounded up; neither is negative.
__device__ int over(int x, int y) { return (unsigned)(x + y - 1) / (unsigned)y; }

// Return the tiles of a row as the attention kernel counts them: one of its window at least.
__device__ int tiles_of(const Kind &kind, int row) {
    const int window = kind.window ? kind.window[row] : kind.window_columns;
    const int extra = kind.extra ? kind.extra[row] : kind.extra_columns;
    return max(over(window, TILE), 1) + over(extra, TILE);
}

// Return the cheapest choice of a warp's lanes, of equals the smallest size.
__device__ Choice cheapest(Choice mine) {
    const int cost = __reduce_min_sync(ALL, mine.cost);
    return {cost, __reduce_min_sync(ALL, mine.cost == cost ? mine.size : INT_MAX)};
}

// Return the sum of the values of all threads up to this one; `sums` is used by no other call.
__device__ int scanned(int value, int *sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, value, step);
        if (lane >= step) value += other;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    return value + __reduce_add_sync(ALL, lane < warp ? sums[lane] : 0);
}

// Return how many rows end at or before a place; `ends` ascend.
__device__ int rows_before(const int *ends, int rows, int place) {
    int low = 0, high = rows;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] <= place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// How all rows are divided.
struct Division {
    bool one_each;  // one piece a processor, of `even` tiles at most; else cuts, `apart` units
    int even, apart;
};

// Return the cheaper division for `rows` rows of so many `tiles`, in shared memory.
__device__ Division divide(const Plans &call, const int *tiles, int longest, int total,
                           Choice (*best)[WARPS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Of the sizes that cut the longest row into so many pieces, the smallest.
    const int size = over(longest, threadIdx.x / LANES + 1);
    int pieces = 0, added = 0;
    for (int row = threadIdx.x % LANES; row < call.rows; row += LANES) {
        const int mine = over(tiles[row], size);
        pieces += mine;
        added += mine > 1 ? mine : 0;
    }
    for (int step = 1; step < LANES; step *= 2) {
        pieces += __shfl_xor_sync(ALL, pieces, step);
        added += __shfl_xor_sync(ALL, added, step);
    }
    const int most = over(longest, size), read = size * call.tile_cost;
    const int parts = most * call.part_cost, adds = most > 1 ? parts + added * call.add_cost : 0;
    const int cost = pieces <= call.processors ? read + adds : TOO_MANY;
    const Choice even = cheapest({cost, size}), apart = cheapest({read + parts, size});
    if (lane == 0) best[0][warp] = even, best[1][warp] = apart;
    __syncthreads();
    const Choice pick = cheapest(best[0][lane % WARPS]);
    const int least = cheapest(best[1][lane % WARPS]).size;
    const int cut = max(least, over(total + call.rows * call.begin_tiles, call.processors));
    const int begins = (over(longest, cut) + 1) * call.part_cost + call.processors * call.add_cost;
    const int end_to_end = cut * call.tile_cost + begins;
    return {pick.cost <= end_to_end, pick.size, cut};
}

// Where in which row a processor begins or stops.
struct Place {
    int row, tile, inside, row_start;
};

// Return the place so many units from the beginning of all rows; past them, tile 0 of row B.
__device__ Place found(const Plans &call, const Division &way, const int *tiles, const int *ends,
                       int units) {
    Place at;
    at.row = rows_before(ends, call.rows, units);
    at.row_start = at.row ? ends[at.row - 1] : 0;
    at.inside = units - at.row_start;
    const int count = at.row < call.rows ? tiles[at.row] : 0;
    const int cut = (unsigned)(at.inside * count) / (unsigned)max(over(count, way.even), 1);
    at.tile = way.one_each ? cut : max(at.inside - call.begin_tiles, 0);
    if (at.row >= call.rows) at.tile = 0;
    return at;
}

// Write the record of processor `part`.
__device__ void record(const Plans &call, const Division &way, const int *tiles, const int *ends,
                       int part, int4 *out) {
    const int stride = way.one_each ? 1 : way.apart;
    const Place first = found(call, way, tiles, ends, part * stride);
    const Place stop = found(call, way, tiles, ends, part * stride + stride);
    // Two cuts may lie before one and the same first tile.
    if (first.row >= call.rows || (first.row == stop.row && first.tile == stop.tile)) {
        out[0] = make_int4(call.rows, call.rows, 0, 0);
        out[1] = make_int4(0, 0, 0, 0);
        return;
    }
    const int last = stop.tile ? stop.row : stop.row - 1;
    const int end = stop.tile ? stop.tile : tiles[last];
    const int passed = (unsigned)(first.row_start + call.begin_tiles) / (unsigned)stride;
    const int nth = way.one_each ? first.inside : part - passed;
    const bool alone = first.row == last, late = first.tile > 0, early = end < tiles[last];
    out[0] = make_int4(first.row, last, first.tile, end);
    out[1] = make_int4(late ? nth : 0, late || (alone && early), early || (alone && late), 0);
}

__global__ void __launch_bounds__(THREADS) plan_splits(const __grid_constant__ Plans call) {
    __shared__ int tiles[MOST_ROWS], ends[MOST_ROWS], sums[4][WARPS];
    __shared__ Choice best[2][WARPS];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool live = thread < call.rows;
    const int count = live ? tiles_of(call.kind[blockIdx.x], thread) : 0;
    tiles[thread] = count;
    const int most = __reduce_max_sync(ALL, count), sum = __reduce_add_sync(ALL, count);
    if (lane == 0) sums[0][warp] = most, sums[1][warp] = sum;
    __syncthreads();
    const int longest = __reduce_max_sync(ALL, sums[0][lane % WARPS]);
    const int total = __reduce_add_sync(ALL, lane < WARPS ? sums[1][lane] : 0);
    const Division way = divide(call, tiles, longest, total, best);

    // Rows lie end to end, in pieces or in tiles with what it costs to begin.
    const int pieces = over(count, way.even), length = count + call.begin_tiles;
    const int end = scanned(live ? (way.one_each ? pieces : length) : 0, sums[2]);
    int parts = end;
    if (!way.one_each) {
        // Cuts between the begin of the first tile and the end.
        const int before = (unsigned)(end - count) / (unsigned)way.apart;
        parts = scanned(live ? over(end, way.apart) - before : 0, sums[3]);
    }
    int *splits = call.splits + blockIdx.x * (call.rows + 1);
    if (live) splits[thread + 1] = parts;
    if (thread == 0) splits[0] = 0;
    ends[thread] = end;
    __syncthreads();
    int4 *records = call.records + 2ll * blockIdx.x * call.processors;
    for (int part = thread; part < call.processors; part += THREADS)
        record(call, way, tiles, ends, part, records + 2 * part);
}

}  // namespace

extern "C" {

const char *splits_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Plan up to three kinds of up to 512 rows, told by `size` bytes of a `Plans`; returns a
// cudaError_t, invalid arguments if they are not as many as the struct has.
int plan_splits_call(const void *bytes, int size, void *where) {
    Plans call;
    if (size != sizeof call) return cudaErrorInvalidValue;
    std::memcpy(&call, bytes, sizeof call);
    plan_splits<<<call.kinds, THREADS, 0, static_cast<cudaStream_t>(where)>>>(call);
    return cudaGetLastError();
}
}

// Products of up to eight rows of bfloat16 numbers and a weight that is read once.
//
// A cluster of blocks multiplies 16 lines of the weight: its warps share the channels, 64 at a time,
// and their sums are added up in the first block, always in the same order. Which channels meet in a
// product does not matter as long as they are the same on both sides: so a lane takes 16 bytes of a
// line, and the same 16 of a row, as they lie in memory. Nobody writes the weight, so the first
// pieces of it are on their way to registers before the launch before has ended.
#include "hopper.cuh"

namespace {

constexpr int WARPS = 8, THREADS = WARPS * 32, LINES = 16, ROWS = 8, PLACES = ROWS * LINES;
// Channels a warp takes at a time, and how many such pieces it has on their way.
constexpr int PIECE = 64, HELD = 2, EACH = 8;

struct Call {
    const __nv_bfloat16 *rows, *weight;
    float *out;
    long long row_stride;
    int count, lines, depth;
};

// A lane's share of a piece: of each half, eight channels of two lines or of a row.
struct Weights {
    uint4 low[2], high[2];

    __device__ void load(const __nv_bfloat16 *line, long long eighth_after, int channel,
                         int depth) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = channel + half * (PIECE / 2);
            low[half] = read_through(line + at, at < depth);
            high[half] = read_through(line + eighth_after + at, at < depth);
        }
    }
};

struct Rows {
    uint4 x[2];

    __device__ void load(const __nv_bfloat16 *row, int channel, int depth) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = channel + half * (PIECE / 2);
            x[half] = read_row(row + at, at < depth);
        }
    }
};

__device__ inline void add_piece(float (&sums)[4], const Weights &weights, const Rows &rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 &a = weights.low[half], &c = weights.high[half], &b = rows.x[half];
        multiply(sums, a.x, c.x, a.y, c.y, b.x, b.y);
        multiply(sums, a.z, c.z, a.w, c.w, b.z, b.w);
    }
}

// Add up a place of all warps, or of all blocks.
template <int COUNT>
__device__ inline float sum_of(const float (&parts)[COUNT][PLACES], int place) {
    float sum = parts[0][place];
#pragma unroll
    for (int nth = 1; nth < COUNT; nth++) sum += parts[nth][place];
    return sum;
}

template <int CLUSTER>
__global__ void __launch_bounds__(THREADS, 3) stream_bf16(const __grid_constant__ Call call) {
    __shared__ float parts[WARPS][PLACES], of_blocks[CLUSTER][PLACES];
    constexpr int STRIDE = CLUSTER * WARPS * PIECE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * LINES;
    const int depth = call.depth, last = call.lines - 1;
    if (CLUSTER > 1) arrive_in_cluster();
    // Lines and rows past the end are read as the last one; their products are left.
    const long long low = min(first + line, last), high = min(first + line + 8, last);
    const __nv_bfloat16 *const weight = call.weight + low * depth;
    const long long eighth_after = (high - low) * depth;
    // A piece past the end is zeros on both sides.
    int piece = (rank * WARPS + warp) * PIECE, channel = piece + quarter * EACH;
    Weights weights[HELD];
    Rows rows[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        weights[i].load(weight, eighth_after, channel + i * STRIDE, depth);
    }
    await_launch_before();
    let_next_begin();
    const __nv_bfloat16 *const row = call.rows + min(line, call.count - 1) * call.row_stride;
#pragma unroll
    for (int i = 0; i < HELD; i++) rows[i].load(row, channel + i * STRIDE, depth);
    float sums[4] = {};
    for (; piece < depth; piece += HELD * STRIDE, channel += HELD * STRIDE) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            add_piece(sums, weights[i], rows[i]);
            weights[i].load(weight, eighth_after, channel + (HELD + i) * STRIDE, depth);
            rows[i].load(row, channel + (HELD + i) * STRIDE, depth);
        }
    }
    float *const to = parts[warp] + 2 * quarter * LINES + line;
    to[0] = sums[0];
    to[LINES] = sums[1];
    to[8] = sums[2];
    to[LINES + 8] = sums[3];
    __syncthreads();
    const int place = threadIdx.x;
    float sum = place < PLACES ? sum_of(parts, place) : 0.0f;
    if (CLUSTER > 1) {
        wait_for_cluster();  // the first block has begun: its memory may be written
        if (place < PLACES) write_to_first(&of_blocks[rank][place], sum);
        arrive_in_cluster();
        wait_for_cluster();
        if (rank || place >= PLACES) return;
        sum = sum_of(of_blocks, place);
    }
    const int nth = place / LINES, at = first + place % LINES;
    if (nth >= call.count || at >= call.lines) return;
    call.out[(long long)nth * call.lines + at] = sum;
}

template <int CLUSTER>
int launch(const Call &call, void *where) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0] = early_launch();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((call.lines + LINES - 1) / LINES * CLUSTER);
    config.blockDim = dim3(THREADS);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, stream_bf16<CLUSTER>, call);
}

}  // namespace

extern "C" {

const char *stream_bf16_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Multiply `count` rows, 1 to 8, by a weight of `lines`; `depth` is a multiple of 8, and `blocks`,
// which share lines, are 1, 2, 4 or 8. Returns a cudaError_t.
int stream_bf16_call(const void *rows, long long row_stride, const void *weight, float *out,
                     int count, int lines, int depth, int blocks, void *where) {
    const Call call = {static_cast<const __nv_bfloat16 *>(rows),
                       static_cast<const __nv_bfloat16 *>(weight), out, row_stride, count, lines,
                       depth};
    if (blocks == 8) return launch<8>(call, where);
    if (blocks == 4) return launch<4>(call, where);
    if (blocks == 2) return launch<2>(call, where);
    return launch<1>(call, where);
}
}

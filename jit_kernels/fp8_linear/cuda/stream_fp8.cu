// Products of up to eight rows of e4m3 numbers and a weight that is read once.
//
// A warp multiplies 16 lines of the weight, a block of 128 channels at a time; SPLIT warps share
// the blocks of the same lines, and add up at the end. Which channels meet in a product does not
// matter as long as they are the same on both sides: so a lane takes 16 bytes of a line, and the
// same 16 of a row, as they lie in memory. Nobody writes the weight, so its first blocks are on
// their way to registers before the launch before has ended.
#include "one_row.cuh"

namespace {

// Rows of a product, and blocks of them that a warp has on their way.
constexpr int ROWS = 8, ROWS_HELD = 2;

struct Call {
    const unsigned char *rows, *weight;
    const float *scales, *weight_scales;
    __nv_bfloat16 *out;
    long long row_stride, scale_row, scale_block;
    int count, groups, lines, depth;
};

// A lane's share of a block of rows: of each half, 16 channels of one, and the scales of the two
// whose sums the lane has.
struct Rows {
    uint4 x[2];
    float even, odd;

    __device__ void load(const unsigned char *row, const float *left, const float *right,
                         long long scale_block, int block) {
#pragma unroll
        for (int half = 0; half < 2; half++) x[half] = read_row(row + block * BLOCK + half * HALF);
        even = read_scale(left + block * scale_block);
        odd = read_scale(right + block * scale_block);
    }
};

__device__ inline void add_block(float (&sums)[4], const Weights &weights, const Rows &rows) {
    float part[4] = {};
    multiply_block(part, weights, rows.x);
    const float even = weights.scale * rows.even, odd = weights.scale * rows.odd;
    sums[0] = fmaf(part[0], even, sums[0]);
    sums[1] = fmaf(part[1], odd, sums[1]);
    sums[2] = fmaf(part[2], even, sums[2]);
    sums[3] = fmaf(part[3], odd, sums[3]);
}

template <int SPLIT>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    stream_fp8(const __grid_constant__ Call call) {
    constexpr int TILES = WARPS / SPLIT;
    __shared__ float parts[WARPS][ROWS * LINES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    const int first = blockIdx.x * TILES * LINES, mine = first + warp / SPLIT * LINES;
    const long long group = blockIdx.y;
    const int all_blocks = call.depth / BLOCK, block_lines = (call.lines + BLOCK - 1) / BLOCK;
    // Warps past the last line have no blocks.
    const int blocks = mine < call.lines ? all_blocks : 0;
    const unsigned char *const low =
        call.weight + (group * call.lines + mine + line) * call.depth + quarter * 16;
    const float *const weight_scales =
        call.weight_scales + (group * block_lines + mine / BLOCK) * all_blocks;
    int block = warp % SPLIT;
    Weights weights[HELD];
    const auto ask = [&](int begin, int end) {
#pragma unroll
        for (int i = begin; i < end; i++) {
            const int at = block + i * SPLIT;
            if (at < blocks) weights[i].load(low, call.depth, weight_scales, at);
        }
    };
    ask(0, EARLY);
    await_launch_before();
    let_next_begin();
    const unsigned char *const row = call.rows + min(line, call.count - 1) * call.row_stride +
                                     group * call.depth + quarter * 16;
    const float *const scale = call.scales + group * all_blocks * call.scale_block;
    const float *const left = scale + min(2 * quarter, call.count - 1) * call.scale_row;
    const float *const right = scale + min(2 * quarter + 1, call.count - 1) * call.scale_row;
    Rows rows[ROWS_HELD];
#pragma unroll
    for (int i = 0; i < ROWS_HELD; i++) {
        const int at = block + i * SPLIT;
        if (at < blocks) rows[i].load(row, left, right, call.scale_block, at);
    }
    ask(EARLY, HELD);
    float sums[4] = {};
    for (; block < blocks; block += HELD * SPLIT) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int at = block + i * SPLIT, later = at + HELD * SPLIT;
            const int next = at + ROWS_HELD * SPLIT;
            if (at < blocks) add_block(sums, weights[i], rows[i % ROWS_HELD]);
            if (later < blocks) weights[i].load(low, call.depth, weight_scales, later);
            if (next < blocks) rows[i % ROWS_HELD].load(row, left, right, call.scale_block, next);
        }
    }
    float *const to = parts[warp] + 2 * quarter * LINES + line;
    to[0] = sums[0];
    to[LINES] = sums[1];
    to[8] = sums[2];
    to[LINES + 8] = sums[3];
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * ROWS * LINES; i += WARPS * 32) {
        const int tile = i / LINES % TILES, row = i / LINES / TILES;
        const int place = row * LINES + i % LINES;
        const int at = first + tile * LINES + i % LINES;
        if (row >= call.count || at >= call.lines) continue;
        float sum = parts[tile * SPLIT][place];
        for (int nth = 1; nth < SPLIT; nth++) sum += parts[tile * SPLIT + nth][place];
        call.out[(row * call.groups + group) * call.lines + at] = __float2bfloat16_rn(sum);
    }
}

unsigned blocks_for(int lines, int tiles) {
    const int each = tiles * LINES;
    return (lines + each - 1) / each;
}

int launch(const Call &call, int split, void *where) {
    const auto kernel = split == 8   ? stream_fp8<8>
                        : split == 4 ? stream_fp8<4>
                        : split == 2 ? stream_fp8<2>
                                     : stream_fp8<1>;
    const dim3 blocks(blocks_for(call.lines, WARPS / split), call.groups);
    return launch_early(kernel, blocks, 0, call, where);
}

template <class Prepare>
int launch_row(const RowCall &call, int split, void *where) {
    const auto kernel = split == 8   ? stream_row<8, Prepare>
                        : split == 4 ? stream_row<4, Prepare>
                        : split == 2 ? stream_row<2, Prepare>
                                     : stream_row<1, Prepare>;
    const dim3 blocks(blocks_for(call.lines, tiles_of_row(split)));
    return launch_early(kernel, blocks, Prepare::bytes(call.depth), call, where);
}

}  // namespace

extern "C" {

const char *stream_fp8_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Multiply `count` rows, eight at most, by `groups` weights of `lines`, a multiple of 16; `split`
// is 1, 2, 4 or 8. Returns a cudaError_t.
int stream_fp8_call(const void *rows, long long row_stride, const float *scales,
                    long long scale_row, long long scale_block, const void *weight,
                    const float *weight_scales, __nv_bfloat16 *out, int count, int groups,
                    int lines, int depth, int split, void *where) {
    const Call call = {static_cast<const unsigned char *>(rows),
                       static_cast<const unsigned char *>(weight), scales, weight_scales, out,
                       row_stride, scale_row, scale_block, count, groups, lines, depth};
    return launch(call, split, where);
}

// Round and multiply one row of bfloat16, of 8,192 channels at most, by a weight of `lines`, a
// multiple of 16. With the weight of a norm it is normed first, and has a multiple of 512 channels,
// 4,096 at most. Returns a cudaError_t.
int stream_row_call(const void *row, const float *norm, float eps, const void *weight,
                    const float *weight_scales, __nv_bfloat16 *out, int lines, int depth,
                    int split, void *where) {
    const RowCall call = {static_cast<const unsigned char *>(row),
                          static_cast<const unsigned char *>(weight),
                          weight_scales,
                          out,
                          {norm, 1.0f / depth, eps},
                          lines,
                          depth};
    if (norm) return launch_row<Norming>(call, split, where);
    if (depth <= Rounding<16>::MOST) return launch_row<Rounding<16>>(call, split, where);
    if (depth <= Rounding<8>::MOST) return launch_row<Rounding<8>>(call, split, where);
    return launch_row<Rounding<4>>(call, split, where);
}
}

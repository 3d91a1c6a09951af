// The product of a single row that nobody has rounded: every block of threads prepares the whole of
// it for itself, while its first weights are on their way. That takes less time than a launch that
// does so once for all, which the weights would have to wait for.
#pragma once

#include "rounded_row.cuh"

struct RowCall {
    const unsigned char *row, *weight;
    const float *weight_scales;
    __nv_bfloat16 *out;
    Norm norm;
    int lines, depth;
};

// Add a block of the row. All eight rows of the product are this one, and of a lane's sums those of
// the first two are kept.
__device__ inline void add_block(float (&sums)[2], const Weights &weights,
                                 const unsigned char *codes, float scale) {
    uint4 x[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        x[half] = *reinterpret_cast<const uint4 *>(codes + half * HALF);
    }
    float part[4] = {};
    multiply_block(part, weights, x);
    scale *= weights.scale;
    sums[0] = fmaf(part[0], scale, sums[0]);
    sums[1] = fmaf(part[2], scale, sums[1]);
}

// Tiles of 16 lines that a block of threads has. Of a weight of many lines not all warps have one:
// blocks are as many as three on each multiprocessor, and memory is asked for more evenly.
__host__ __device__ constexpr int tiles_of_row(int split) { return split == 1 ? 6 : WARPS / split; }

// Blocks of the weight that a warp has on their way, and blocks of threads that share a
// multiprocessor: the fewer of these there are, the more of those.
template <int SPLIT>
constexpr int ROW_HELD = SPLIT == 1 ? HELD : 3;
template <int SPLIT>
constexpr int ROW_RESIDENT = SPLIT == 1 ? RESIDENT : 2;

// Prepare: `Rounding` or `Norming`.
template <int SPLIT, class Prepare>
__global__ void __launch_bounds__(WARPS * 32, ROW_RESIDENT<SPLIT>)
    stream_row(const __grid_constant__ RowCall call) {
    constexpr int TILES = tiles_of_row(SPLIT), HELD = ROW_HELD<SPLIT>;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float parts[WARPS][LINES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    const int first = blockIdx.x * TILES * LINES, mine = first + warp / SPLIT * LINES;
    const int all_blocks = call.depth / BLOCK;
    // Warps past the last line, or tile, have no blocks.
    const int blocks = warp / SPLIT < TILES && mine < call.lines ? all_blocks : 0;
    const unsigned char *const low =
        call.weight + (long long)(mine + line) * call.depth + quarter * 16;
    const float *const weight_scales =
        call.weight_scales + (long long)(mine / BLOCK) * all_blocks;
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
    const Room room = Prepare::room(shared, call.depth);
    Prepare::begin(room, call.norm, call.depth);
    take_turn();
    const auto row = Prepare::ask(call.row, call.depth);
    ask(EARLY, HELD);
    Prepare::run(room, row, call.norm, call.depth);
    // Of eight warps that share channels, each has prepared what it multiplies.
    if (SPLIT == WARPS && Prepare::KEEPS_WARPS_APART) {
        __syncwarp();
    } else {
        __syncthreads();
    }
    float sums[2] = {};
#pragma unroll 1
    for (; block < blocks; block += HELD * SPLIT) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int at = block + i * SPLIT, later = at + HELD * SPLIT;
            const unsigned char *const codes = room.codes + Prepare::place(at) + quarter * 16;
            if (at < blocks) add_block(sums, weights[i], codes, room.scales[at]);
            if (later < blocks) weights[i].load(low, call.depth, weight_scales, later);
        }
    }
    if (quarter == 0) {
        parts[warp][line] = sums[0];
        parts[warp][line + 8] = sums[1];
    }
    __syncthreads();
    const int at = first + threadIdx.x, tile = threadIdx.x / LINES, place = threadIdx.x % LINES;
    if (tile >= TILES || at >= call.lines) return;
    float sum = parts[tile * SPLIT][place];
    for (int nth = 1; nth < SPLIT; nth++) sum += parts[tile * SPLIT + nth][place];
    call.out[at] = __float2bfloat16_rn(sum);
}

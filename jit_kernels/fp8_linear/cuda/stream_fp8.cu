// Products of up to eight rows of e4m3 numbers and a weight that is read once.
//
// A warp multiplies 16 lines of the weight, a block of 128 channels at a time; SPLIT warps share
// the blocks of the same lines, and add up at the end. Which channels meet in a product does not
// matter as long as they are the same on both sides: so a lane takes 16 bytes of a line, and the
// same 16 of a row, as they lie in memory.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

constexpr int WARPS = 8, LINES = 16, ROWS = 8, BLOCK = 128, HALF = 64;

struct Call {
    const unsigned char *rows, *weight;
    const float *scales, *weight_scales;
    void *out;
    long long row_stride, scale_row, scale_block;
    int count, groups, lines, depth;
};

// Read what is read but once.
__device__ inline uint4 read_through(const unsigned char *from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// Add the product of 16 lines and 8 rows of 32 channels each.
__device__ inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void write(float *to, float x) { *to = x; }
__device__ inline void write(__nv_bfloat16 *to, float x) { *to = __float2bfloat16_rn(x); }

template <int SPLIT, class Result>
__global__ void __launch_bounds__(WARPS * 32, 2) stream_fp8(const __grid_constant__ Call call) {
    constexpr int TILES = WARPS / SPLIT;
    __shared__ float parts[WARPS][ROWS * LINES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    const int first = blockIdx.x * TILES * LINES, mine = first + warp / SPLIT * LINES;
    const long long group = blockIdx.y;
    const int blocks = call.depth / BLOCK;
    float sums[4] = {};
    if (mine < call.lines) {
        const unsigned char *const low =
            call.weight + (group * call.lines + mine + line) * call.depth + quarter * 16;
        const unsigned char *const high = low + 8ll * call.depth;
        const unsigned char *const row = call.rows + min(line, call.count - 1) * call.row_stride +
                                         group * call.depth + quarter * 16;
        const int block_lines = (call.lines + BLOCK - 1) / BLOCK;
        const float *const weight_scale =
            call.weight_scales + (group * block_lines + mine / BLOCK) * blocks;
        const float *const scale = call.scales + group * blocks * call.scale_block;
        const long long left = min(2 * quarter, call.count - 1) * call.scale_row;
        const long long right = min(2 * quarter + 1, call.count - 1) * call.scale_row;
#pragma unroll 4
        for (int block = warp % SPLIT; block < blocks; block += SPLIT) {
            float part[4] = {};
#pragma unroll
            for (int half = 0; half < BLOCK; half += HALF) {
                const uint4 a = read_through(low + block * BLOCK + half);
                const uint4 c = read_through(high + block * BLOCK + half);
                const uint4 b = __ldg(reinterpret_cast<const uint4 *>(row + block * BLOCK + half));
                multiply(part, a.x, c.x, a.y, c.y, b.x, b.y);
                multiply(part, a.z, c.z, a.w, c.w, b.z, b.w);
            }
            const float factor = __ldg(weight_scale + block);
            const float even = factor * __ldg(scale + block * call.scale_block + left);
            const float odd = factor * __ldg(scale + block * call.scale_block + right);
            sums[0] = fmaf(part[0], even, sums[0]);
            sums[1] = fmaf(part[1], odd, sums[1]);
            sums[2] = fmaf(part[2], even, sums[2]);
            sums[3] = fmaf(part[3], odd, sums[3]);
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
        write(static_cast<Result *>(call.out) + (row * call.groups + group) * call.lines + at, sum);
    }
}

template <int SPLIT, class Result>
int launch(const Call &call, void *where) {
    constexpr int EACH = WARPS / SPLIT * LINES;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((call.lines + EACH - 1) / EACH, call.groups);
    config.blockDim = dim3(WARPS * 32);
    config.stream = static_cast<cudaStream_t>(where);
    return cudaLaunchKernelEx(&config, stream_fp8<SPLIT, Result>, call);
}

template <class Result>
int launch(const Call &call, int split, void *where) {
    if (split == 8) return launch<8, Result>(call, where);
    if (split == 4) return launch<4, Result>(call, where);
    if (split == 2) return launch<2, Result>(call, where);
    return launch<1, Result>(call, where);
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
                    const float *weight_scales, void *out, int is_bf16, int count, int groups,
                    int lines, int depth, int split, void *where) {
    const Call call = {static_cast<const unsigned char *>(rows),
                       static_cast<const unsigned char *>(weight), scales, weight_scales, out,
                       row_stride, scale_row, scale_block, count, groups, lines, depth};
    return is_bf16 ? launch<__nv_bfloat16>(call, split, where) : launch<float>(call, split, where);
}
}

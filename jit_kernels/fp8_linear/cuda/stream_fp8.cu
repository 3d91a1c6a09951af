// Products of up to eight rows of e4m3 numbers and a weight that is read once.
//
// A warp multiplies 16 lines of the weight, a block of 128 channels at a time; SPLIT warps share
// the blocks of the same lines, and add up at the end. Which channels meet in a product does not
// matter as long as they are the same on both sides: so a lane takes 16 bytes of a line, and the
// same 16 of a row, as they lie in memory. Nobody writes the weight, so its first blocks are on
// their way to registers before the launch before has ended.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

constexpr int WARPS = 8, LINES = 16, ROWS = 8, BLOCK = 128, HALF = 64;
// Blocks of the weight that a warp has on their way, and blocks of rows. So few registers are held
// that three blocks of threads share a multiprocessor: where others hold some of them back, a weight
// of 2,048 warps still needs no second turn.
constexpr int HELD = 2, ROWS_HELD = 2, RESIDENT = 3;

struct Call {
    const unsigned char *rows, *weight;
    const float *scales, *weight_scales;
    void *out;
    long long row_stride, scale_row, scale_block;
    int count, groups, lines, depth;
};

// Read what nobody writes, and but once. Of loads said to be constant (`nc`) the assembler would
// move a wait for the launch before to the front.
__device__ inline uint4 read_through(const unsigned char *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

// Read what the launch before has written.
__device__ inline uint4 read_row(const unsigned char *from) {
    uint4 x;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
__device__ inline float read_scale(const float *from) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

// Wait until the launches before have ended and what they wrote can be read.
__device__ inline void await_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Let the launch after begin; it waits for the end of this one by itself.
__device__ inline void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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

// A lane's share of a block: of each half, 16 channels of two lines, and the block's scale.
struct Weights {
    uint4 low[2], high[2];
    float scale;

    __device__ void load(const unsigned char *line, int depth, const float *scales, int block) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            low[half] = read_through(line + block * BLOCK + half * HALF);
            high[half] = read_through(line + 8ll * depth + block * BLOCK + half * HALF);
        }
        scale = read_scale(scales + block);
    }
};

// The same of the rows: 16 channels of one, the scales of the two whose sums the lane has.
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
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 &a = weights.low[half], &c = weights.high[half], &b = rows.x[half];
        multiply(part, a.x, c.x, a.y, c.y, b.x, b.y);
        multiply(part, a.z, c.z, a.w, c.w, b.z, b.w);
    }
    const float even = weights.scale * rows.even, odd = weights.scale * rows.odd;
    sums[0] = fmaf(part[0], even, sums[0]);
    sums[1] = fmaf(part[1], odd, sums[1]);
    sums[2] = fmaf(part[2], even, sums[2]);
    sums[3] = fmaf(part[3], odd, sums[3]);
}

template <int SPLIT, class Result>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT) stream_fp8(const __grid_constant__ Call call) {
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
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int at = block + i * SPLIT;
        if (at < blocks) weights[i].load(low, call.depth, weight_scales, at);
    }
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
        write(static_cast<Result *>(call.out) + (row * call.groups + group) * call.lines + at, sum);
    }
}

template <int SPLIT, class Result>
int launch(const Call &call, void *where) {
    constexpr int EACH = WARPS / SPLIT * LINES;
    // The launch may begin while the one before it ends; it waits for that by itself.
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((call.lines + EACH - 1) / EACH, call.groups);
    config.blockDim = dim3(WARPS * 32);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
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

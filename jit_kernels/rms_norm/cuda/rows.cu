// The entries of the library: which kernel a call needs.
#include "heads.cuh"
#include "norms.cuh"

namespace {

using Bf16 = __nv_bfloat16;
constexpr int EACH = 4;

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), dim3 blocks, int threads, void *where, Args... args) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

unsigned blocks_for(long long count, int each) { return (unsigned)((count + each - 1) / each); }

template <class Result>
int norm_some_rows(const Bf16 *x, long long stride, const float *weight, const Normed &to, int rows,
                   int width, float eps, int processors, void *where) {
    const auto kernel = norm_rows<Result>;
    const int threads = width / (2 * EIGHT);
    int resident = 1;
    const cudaError_t error =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0);
    if (error != cudaSuccess) return error;
    const int blocks = rows < processors * resident ? rows : processors * resident;
    return launch(kernel, dim3(blocks), threads, where, x, stride, weight, to, rows, width,
                  1.0f / width, eps);
}

}  // namespace

extern "C" {

const char *rows_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Each takes bfloat16 and returns a cudaError_t.

// Norm heads of 512 and turn their last 64 channels.
int norm_heads_call(const Bf16 *q, const float *rotation, Bf16 *out, int tokens, int heads,
                    float eps, void *where) {
    const auto kernel = heads % EACH ? norm_heads<1> : norm_heads<EACH>;
    const long long shares = (long long)tokens * (heads % EACH ? heads : heads / EACH);
    return launch(kernel, blocks_for(shares, WARPS), WARPS * 32, where, q, rotation, out, tokens,
                  heads, eps);
}

// Turn the last 64 channels of heads of 512 back and round all to e4m3.
int round_heads_call(const Bf16 *x, long long stride, const float *rotation, unsigned char *codes,
                     float *scales, long long scale_stride, int tokens, int heads, void *where) {
    const dim3 blocks(blocks_for(tokens, WARPS), blocks_for(heads, EACH));
    return launch(round_heads<EACH>, blocks, WARPS * 32, where, x, stride, rotation, codes, scales,
                  scale_stride, tokens, heads);
}

// Norm rows of a multiple of 512 channels, 8,192 at most, to bfloat16, or with `scales` to e4m3.
int norm_rows_call(const Bf16 *x, long long stride, const float *weight, void *out, float *scales,
                   long long scale_stride, int rows, int width, float eps, int processors,
                   void *where) {
    const Normed to = {out, scales, scale_stride};
    const auto run = scales ? norm_some_rows<Codes> : norm_some_rows<Bf16>;
    return run(x, stride, weight, to, rows, width, eps, processors, where);
}
}

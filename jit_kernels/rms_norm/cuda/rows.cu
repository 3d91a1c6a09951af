// The entries of the library: which kernel a call needs.
#include "heads.cuh"
#include "norms.cuh"

namespace {

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

template <class Number, class Result>
int norm_some_heads(const void *q, const float *rotation, void *out, int tokens, int heads,
                    float eps, void *where) {
    const auto kernel =
        heads % EACH ? norm_heads<1, Number, Result> : norm_heads<EACH, Number, Result>;
    const long long shares = (long long)tokens * (heads % EACH ? heads : heads / EACH);
    return launch(kernel, blocks_for(shares, WARPS), WARPS * 32, where,
                  static_cast<const Number *>(q), rotation, static_cast<Result *>(out), tokens,
                  heads, eps);
}

template <class Number>
int round_some_heads(const void *x, long long stride, const float *rotation, void *codes,
                     float *scales, long long scale_stride, int tokens, int heads, void *where) {
    const dim3 blocks(blocks_for(tokens, WARPS), blocks_for(heads, EACH));
    return launch(round_heads<EACH, Number>, blocks, WARPS * 32, where,
                  static_cast<const Number *>(x), stride, rotation,
                  static_cast<unsigned char *>(codes), scales, scale_stride, tokens, heads);
}

template <class Number, class Result>
int norm_some_rows(const void *x, long long stride, const float *weight, const Normed &to, int rows,
                   int width, float eps, int processors, void *where) {
    const auto kernel = norm_rows<Number, Result>;
    const int threads = width / (2 * EIGHT);
    int resident = 1;
    const cudaError_t error =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0);
    if (error != cudaSuccess) return error;
    const int blocks = rows < processors * resident ? rows : processors * resident;
    return launch(kernel, dim3(blocks), threads, where, static_cast<const Number *>(x), stride,
                  weight, to, rows, width, 1.0f / width, eps);
}

}  // namespace

extern "C" {

const char *rows_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Each returns a cudaError_t. `is_bf16` says whether the input is bfloat16, else it is float32, and
// `to_bf16` says it of the result.

// Norm heads of 512 and turn their last 64 channels.
int norm_heads_call(const void *q, int is_bf16, const float *rotation, void *out, int to_bf16,
                    int tokens, int heads, float eps, void *where) {
    using Bf16 = __nv_bfloat16;
    const auto run =
        is_bf16 ? (to_bf16 ? norm_some_heads<Bf16, Bf16> : norm_some_heads<Bf16, float>)
                : (to_bf16 ? norm_some_heads<float, Bf16> : norm_some_heads<float, float>);
    return run(q, rotation, out, tokens, heads, eps, where);
}

// Turn the last 64 channels of heads of 512 back and round all to e4m3.
int round_heads_call(const void *x, int is_bf16, long long stride, const float *rotation,
                     void *codes, float *scales, long long scale_stride, int tokens, int heads,
                     void *where) {
    const auto run = is_bf16 ? round_some_heads<__nv_bfloat16> : round_some_heads<float>;
    return run(x, stride, rotation, codes, scales, scale_stride, tokens, heads, where);
}

// Norm rows of a multiple of 512 channels, 8,192 at most; `kind` of the result is 0 for float32, 1
// for bfloat16, 2 for e4m3 codes with scales.
int norm_rows_call(const void *x, int is_bf16, long long stride, const float *weight, void *out,
                   int kind, float *scales, long long scale_stride, int rows, int width, float eps,
                   int processors, void *where) {
    using Bf16 = __nv_bfloat16;
    const Normed to = {out, scales, scale_stride};
    const auto run =
        is_bf16 ? (kind == 0   ? norm_some_rows<Bf16, float>
                   : kind == 1 ? norm_some_rows<Bf16, Bf16>
                               : norm_some_rows<Bf16, Codes>)
                : (kind == 0   ? norm_some_rows<float, float>
                   : kind == 1 ? norm_some_rows<float, Bf16>
                               : norm_some_rows<float, Codes>);
    return run(x, stride, weight, to, rows, width, eps, processors, where);
}
}

// The entries of the library: which kernel a call needs.
#include <cuda_runtime.h>

#include "route.cuh"
#include "sift.cuh"

namespace {

template <class... Given>
int launch(void (*kernel)(Given...), int blocks, void *where, Given... given) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(WARPS * 32);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, given...);
}

// Launch the kernel for any number of experts; lanes sort EACH of them in SIZE places.
template <int EACH, int SIZE>
int launch_any(const Call &call, bool whole, void *where) {
    const int blocks = (call.tokens + WARPS - 1) / WARPS;
    if (whole && call.count == 32 * EACH) {
        return launch(route_topk<EACH, SIZE, true, 0>, blocks, where, call);
    }
    return launch(route_topk<EACH, SIZE, false, 0>, blocks, where, call);
}

template <int TOKENS, int EACH>
int launch_whole(const Call &call, void *where) {
    const int blocks = (call.tokens + TOKENS * WARPS - 1) / (TOKENS * WARPS);
    return call.top_k == 6 ? launch(route_whole<TOKENS, EACH, 6>, blocks, where, call)
                           : launch(route_whole<TOKENS, EACH, 8>, blocks, where, call);
}

// Two tokens to a warp where one each would not run at once.
template <int EACH>
int launch_whole(const Call &call, int processors, void *where) {
    const bool two = call.tokens > processors * BLOCKS<EACH> * WARPS;
    return two ? launch_whole<2, EACH>(call, where) : launch_whole<1, EACH>(call, where);
}

}  // namespace

extern "C" {

const char *route_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Choose `top_k` of up to 512 experts, no more than 32, and weigh them. Returns a cudaError_t.
int route_topk_call(const float *logits, long long stride, const float *bias, long long *experts,
                    float *weights, int tokens, int count, int top_k, float scale, int processors,
                    void *where) {
    const Call call = {logits, bias, stride, experts, weights, tokens, count, top_k, scale};
    const unsigned long long places = reinterpret_cast<unsigned long long>(logits) |
                                      reinterpret_cast<unsigned long long>(bias) |
                                      stride * sizeof(float);
    const bool whole = places % 16 == 0;
    if (whole && (top_k == 6 || top_k == 8)) {
        if (count == 256) return launch_whole<8>(call, processors, where);
        if (count == 384) return launch_whole<12>(call, processors, where);
    }
    if (count <= 64) return launch_any<2, 2>(call, whole, where);
    if (count <= 256) return launch_any<8, 8>(call, whole, where);
    if (count <= 384) return launch_any<12, 16>(call, whole, where);
    return launch_any<16, 16>(call, whole, where);
}

// Look up `top_k` experts of each token, no more than 32, and weigh them. Returns a cudaError_t.
int route_hashed_call(const float *logits, long long stride, const long long *table,
                      const long long *ids, long long *experts, float *weights, int tokens,
                      int known, int top_k, float scale, void *where) {
    const Call call = {logits, nullptr, stride, experts, weights, tokens, 0, top_k, scale};
    const int group = top_k <= 8 ? 8 : 32, threads = WARPS * 32;
    const int blocks = (tokens * group + threads - 1) / threads;
    return group == 8 ? launch(route_hashed<8>, blocks, where, call, table, ids, known)
                      : launch(route_hashed<32>, blocks, where, call, table, ids, known);
}
}

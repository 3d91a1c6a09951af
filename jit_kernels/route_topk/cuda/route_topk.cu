// The entries of the library: which kernel a call needs.
#include <cuda_runtime.h>

#include "route.cuh"

namespace {

template <class Kernel>
int launch(Kernel kernel, const Call &call, int blocks, void *where) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(WARPS * 32);
    config.stream = static_cast<cudaStream_t>(where);
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <int EACH, int SIZE>
int launch_topk(const Call &call, void *where) {
    const int blocks = (call.tokens + WARPS - 1) / WARPS;
    const unsigned long long places = reinterpret_cast<unsigned long long>(call.logits) |
                                      reinterpret_cast<unsigned long long>(call.bias) |
                                      call.stride * sizeof(float);
    if (call.count != 32 * EACH || places % 16) {
        return launch(route_topk<EACH, SIZE, false, 0>, call, blocks, where);
    }
    if (call.top_k == 6) return launch(route_topk<EACH, SIZE, true, 6>, call, blocks, where);
    if (call.top_k == 8) return launch(route_topk<EACH, SIZE, true, 8>, call, blocks, where);
    return launch(route_topk<EACH, SIZE, true, 0>, call, blocks, where);
}

}  // namespace

extern "C" {

const char *route_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Choose `top_k` of up to 512 experts, no more than 32, and weigh them. Returns a cudaError_t.
int route_topk_call(const float *logits, long long stride, const float *bias, long long *experts,
                    float *weights, int tokens, int count, int top_k, float scale, void *where) {
    const Call call = {logits, bias, stride, experts, weights, tokens, count, top_k, scale};
    if (count <= 64) return launch_topk<2, 2>(call, where);
    if (count <= 256) return launch_topk<8, 8>(call, where);
    if (count <= 384) return launch_topk<12, 16>(call, where);
    return launch_topk<16, 16>(call, where);
}

// Weigh the `top_k` experts of each token, no more than 32. Returns a cudaError_t.
int route_hashed_call(const float *logits, long long stride, long long *experts, float *weights,
                      int tokens, int top_k, float scale, void *where) {
    const Call call = {logits, nullptr, stride, experts, weights, tokens, 0, top_k, scale};
    const int group = top_k <= 8 ? 8 : 32, threads = WARPS * 32;
    const int blocks = (tokens * group + threads - 1) / threads;
    return group == 8 ? launch(route_hashed<8>, call, blocks, where)
                      : launch(route_hashed<32>, call, blocks, where);
}
}

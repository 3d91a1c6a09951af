// The entries of the library: which kernel a call needs.
#include <cuda_runtime.h>

#include "device/tensor_map.cuh"
#include "gate.cuh"
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

// Describe lines of bfloat16 numbers, of which a copy takes strips of so many lines.
cudaError_t describe(CUtensorMap &tensor, const void *from, long long lines, long long stride,
                     int depth, int box) {
    static const Describe function = find_describe();
    if (function == nullptr) return cudaErrorNotSupported;
    const cuuint64_t size[2] = {(cuuint64_t)depth, (cuuint64_t)lines};
    const cuuint64_t bytes[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t tile[2] = {CHANNELS, (cuuint32_t)box}, step[2] = {1, 1};
    const CUresult result =
        function(&tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(from), size, bytes,
                 tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// What a gate multiplies.
struct Rows {
    const void *x, *weight;
    long long stride;
    int depth;
};

template <class Product, class... Given>
int launch_gate(void (*kernel)(Call, Operands, Given...), int bytes, const Rows &rows,
                const Call &call, void *where, Given... given) {
    Operands operands = {};
    operands.strips = rows.depth / CHANNELS;
    cudaError_t error =
        describe(operands.tokens, rows.x, call.tokens, rows.stride, rows.depth, Product::TOKENS);
    if (error == cudaSuccess) {
        error = describe(operands.experts, rows.weight, call.count, rows.depth, rows.depth,
                         call.count / CLUSTER);
    }
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2] = {early_launch(), {}};
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {CLUSTER, 1, 1};
    constexpr int CLUSTER_TOKENS = Product::TOKENS * CLUSTER;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((call.tokens + CLUSTER_TOKENS - 1) / CLUSTER_TOKENS * CLUSTER);
    config.blockDim = dim3(Product::WARPS * 32);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, call, operands, given...);
}

template <int EXPERTS, int TEAMS>
int launch_gate_topk(const Rows &rows, const Call &call, void *where) {
    using Mine = Product<EXPERTS, TEAMS>;
    constexpr int bytes = sizeof(Gate<EXPERTS, TEAMS>);
    return call.top_k == 6
               ? launch_gate<Mine>(gate_topk<EXPERTS, TEAMS, 6>, bytes, rows, call, where)
               : launch_gate<Mine>(gate_topk<EXPERTS, TEAMS, 8>, bytes, rows, call, where);
}

template <int EXPERTS, int TEAMS>
int launch_gate_hashed(const Rows &rows, const Call &call, const long long *table,
                       const long long *ids, int known, void *where) {
    using Mine = Product<EXPERTS, TEAMS>;
    return launch_gate<Mine>(gate_hashed<EXPERTS, TEAMS, 8>, sizeof(Mine), rows, call, where, table,
                             ids, known);
}

// Whether blocks of 64 tokens would take turns; sums of 384 experts leave room for no others.
bool takes_two(const Call &call, int processors) {
    return call.count == 256 && call.tokens > processors * TEAM_TOKENS;
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

// Multiply tokens by a gate's weight and choose 6 or 8 of 256 or 384 experts; rows begin at multiples
// of 16 bytes, and `depth` is a multiple of 64. Returns a cudaError_t.
int gate_topk_call(const void *x, long long stride, const void *weight, const float *bias,
                   long long *experts, float *weights, int tokens, int count, int depth, int top_k,
                   float scale, int processors, void *where) {
    const Call call = {nullptr, bias, 0, experts, weights, tokens, count, top_k, scale};
    const Rows rows = {x, weight, stride, depth};
    if (takes_two(call, processors)) return launch_gate_topk<256, 2>(rows, call, where);
    return count == 256 ? launch_gate_topk<256, 1>(rows, call, where)
                        : launch_gate_topk<384, 1>(rows, call, where);
}

// The same with experts that are looked up, no more than 8.
int gate_hashed_call(const void *x, long long stride, const void *weight, const long long *table,
                     const long long *ids, long long *experts, float *weights, int tokens,
                     int count, int depth, int known, int top_k, float scale, int processors,
                     void *where) {
    const Call call = {nullptr, nullptr, 0, experts, weights, tokens, count, top_k, scale};
    const Rows rows = {x, weight, stride, depth};
    if (takes_two(call, processors)) {
        return launch_gate_hashed<256, 2>(rows, call, table, ids, known, where);
    }
    return count == 256 ? launch_gate_hashed<256, 1>(rows, call, table, ids, known, where)
                        : launch_gate_hashed<384, 1>(rows, call, table, ids, known, where);
}
}

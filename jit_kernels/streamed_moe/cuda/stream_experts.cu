// The entries of the library: which kernel a call needs.
#include "stream.cuh"
#include "units.cuh"

namespace {

template <int WARPS, int STAGES, int EIGHTS, bool GATES>
int launch(const Call &call, int blocks, void *where) {
    const auto kernel = stream_experts<WARPS, STAGES, EIGHTS, GATES>;
    constexpr int bytes = sizeof(Shared<WARPS, STAGES, EIGHTS>);
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(WARPS * 32);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    return cudaLaunchKernelEx(&config, kernel, call);
}

// Few blocks of rows are shared out in smaller parts, with as many bytes under way.
template <bool GATES>
int launch(const Call &call, int size, int few, int blocks, void *where) {
    if (size == 16) {
        return few ? launch<4, 16, 2, GATES>(call, blocks, where)
                   : launch<16, 4, 2, GATES>(call, blocks, where);
    }
    return few ? launch<4, 16, 1, GATES>(call, blocks, where)
               : launch<16, 4, 1, GATES>(call, blocks, where);
}

// The launch before is waited for by the kernels themselves.
template <bool GATES, bool SORTED>
int launch_units(const Call &call, int blocks, void *where) {
    const int bytes = units::shared_bytes(call.depth);
    const auto kernel = units::stream_units<GATES, SORTED>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(units::THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

template <bool GATES>
int launch_units(const Call &call, int blocks, void *where) {
    return call.slots ? launch_units<GATES, true>(call, blocks, where)
                      : launch_units<GATES, false>(call, blocks, where);
}

}  // namespace

extern "C" {

const char *stream_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Multiply blocks of `size` rows, 8 or 16, by their experts' weights; `count` blocks of threads, as
// many as the device has multiprocessors. `gates` halves the lines and writes bfloat16, else
// float32. Returns a cudaError_t.
int stream_experts_call(const void *weight, const void *scales, const void *rows,
                        long long row_stride, const int *slots, const int *expert, void *out,
                        int blocks, int lines, int depth, int share, float limit, int gates,
                        int size, int few, int count, void *where) {
    const Call call = {static_cast<const unsigned char *>(weight),
                       static_cast<const unsigned char *>(scales),
                       static_cast<const __nv_bfloat16 *>(rows), slots, expert, out, row_stride,
                       blocks, lines, depth, share, limit, 0, 0};
    return gates ? launch<true>(call, size, few, count, where)
                 : launch<false>(call, size, few, count, where);
}

// The same for blocks of 8 rows in units of 16 lines a warp. With `gates` the rows come as they are
// and not 2^96 times too large; all begin at multiples of 16 bytes. All channels of eight rows fit
// shared memory up to a depth of 4,096. Without `slots` a single row is multiplied by the experts
// whose ids are `expert`, each of `id_words` words of 4 bytes; those not below `experts` give zeros.
// Returns a cudaError_t.
int stream_units_call(const void *weight, const void *scales, const void *rows,
                      long long row_stride, const int *slots, const int *expert, void *out,
                      int blocks, int lines, int depth, int share, float limit, int gates,
                      int experts, int id_words, int count, void *where) {
    const Call call = {static_cast<const unsigned char *>(weight),
                       static_cast<const unsigned char *>(scales),
                       static_cast<const __nv_bfloat16 *>(rows), slots, expert, out, row_stride,
                       blocks, lines, depth, share, limit, experts, id_words};
    return gates ? launch_units<true>(call, count, where) : launch_units<false>(call, count, where);
}
}

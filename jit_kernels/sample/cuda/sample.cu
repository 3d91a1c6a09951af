// The entry of the library.
#include <cuda_runtime.h>

#include "draw.cuh"

namespace {

template <int FOURS>
int launch(const Call &call, int rows, void *where) {
    const size_t bytes = sizeof(Shared<FOURS>);
    const auto kernel = draw_tokens<FOURS>;
    const int error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error) return error;
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows * RANKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace

extern "C" {

const char *sample_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Draw a token of each row of up to 2^18 logits. `keys` are those of the rows' noise. Returns a
// cudaError_t.
int sample_call(const float *logits, long long stride, const float *temperature,
                const long long *top_k, const float *top_p, const float *min_p,
                const long long *keys, long long *tokens, int rows, int vocab, int filters,
                void *where) {
    const int aligned = (reinterpret_cast<unsigned long long>(logits) | stride * 4) % 16 == 0;
    const Call call = {logits, stride, temperature, top_p, min_p,  top_k,
                       keys,   tokens, vocab,       filters, aligned};
    return vocab <= RANKS * THREADS * 16 ? launch<4>(call, rows, where)
                                         : launch<8>(call, rows, where);
}
}

// Weights asked for by the copy engines: a thread names a stretch, and nobody waits for it.
#include <cuda_runtime.h>

namespace {

constexpr int WEIGHTS = 4, THREADS = 64, STRETCH = 4096;

struct Call {
    const unsigned char *weights[WEIGHTS];
    long long bytes[WEIGHTS];
};

// Stretches of all weights in order, a thread one of them. Whole 16 bytes are asked for.
__global__ void prefetch(const __grid_constant__ Call call) {
    long long first = ((long long)blockIdx.x * THREADS + threadIdx.x) * STRETCH;
#pragma unroll
    for (int nth = 0; nth < WEIGHTS; nth++) {
        const long long bytes = call.bytes[nth];
        if (first >= 0 && first < bytes) {
            const long long left = bytes - first;
            const unsigned size = (unsigned)(left < STRETCH ? left : STRETCH);
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                             call.weights[nth] + first),
                         "r"(size)
                         : "memory");
        }
        first -= (bytes + STRETCH - 1) / STRETCH * STRETCH;
    }
}

}  // namespace

extern "C" {

const char *prefetch_weights_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Ask for up to four weights; those of no bytes are none. They begin at multiples of 16 bytes;
// what is beyond the last whole 16 bytes is left out. Returns a cudaError_t.
int prefetch_weights_call(const void *a, long long a_bytes, const void *b, long long b_bytes,
                          const void *c, long long c_bytes, const void *d, long long d_bytes,
                          void *where) {
    const void *const weights[WEIGHTS] = {a, b, c, d};
    const long long bytes[WEIGHTS] = {a_bytes, b_bytes, c_bytes, d_bytes};
    Call call = {};
    long long stretches = 0;
    for (int nth = 0; nth < WEIGHTS; nth++) {
        if (reinterpret_cast<unsigned long long>(weights[nth]) % 16) continue;
        call.weights[nth] = static_cast<const unsigned char *>(weights[nth]);
        call.bytes[nth] = bytes[nth] / 16 * 16;
        stretches += (call.bytes[nth] + STRETCH - 1) / STRETCH;
    }
    if (!stretches) return cudaSuccess;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((stretches + THREADS - 1) / THREADS));
    config.blockDim = dim3(THREADS);
    config.stream = static_cast<cudaStream_t>(where);
    return cudaLaunchKernelEx(&config, prefetch, call);
}
}

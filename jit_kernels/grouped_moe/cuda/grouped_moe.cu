// The entry of the library.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "gate.cuh"

extern "C" {

const char *gate_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Gate `rows` sorted rows, a multiple of 4 as `head` is, of `inner` channels, a multiple of 128. All
// pointers and all rows begin at multiples of 16 bytes. Returns a cudaError_t.
int gate_rows_call(const void *products, const int *member, void *codes, float *scales, int rows,
                   int head, int inner, float limit, void *where) {
    const Call call = {static_cast<const __nv_bfloat16 *>(products),
                       member,
                       static_cast<unsigned char *>(codes),
                       scales,
                       rows,
                       head,
                       inner,
                       limit};
    const int wanted = inner / EACH, parts = (wanted + MOST_THREADS - 1) / MOST_THREADS;
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows / ROWS, parts);
    config.blockDim = dim3(((wanted + parts - 1) / parts + 31) / 32 * 32);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, gate_rows, call);
}
}

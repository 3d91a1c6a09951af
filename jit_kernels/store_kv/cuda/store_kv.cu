// The entry of the library: which kernel a call needs.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "store.cuh"

namespace {

int launch(const Pages &pages, const __nv_bfloat16 *rows, long long stride, const float *weight,
           const float *rotation, float eps, int processors, void *where) {
    // As many rows to a warp as it takes for all warps to run at once, and no more warps than that.
    const int warps = THREADS / 32, most = processors * BLOCKS * warps;
    const int each = (pages.rows + most - 1) / most;
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((pages.rows + each * warps - 1) / (each * warps));
    config.blockDim = dim3(THREADS);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, store_records, pages, rows, stride, weight, rotation,
                              eps);
}

}  // namespace

extern "C" {

const char *store_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Norm rows of 512 bfloat16 numbers, turn their last 64 and store them as records. Returns a cudaError_t.
int norm_rope_store_call(const void *rows, long long stride, const float *weight,
                         const float *rotation, float eps, const long long *slots, void *bytes,
                         int count, int page_rows, int data_bytes, int scale_bytes,
                         long long page_bytes, int processors, void *where) {
    const Pages pages = {static_cast<unsigned char *>(bytes), slots, page_bytes, count, page_rows,
                         data_bytes, scale_bytes};
    return launch(pages, static_cast<const __nv_bfloat16 *>(rows), stride, weight, rotation, eps,
                  processors, where);
}
}

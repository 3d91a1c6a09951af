// The entries of the library: which kernel a call needs.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "store.cuh"

namespace {

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), int blocks, void *where, Args... args) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(THREADS);
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

template <class Number>
int launch_records(const Pages &pages, const void *rows, long long stride, const float *weight,
                   const float *rotation, float eps, int processors, void *where) {
    // As many rows to a warp as it takes for all warps to run at once, and no more warps than that.
    const int warps = THREADS / 32, most = processors * BLOCKS<Number> * warps;
    const int each = (pages.rows + most - 1) / most;
    const int blocks = (pages.rows + each * warps - 1) / (each * warps);
    const auto kernel = weight ? store_records<true, Number> : store_records<false, Number>;
    return launch(kernel, blocks, where, pages, static_cast<const Number *>(rows), stride, weight,
                  rotation, eps);
}

template <class Number>
int launch_keys(const Pages &pages, const void *rows, long long stride, float norm, void *where) {
    const int each = THREADS / KEY_LANES;
    return launch(store_keys<Number>, (pages.rows + each - 1) / each, where, pages,
                  static_cast<const Number *>(rows), stride, norm);
}

}  // namespace

extern "C" {

const char *store_words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Store records of 512 numbers; with `weight`, normed and rotated first. Returns a cudaError_t.
int store_records_call(const void *rows, int is_bf16, long long stride, const float *weight,
                       const float *rotation, float eps, const long long *slots, void *bytes,
                       int count, int page_rows, int data_bytes, int scale_bytes,
                       long long page_bytes, int processors, void *where) {
    const Pages pages = {static_cast<unsigned char *>(bytes), slots, page_bytes, count, page_rows,
                         data_bytes, scale_bytes};
    const auto launch = is_bf16 ? launch_records<__nv_bfloat16> : launch_records<float>;
    return launch(pages, rows, stride, weight, rotation, eps, processors, where);
}

// Store keys of 128 numbers, transformed and times `norm`. Returns a cudaError_t.
int store_keys_call(const void *rows, int is_bf16, long long stride, float norm,
                    const long long *slots, void *bytes, int count, int page_rows, int data_bytes,
                    int scale_bytes, long long page_bytes, void *where) {
    const Pages pages = {static_cast<unsigned char *>(bytes), slots, page_bytes, count, page_rows,
                         data_bytes, scale_bytes};
    return is_bf16 ? launch_keys<__nv_bfloat16>(pages, rows, stride, norm, where)
                   : launch_keys<float>(pages, rows, stride, norm, where);
}
}

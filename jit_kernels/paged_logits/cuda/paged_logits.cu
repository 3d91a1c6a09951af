// The entry of the library.
#include "device/tensor_map.cuh"
#include "streamed.cuh"

namespace {

// Launch a block of threads for each page that there may be, on so many processors at most.
template <typename Argument, typename... Arguments>
cudaError_t launch(void (*kernel)(Argument, Arguments...), int threads, int bytes, int processors,
                   void *where, const Argument &call, const Arguments &...more) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute early = early_launch();
    const long long most = (long long)call.rows * ((call.columns + PAGE_KEYS - 1) / PAGE_KEYS);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(most < processors ? most : processors));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call, more...);
}

// Describe lines of 128 bytes that follow each other, of which a copy takes a tile.
cudaError_t describe(CUtensorMap &lines, const void *from, long long count, int tile_lines) {
    static const Describe function = find_describe();
    if (function == nullptr) return cudaErrorNotSupported;
    const cuuint64_t size[2] = {WIDTH, (cuuint64_t)count}, stride[1] = {WIDTH};
    const cuuint32_t tile[2] = {WIDTH, (cuuint32_t)tile_lines}, step[2] = {1, 1};
    const CUresult result =
        function(&lines, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(from), size, stride,
                 tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

extern "C" {

const char *paged_logits_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Score up to 128 rows. Queries, weights and pages begin at multiples of 16 bytes; `count` pages
// follow each other. Returns a cudaError_t.
int paged_logits_call(const void *queries, const float *weights, const void *pages,
                               long long count, const int *table, long long table_stride,
                               const int *blocks, float *scores, int rows, int columns,
                               int processors, void *where) {
    const Call call = {static_cast<const unsigned char *>(queries),
                       static_cast<const unsigned char *>(pages), weights, table, blocks, scores,
                       table_stride, rows, columns};
    streamed::Tensors tensors;
    constexpr int LINES = streamed::PAGE_LINES;
    cudaError_t error = describe(tensors.keys, pages, count * LINES, LINES);
    if (error == cudaSuccess) error = describe(tensors.queries, queries, rows * HEADS, HEADS);
    if (error != cudaSuccess) return error;
    return launch(streamed::kernel, streamed::THREADS, sizeof(streamed::Shared), processors, where,
                  call, tensors);
}
}

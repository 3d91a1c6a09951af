// The entry of the library.
#include "few_rows.cuh"

extern "C" {

const char *paged_logits_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Score the blocks of `rows` rows, eight at most, on `blocks_of_threads` processors at most; the
// queries and the pages begin at multiples of 16 bytes. Returns a cudaError_t.
int paged_logits_call(const void *queries, const float *weights, const void *pages,
                      const int *table, long long table_stride, const int *blocks, float *scores,
                      int rows, int columns, int processors, void *where) {
    const int room = (MOST_SHARED - shared_bytes(rows, 0)) / (GROUPS * PAGE_BYTES);
    const int stages = room < MOST_STAGES ? room : MOST_STAGES;
    const Call call = {static_cast<const unsigned char *>(queries),
                       static_cast<const unsigned char *>(pages), weights, table, blocks, scores,
                       table_stride, rows, columns, stages};
    const int bytes = shared_bytes(rows, stages);
    const cudaError_t error =
        cudaFuncSetAttribute(few_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    const long long most = (long long)rows * ((columns + PAGE_KEYS - 1) / PAGE_KEYS);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(most < processors ? most : processors));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = static_cast<cudaStream_t>(where);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, few_rows, call);
}
}

// The entry of the library: which kernels a call needs.
#include <cuda_runtime.h>

#include "kernels.cuh"

namespace {

// Launch so that the kernel may start while the one before it ends; it waits for it by itself.
template <class Kernel, class... Args>
cudaError_t launch_early(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <int QUADS, bool ALIGNED>
cudaError_t long_rows(Scores scores, int rows, Row *scratch, long long *out, cudaStream_t stream) {
    const int piece = 4 * THREADS * QUADS;
    const dim3 grid((scores.columns + piece - 1) / piece, rows);
    count_bins<QUADS, ALIGNED><<<grid, THREADS, 0, stream>>>(scores, scratch);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    return launch_early(collect<QUADS, ALIGNED>, grid, stream, scores, scratch, out);
}

}  // namespace

extern "C" {

long long select_topk_row_bytes() { return sizeof(Row); }

const char *select_topk_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Select in `rows` rows, in groups of `group`; `scratch` has that many `Row`s, zero before the first
// call. Returns a cudaError_t.
int select_topk(const float *data, long long stride, const long long *visible, long long *out,
                int rows, int columns, int top_k, int group, void *scratch, void *where) {
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    Scores scores = {data, stride, visible, columns, top_k};
    if (columns <= SHORT_ROW) {
        const int bytes = columns * sizeof(unsigned);
        const cudaError_t error = cudaFuncSetAttribute(
            short_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess) return error;
        short_rows<<<rows, THREADS, bytes, stream>>>(scores, out);
        return cudaGetLastError();
    }
    const bool aligned = stride % 4 == 0 && reinterpret_cast<unsigned long long>(data) % 16 == 0;
    for (int first = 0; first < rows; first += group) {
        const int some = rows - first < group ? rows - first : group;
        scores.data = data + first * stride;
        scores.visible = visible + first;
        long long *const to = out + (long long)first * top_k;
        Row *const state = static_cast<Row *>(scratch);
        // Few scores are spread over all multiprocessors; many in pieces that keep loads in flight.
        const bool few = (long long)some * columns <= 1 << 20;
        const cudaError_t error =
            few ? (aligned ? long_rows<1, true>(scores, some, state, to, stream)
                           : long_rows<1, false>(scores, some, state, to, stream))
                : (aligned ? long_rows<4, true>(scores, some, state, to, stream)
                           : long_rows<4, false>(scores, some, state, to, stream));
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}

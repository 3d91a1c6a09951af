// The entry of the library: which kernels a call needs.
#include <cuda_runtime.h>

#include "few_rows.cuh"

namespace {

template <class Kernel, class... Args>
cudaError_t launch(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Spread rows over about `blocks` blocks: few scores at a time, or pieces that keep loads in flight.
template <bool ALIGNED>
cudaError_t launch_long(Scores scores, int rows, int blocks, Row *scratch, long long *out,
                        cudaStream_t stream) {
    const int each = blocks / rows > 1 ? blocks / rows : 1, step = 4 * THREADS;
    const int least = (scores.columns + each - 1) / each;
    if (least <= step) {
        const dim3 grid((scores.columns + step - 1) / step, rows);
        return launch(long_rows<1, ALIGNED>, grid, stream, scores, scratch, step, out);
    }
    const int piece = (least + 4 * step - 1) / (4 * step) * (4 * step);
    const dim3 grid((scores.columns + piece - 1) / piece, rows);
    return launch(long_rows<4, ALIGNED>, grid, stream, scores, scratch, piece, out);
}

// Hold few rows in blocks of their own. The launch is prepared while the kernel before it ends; it
// waits for that by itself.
template <bool ALIGNED>
cudaError_t launch_few(Scores scores, int rows, Row *scratch, long long *out, cudaStream_t stream) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(SHARES, rows);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, few_rows<ALIGNED>, scores, scratch, out);
}

}  // namespace

extern "C" {

long long select_topk_row_bytes() { return sizeof(Row); }

const char *select_topk_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Select in `rows` rows, in groups of `group` by about `blocks` blocks; `few` rows, less than a
// group, and fewer go another way where it takes them. `scratch` has as many `Row`s as a group,
// zero before the first call. Returns a cudaError_t.
int select_topk(const float *data, long long stride, const long long *visible, long long *out,
                int rows, int columns, int top_k, int group, int blocks, int few, void *scratch,
                void *where) {
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    Scores scores = {data, stride, visible, columns, top_k};
    const bool aligned = stride % 4 == 0 && reinterpret_cast<unsigned long long>(data) % 16 == 0;
    if (columns <= SHORT_ROW) {
        return aligned ? launch(short_rows<true>, dim3(rows), stream, scores, out)
                       : launch(short_rows<false>, dim3(rows), stream, scores, out);
    }
    if (rows <= few && columns <= FEW_COLUMNS && top_k <= FEW_TOP_K) {
        Row *const state = static_cast<Row *>(scratch);
        return aligned ? launch_few<true>(scores, rows, state, out, stream)
                       : launch_few<false>(scores, rows, state, out, stream);
    }
    for (int first = 0; first < rows; first += group) {
        const int some = rows - first < group ? rows - first : group;
        scores.data = data + first * stride;
        scores.visible = visible + first;
        long long *const to = out + (long long)first * top_k;
        Row *const state = static_cast<Row *>(scratch);
        const cudaError_t error =
            aligned ? launch_long<true>(scores, some, blocks, state, to, stream)
                    : launch_long<false>(scores, some, blocks, state, to, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}

// The entry of the library: which kernels a call needs.
#include <cuda_runtime.h>

#include "held_rows.cuh"

namespace {

template <class Kernel, class... Args>
cudaError_t launch(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// A launch that is prepared while the kernel before it ends, and waits for that by itself.
template <class Kernel, class... Args>
cudaError_t launch_early(Kernel kernel, dim3 grid, cudaStream_t stream, Args... args) {
    cudaLaunchAttribute early = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Spread rows over about `blocks` blocks: few scores at a time, or pieces that keep loads going.
template <bool ALIGNED>
cudaError_t launch_long(Scores scores, int rows, int blocks, Row *scratch, Target target,
                        cudaStream_t stream) {
    const int each = blocks / rows > 1 ? blocks / rows : 1, step = 4 * THREADS;
    const int least = (scores.columns + each - 1) / each;
    if (least <= step) {
        const dim3 grid((scores.columns + step - 1) / step, rows);
        return launch(long_rows<1, ALIGNED>, grid, stream, scores, scratch, step, target);
    }
    const int piece = (least + 4 * step - 1) / (4 * step) * (4 * step);
    const dim3 grid((scores.columns + piece - 1) / piece, rows);
    return launch(long_rows<4, ALIGNED>, grid, stream, scores, scratch, piece, target);
}

// Let each row be held by one block.
template <bool ALIGNED>
cudaError_t launch_short(Scores scores, int rows, Target target, cudaStream_t stream) {
    if (scores.columns <= HELD * THREADS) {
        return launch_early(held_rows, dim3(rows), stream, scores, target);
    }
    return launch(short_rows<ALIGNED>, dim3(rows), stream, scores, target);
}

}  // namespace

extern "C" {

long long select_topk_row_bytes() { return sizeof(Row); }

const char *select_topk_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Select in `rows` rows of a call.
//
// data, stride, visible, wide   scores; lengths are of long long where wide, else of int
// out, out_stride, out_columns  rows of long long; with a table, of int
// table, table_stride, shift    null, or the pages of a row, of 1 << shift columns each
// group, blocks, scratch        long rows go in groups of `group` to about `blocks` blocks;
//                               `scratch` is of as many `Row`s as a group, all zero at first
//
// Returns a cudaError_t.
int select_topk(const float *data, long long stride, const void *visible, int wide, void *out,
                long long out_stride, int out_columns, const int *table, long long table_stride,
                int shift, int rows, int columns, int top_k, int group, int blocks,
                void *scratch, void *where) {
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    Row *const state = static_cast<Row *>(scratch);
    Scores scores = {data, stride, visible, wide != 0, columns, top_k};
    Target target = {out, out_stride, out_columns, table, table_stride, shift};
    const bool aligned = stride % 4 == 0 && reinterpret_cast<unsigned long long>(data) % 16 == 0;
    if (columns <= SHORT_ROW) {
        return aligned ? launch_short<true>(scores, rows, target, stream)
                       : launch_short<false>(scores, rows, target, stream);
    }
    for (int first = 0; first < rows; first += group) {
        const int some = rows - first < group ? rows - first : group;
        scores.data = data + first * stride;
        scores.visible = static_cast<const char *>(visible) + first * (wide ? 8ll : 4ll);
        const Target to = target.of(first);
        const cudaError_t error =
            aligned ? launch_long<true>(scores, some, blocks, state, to, stream)
                    : launch_long<false>(scores, some, blocks, state, to, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}

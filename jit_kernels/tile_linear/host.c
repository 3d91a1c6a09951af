/* Products of rows with a weight, a tile of dot products at a time. */
#include "../host.h"

enum { BLOCK_ROWS = 192, BLOCK_BYTES = 24 << 10 };

/* One tile at (row, column); pointers past the end repeat the last one and are not stored. */
INLINE void tile(int tile_rows, int tile_columns, const float *x, int64_t x_stride, Matrix weight,
                 float *out, int64_t out_stride, int64_t rows, int64_t columns, int64_t depth) {
    const float *a[TILE];
    const void *b[TILE];
    int64_t width = weight.half ? 2 : 4;
    for (int r = 0; r < tile_rows; r++) a[r] = x + (r < rows ? r : rows - 1) * x_stride;
    for (int c = 0; c < tile_columns; c++)
        b[c] = (const char *)weight.data +
               (c < columns ? c : columns - 1) * weight.stride * width;
    /* One row reads each weight once, and waits for memory: what comes next is on its way. */
    int64_t ahead = tile_rows == 1 ? 2 * TILE * weight.stride * width : 0;
    Vector sums = weight.half ? dots_ahead(tile_rows, tile_columns, a, b, 1, depth, ahead)
                              : dots_ahead(tile_rows, tile_columns, a, b, 0, depth, ahead);
    float found[TILE];
    store(found, sums);
    int64_t stored = columns < tile_columns ? columns : tile_columns;
    for (int r = 0; r < tile_rows && r < rows; r++)
        memcpy(out + r * out_stride, found + r * tile_columns, stored * sizeof(float));
}

static Matrix from_row(Matrix matrix, int64_t row) {
    int64_t width = matrix.half ? 2 : 4;
    matrix.data = (const char *)matrix.data + row * matrix.stride * width;
    return matrix;
}

void linear(const float *x, int64_t x_stride, Matrix weight, float *out, int64_t out_stride,
            int64_t rows, int64_t columns, int64_t depth) {
    if (rows == 1) {
        for (int64_t c = 0; c < columns; c += TILE)
            tile(1, TILE, x, x_stride, from_row(weight, c), out + c, out_stride, 1, columns - c,
                 depth);
        return;
    }
    /* As many columns at a time as stay in the first cache while the rows pass by. */
    int64_t wide = BLOCK_BYTES / (4 * (depth ? depth : 1)) / TILE_COLUMNS * TILE_COLUMNS;
    if (wide < TILE_COLUMNS) wide = TILE_COLUMNS;
    for (int64_t first = 0; first < rows; first += BLOCK_ROWS) {
        int64_t last = first + BLOCK_ROWS < rows ? first + BLOCK_ROWS : rows;
        for (int64_t left = 0; left < columns; left += wide) {
            int64_t right = left + wide < columns ? left + wide : columns;
            for (int64_t r = first; r < last; r += TILE_ROWS)
                for (int64_t c = left; c < right; c += TILE_COLUMNS)
                    tile(TILE_ROWS, TILE_COLUMNS, x + r * x_stride, x_stride, from_row(weight, c),
                         out + r * out_stride + c, out_stride, last - r, right - c, depth);
        }
    }
}

void tile_linear(const float *x, int64_t x_stride, const void *weight, int64_t weight_stride,
                 int64_t half, float *out, int64_t out_stride, int64_t rows, int64_t columns,
                 int64_t depth) {
    linear(x, x_stride, (Matrix){weight, weight_stride, (int)half}, out, out_stride, rows, columns,
           depth);
}

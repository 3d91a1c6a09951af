// What the last warp of a block does: `post` and the matrices of a few tokens of each tile.
#pragma once

#include "layout.cuh"

// Tokens of a tile whose matrices are this block's: its rank, and every `ranks`-th from there.
__device__ inline int matrices(int ranks, const Part &part) {
    return part.rank < TOKENS ? (TOKENS - 1 - part.rank) / ranks + 1 : 0;
}

// The first vector pair that this warp gathers. The first warps are those that tell.
__device__ inline int first_gathered() { return (warp_number() + WORKERS / 2) % WORKERS; }

// Where a lane finds its rank's part of the `nth` pair of vectors of this block's tokens.
template <int EACH>
__device__ inline const uint4 *gathered_at(const Board<3> &board, const Part &part, int nth,
                                           int tile) {
    const int lane = threadIdx.x % 32;
    const int token = part.rank + nth / 4 * board.ranks, vector = nth % 4 * 2 + lane / 16;
    return board.sums + board.sum_step(tile) + board.sum(token, vector + 1, lane % 16 * EACH);
}

// Ask, without waiting, for the first of what `gather` hears.
template <int EACH>
__device__ inline void ask_gathered(const Board<3> &board, const Part &part, int tile,
                                    Hearing<EACH> &hearing) {
    const int nth = first_gathered();
    if (nth >= matrices(board.ranks, part) * 4) return;
    hearing.ask(gathered_at<EACH>(board, part, nth, tile), board.ranks, board.tag + tile);
}

// Hear lines 3 to 23 and the squares of this block's tokens, two vectors a warp, and lay them out:
// line 3, squares, one unused, the gates of `post` and the matrix. The first have been asked for.
template <int EACH>
__device__ inline void gather(const Board<3> &board, const Part &part, Shared<3> &shared, int tile,
                              Hearing<EACH> &hearing) {
    const int lane = threadIdx.x % 32, line = line_of(lane), each = matrices(board.ranks, part);
    for (int nth = first_gathered(); nth < each * 4; nth += WORKERS) {
        const uint4 *const at = gathered_at<EACH>(board, part, nth, tile);
        if (nth >= WORKERS) hearing.ask(at, board.ranks, board.tag + tile);
        const float sum = hearing.sum(at, board.ranks, board.tag + tile);
        const int slot = tile % (BATCH / each) * each + nth / 4;
        const int vector = nth % 4 * 2 + lane / 16;
        if (lane % 16 < 4 && line < 3) shared.lines[slot][vector * 3 + line] = sum;
    }
}

// Normalise rows or columns of a matrix of positive numbers.
template <bool ROWS>
__device__ inline void normalise(float (&a)[STREAMS][STREAMS], float eps) {
    for (int i = 0; i < STREAMS; i++) {
        const auto at = [&](int j) -> float & { return ROWS ? a[i][j] : a[j][i]; };
        const float factor = reciprocal((at(0) + at(1)) + (at(2) + at(3)) + eps);
        for (int j = 0; j < STREAMS; j++) at(j) *= factor;
    }
}

// Write `post` and the matrix of one token, a lane's.
__device__ inline void balance(const Call &call, const float *lines, long long token) {
    const float factor = reciprocal_root(lines[1] * call.per_number + call.norm_eps);
    const float gain = __ldg(call.scale + 1), mixing_gain = __ldg(call.scale + 2);
    const auto gate = [&](int j) {
        return 2.0f * sigmoid(lines[3 + j] * factor * gain + __ldg(call.base + STREAMS + j));
    };
    reinterpret_cast<float4 *>(call.post)[token] = make_float4(gate(0), gate(1), gate(2), gate(3));
    float a[STREAMS][STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            const int nth = i * STREAMS + j;
            const float base = __ldg(call.base + 2 * STREAMS + nth);
            a[i][j] = lines[7 + nth] * factor * mixing_gain + base;
        }
        const float top = fmaxf(fmaxf(a[i][0], a[i][1]), fmaxf(a[i][2], a[i][3]));
        for (int j = 0; j < STREAMS; j++) a[i][j] = exponential(a[i][j] - top);
    }
    normalise<true>(a, 0.0f);
    for (auto &row : a) {
        for (float &x : row) x += call.hc_eps;
    }
    normalise<false>(a, call.hc_eps);
#pragma unroll 1
    for (int i = 1; i < call.iterations; i++) {
        normalise<true>(a, call.hc_eps);
        normalise<false>(a, call.hc_eps);
    }
    float4 *const to = reinterpret_cast<float4 *>(call.mixing) + token * STREAMS;
    for (int i = 0; i < STREAMS; i++) to[i] = make_float4(a[i][0], a[i][1], a[i][2], a[i][3]);
}

// Balance the matrices of the `heard` first tiles that are not balanced yet: those of a whole batch,
// or at the end of all tiles what is left.
__device__ inline void balance_batch(const Call &call, const Part &part, const Shared<3> &shared,
                                     int heard, bool ends) {
    const int each = matrices(call.ranks, part);
    if (!each || heard <= 0 || threadIdx.x / 32 != WORKERS - 1) return;
    const int batch = BATCH / each, count = (heard - 1) % batch + 1;
    if (!ends && (count != batch || heard >= part.tiles)) return;
    const int slot = threadIdx.x % 32;
    if (slot >= count * each) return;
    const int token = part.rank + slot % each * call.ranks;
    const int place = part.token(heard - count + slot / each) + token;
    if (place < call.tokens) balance(call, shared.lines[slot], place);
}

// Rows of `fn` on their way into registers: they come through shared memory that no tile has yet,
// some stages one after the other.
//
// `Rows` says how: CHANNELS of the block in each row, STAGES of COUNT rows, which row of `fn` is
// the `nth` of a stage (`row_of_fn`), and where they lie (`begin`).
#pragma once

#include "courier.cuh"
#include "multiply.cuh"

// Where the `nth` row of a stage lies. Rows begin 32 bytes apart, modulo 128: half a warp reads four
// of them without conflict.
template <class Rows, class Memory>
__device__ inline float *staged_row(Memory &shared, int stage, int nth) {
    static_assert(Rows::CHANNELS % 32 == 0);
    return Rows::begin(shared) + (stage * Rows::COUNT + nth) * (Rows::CHANNELS + 8);
}

template <class Rows>
constexpr int STAGED_BYTES = Rows::STAGES *Rows::COUNT *(Rows::CHANNELS + 8) * (int)sizeof(float);

// Announce the bytes of all rows; one thread.
template <class Rows, class Memory>
__device__ inline void expect_rows(Memory &shared) {
    for (auto &staged : shared.staged) {
        expect_bytes(&staged, Rows::COUNT * Rows::CHANNELS * sizeof(float));
    }
}

// Copy the block's channels of all rows, which no launch writes: the one before need not have ended.
// Each warp takes some rows. Barriers are there, and bytes are announced.
template <class Rows, class Memory>
__device__ inline void stage_rows(const Call &call, const Part &part, Memory &shared, int warp) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (int i = warp; i < Rows::STAGES * Rows::COUNT; i += THREADS / 32) {
            const int stage = i / Rows::COUNT, nth = i % Rows::COUNT;
            bulk_copy(staged_row<Rows>(shared, stage, nth),
                      call.fn + (long long)Rows::row_of_fn(stage, nth) * call.width + part.first,
                      Rows::CHANNELS * sizeof(float), &shared.staged[stage]);
        }
    }
    __syncwarp();
}

// Say that a multiplier has taken what it needs of a stage.
template <class Memory>
__device__ inline void leave_stage(Memory &shared, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&shared.unstaged[stage]);
}

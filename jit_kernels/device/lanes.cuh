// A warp's lanes, and what they find out together.
#pragma once

constexpr unsigned ALL = 0xffffffffu;

// The number of this warp, which the compiler then knows to be the same in all its threads.
__device__ inline int warp_number() { return __shfl_sync(ALL, (int)threadIdx.x / 32, 0); }

// Over LANES lanes side by side.
template <int LANES>
__device__ inline float largest_of_lanes(float x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

template <int LANES>
__device__ inline float sum_of_lanes(float x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

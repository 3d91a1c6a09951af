// Numbers of a lane, four at a time; copies that run beside the program.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "device/copies.cuh"
#include "device/lanes.cuh"
#include "device/numbers.cuh"
#include "device/order.cuh"

__device__ inline float4 four(const float *from) {
    return *reinterpret_cast<const float4 *>(from);
}

__device__ inline float4 sum(float4 x, float4 y) {
    return make_float4(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y), __fadd_rn(x.z, y.z),
                       __fadd_rn(x.w, y.w));
}

// x / y for y of no extreme size, near to the last bit.
__device__ inline float quotient(float x, float y) { return __fdividef(x, y); }

__device__ inline unsigned e4m3_codes(float4 x, float factor) {
    return e4m3_codes(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// The largest magnitude of LANES lanes side by side.
template <int LANES>
__device__ inline float largest_of_lanes(float4 x) {
    return largest_of_lanes<LANES>(
        fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
}

// Numbers of a lane, four at a time; copies that run beside the program; launches that overlap.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline float4 four(const float *from) {
    return *reinterpret_cast<const float4 *>(from);
}

__device__ inline float4 sum(float4 x, float4 y) {
    return make_float4(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y), __fadd_rn(x.z, y.z),
                       __fadd_rn(x.w, y.w));
}

// Exponents of e are exponents of 2 after a product with this.
constexpr float LOG2E = 1.4426950408889634f;

// 2^x as the device approximates it: one for 0, zero for -inf.
__device__ inline float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x / y for y of no extreme size, near to the last bit.
__device__ inline float quotient(float x, float y) { return __fdividef(x, y); }

__device__ inline float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline unsigned bf16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
    return pair;
}

// Four e4m3 codes of numbers in -448..448, to the nearest even, the first in the lowest byte.
__device__ inline unsigned e4m3_codes(float4 x, float factor) {
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(low)
        : "f"(x.x * factor), "f"(x.y * factor));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(high)
        : "f"(x.z * factor), "f"(x.w * factor));
    return low | (unsigned)high << 16;
}

// The biased exponent of 2^ceil(log2(max(amax, 1e-4) / 448)): that of `amax` less 8, and one more
// if its mantissa is above 1.75.
__device__ inline unsigned scale_exponent(float amax) {
    return ((__float_as_uint(fmaxf(amax, 1e-4f)) + 0x1fffffu) >> 23) - 8;
}

__device__ inline float power_of_two(unsigned exponent) { return __uint_as_float(exponent << 23); }

// The largest magnitude of LANES lanes side by side.
template <int LANES>
__device__ inline float largest_of_lanes(float4 x) {
    float highest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, step));
    }
    return highest;
}

// Bring 16 bytes into shared memory while the program goes on.
__device__ inline void copy_ahead(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ inline void copy_ahead(void *to, const void *from) {
    copy_ahead((unsigned)__cvta_generic_to_shared(to), from);
}
// The same for bytes that other warps of the block take soon after.
__device__ inline void copy_ahead_of_all(unsigned to, const void *from) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until all groups of copies of this thread but the last PENDING are there.
template <int PENDING>
__device__ inline void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Wait until all that the launch before wrote is there, then let the next one begin: what that does
// before it waits itself may read all that was there before this launch. Before it waits a kernel
// reads weights alone, which no launch of a step writes.
__device__ inline void await_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void follow_launch_before() {
    await_launch_before();
    let_next_begin();
}

// What the kernel asks of the device beyond C++: bulk copies into shared memory, products of small
// tiles, memory that other blocks write meanwhile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// The number of this warp, which the compiler then knows to be the same in all its threads.
__device__ inline int warp_number() { return __shfl_sync(ALL, (int)threadIdx.x / 32, 0); }

// Whether this is the one thread of the warp that copies.
__device__ inline bool is_elected() {
    int elected;
    asm volatile(
        "{\n"
        ".reg .pred mine;\n"
        "elect.sync _|mine, 0xffffffff;\n"
        "selp.b32 %0, 1, 0, mine;\n"
        "}"
        : "=r"(elected));
    return elected;
}

// The device's own approximations, a few units in the last place off.
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

// Make a barrier that one arrival and the bytes it announces complete.
__device__ inline void make_barrier(unsigned long long *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Let bulk copies see what this thread wrote into shared memory.
__device__ inline void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// How copies treat the L2 cache: keep as usual, or give up first what is read but once.
__device__ inline unsigned long long cache_policy(bool passing) {
    unsigned long long policy;
    if (passing) {
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    } else {
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    }
    return policy;
}

// Bring a line of memory into the L2 cache; what it holds may still change.
__device__ inline void ask_cache(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// Copy a multiple of 16 bytes from global memory; `barrier` counts them.
__device__ inline void bulk_copy(void *to, const void *from, unsigned bytes,
                                 unsigned long long *barrier, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

// Wait for the phase of a barrier, 0 or 1 in turn, to complete.
__device__ inline void await_phase(unsigned long long *barrier, int phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(phase)
        : "memory");
}

// Words that other blocks write meanwhile: 16 or 8 bytes are read and written at once.
__device__ inline uint4 read_now(const uint4 *from) {
    uint4 value;
    asm volatile(
        "{\n"
        ".reg .b128 whole;\n"
        ".reg .b64 low, high;\n"
        "ld.relaxed.gpu.global.b128 whole, [%4];\n"
        "mov.b128 {low, high}, whole;\n"
        "mov.b64 {%0, %1}, low;\n"
        "mov.b64 {%2, %3}, high;\n"
        "}"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(from)
        : "memory");
    return value;
}

__device__ inline void write_now(uint4 *to, uint4 value) {
    asm volatile(
        "{\n"
        ".reg .b128 whole;\n"
        ".reg .b64 low, high;\n"
        "mov.b64 low, {%1, %2};\n"
        "mov.b64 high, {%3, %4};\n"
        "mov.b128 whole, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], whole;\n"
        "}" ::"l"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
}

__device__ inline uint2 read_now(const uint2 *from) {
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return make_uint2((unsigned)value, (unsigned)(value >> 32));
}

__device__ inline void write_now(uint2 *to, uint2 value) {
    const unsigned long long whole = (unsigned long long)value.y << 32 | value.x;
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(whole) : "memory");
}

// Write 16 bytes for the next kernel.
__device__ inline void write_back(void *to, uint4 value) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

// Load four matrices of 8 rows and 8 bfloat16 channels; a lane names one of the rows.
__device__ inline void load_matrices(unsigned (&a)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Add the product of 16 rows and 8 columns of 16 bfloat16 channels each.
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

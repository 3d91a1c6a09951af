// What the kernels ask of a Hopper device beyond C++: copies of pages, products of a group of four
// warps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Wait until the kernels before this one are done; the next may be launched, and waits as well.
// What they wrote must not be read as constant: such a read may come before.
__device__ inline void await_kernels() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Make a barrier that so many arrivals complete, and the bytes they announce.
__device__ inline void make_barrier(unsigned long long *barrier, unsigned arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

__device__ inline void arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Let copies and products see what this thread did to shared memory.
__device__ inline void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
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

// Copy a multiple of 16 bytes from global memory; `barrier` counts them.
__device__ inline void bulk_copy(void *to, const void *from, unsigned bytes,
                                 unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Fetch the description of a tensor before its first copy.
__device__ inline void ask_for(const CUtensorMap *tensor) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(tensor) : "memory");
}

// Copy the rows of a tensor that its description makes a tile, from row `first`; `barrier` counts
// their bytes.
__device__ inline void copy_tile(void *to, const CUtensorMap *tensor, int first,
                                 unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(tensor), "r"(0), "r"(first), "r"(shared_address(barrier))
        : "memory");
}

// Name an operand of products: 64 rows of 128 bytes in shared memory, at a multiple of 1024 bytes.
// The 16-byte chunks of a row lie at their number xor the row's, modulo 8.
__device__ inline unsigned long long operand(const void *tile) {
    constexpr unsigned long long swizzled = 1ull << 62, eight_rows = (1024ull >> 4) << 32;
    return swizzled | eight_rows | (shared_address(tile) & 0x3ffff) >> 4;
}

// Products run beside the program: the compiler must neither keep numbers elsewhere when they
// begin, nor read sums before they are done.
__device__ inline void pin(float (&sums)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

__device__ inline void open_products(float (&sums)[32]) {
    pin(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void await_products(float (&sums)[32]) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    pin(sums);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
}

#define SUM_NAMES                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define FOUR_SUMS(sums, i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define ALL_SUMS(sums)                                                                             \
    FOUR_SUMS(sums, 0), FOUR_SUMS(sums, 4), FOUR_SUMS(sums, 8), FOUR_SUMS(sums, 12),               \
        FOUR_SUMS(sums, 16), FOUR_SUMS(sums, 20), FOUR_SUMS(sums, 24), FOUR_SUMS(sums, 28)

// Add the products of the 64 rows of two operands, 32 channels of e4m3 each; the first ones are taken
// as they are.
__device__ inline void multiply(float (&sums)[32], unsigned long long rows,
                                unsigned long long operand, bool first) {
    asm volatile(
        "{\n"
        ".reg .pred more;\n"
        "setp.eq.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " SUM_NAMES
        "%32, %33, more, 1, 1;\n"
        "}"
        : ALL_SUMS(sums)
        : "l"(rows), "l"(operand), "r"((int)first)
        : "memory");
}

// What the kernel asks of a Hopper device beyond C++: copies of pages, products of a group of four
// warps.
#pragma once

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

// Make a barrier that one arrival and the bytes it announces complete.
__device__ inline void make_barrier(unsigned long long *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
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

// Wait for the other threads of one of the groups of 128 in a block.
__device__ inline void await_group(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Load four matrices of 8 rows and 16 bytes; a lane names one of the rows, and gets four bytes of
// row lane / 4 of each.
__device__ inline void load_matrices(unsigned *to, unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
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

// Before products: `words` are what they will take from registers.
template <int WORDS>
__device__ inline void open_products(float (&sums)[32], unsigned (&words)[2][WORDS]) {
    pin(sums);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        asm volatile("" : "+r"(words[0][i]), "+r"(words[1][i])::"memory");
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void await_products(float (&sums)[32]) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    pin(sums);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
}

// Add the products of 64 rows, of which each warp has 16, and 64 rows of an operand, 32 channels of
// e4m3 each; the first ones are taken as they are.
__device__ inline void multiply(float (&sums)[32], unsigned a0, unsigned a1, unsigned a2,
                                unsigned a3, unsigned long long operand, bool first) {
    asm volatile(
        "{\n"
        ".reg .pred more;\n"
        "setp.eq.b32 more, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, more, 1, 1;\n"
        "}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]),
          "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]),
          "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]),
          "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]),
          "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]),
          "+f"(sums[30]), "+f"(sums[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(operand), "r"((int)first)
        : "memory");
}

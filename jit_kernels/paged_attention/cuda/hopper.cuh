// What the kernel asks of a Hopper device beyond C++: clusters of blocks that copy into each
// other's shared memory, products of a group of four warps, blocks of a row that wait for all of
// them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// The number of this warp, which the compiler then knows to be below 8 and the same in all its
// threads.
__device__ inline unsigned warp_number() { return __shfl_sync(ALL, threadIdx.x / 32, 0) % 8; }

// A number from which the compiler computes nothing before this place: what a loop lets it compute
// beforehand would delay what is asked for first.
__device__ inline unsigned from_here(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

// The device's own approximation; 0 of minus infinity.
__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float binary_logarithm(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Multiply pairs of bfloat16 numbers.
__device__ inline unsigned times(unsigned a, unsigned b) {
    unsigned c;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// Wait until the kernels before this one are done; the next may be launched, and waits as well.
// What they wrote must not be read as constant: such a read may come before.
__device__ inline void await_kernels() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Say to the other half of the block's threads that this one has come so far; or wait until it has
// said so. Marks are 1 to 15.
__device__ inline void tell_half(int mark, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(mark), "r"(threads) : "memory");
}

__device__ inline void await_half(int mark, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(mark), "r"(threads) : "memory");
}

// Make a barrier that one arrival and the bytes it announces complete, and let the cluster see it
// when all have met afterwards.
__device__ inline void make_barrier(unsigned long long *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrive, and announce bytes, some of which may have been counted already.
__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Wait for the phase of a barrier, 0 or 1 in turn, to complete; what never comes ends the kernel,
// after seconds.
__device__ inline void await_phase(unsigned long long *barrier, int phase) {
    for (int tries = 0;; tries++) {
        unsigned done;
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.b32 %0, 1, 0, done;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(phase)
            : "memory");
        if (done) return;
        if (tries == 1 << 25) __trap();
    }
}

// Say that this thread has come so far; `await_cluster` waits until all of the cluster have. With
// RELEASE they see what it did before, without it only barriers that were made and shown.
template <bool RELEASE>
__device__ inline void arrive_at_cluster() {
    if (RELEASE) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    }
}

__device__ inline void await_cluster() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The number of this block in its cluster.
__device__ inline int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

// The place in another block of the cluster that `mine` has in this one.
__device__ inline unsigned at_rank(const void *mine, int rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(mine)), "r"(rank));
    return address;
}

// Copy a multiple of 16 bytes into a block of the cluster; a barrier of the same block counts them.
__device__ inline void send(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(to),
        "r"(shared_address(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

// Copy 16 bytes of global memory into shared memory without waiting, or write zeros there and read
// nothing.
__device__ inline void copy_or_clear(void *to, const void *from, bool copies) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(copies ? 16 : 0)
                 : "memory");
}

// Wait for all copies that this thread has asked for in that way.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Let products and copies to other blocks see what this thread wrote into shared memory.
__device__ inline void show_to_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Ask for 8 bytes that are read once; the compiler keeps the order of such requests.
__device__ inline uint2 read_8(const void *from) {
    uint2 value;
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ inline int read_int(const int *from) {
    int value;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ inline float read_float(const float *from) {
    return __int_as_float(read_int(reinterpret_cast<const int *>(from)));
}

// A number that other blocks may change meanwhile.
__device__ inline unsigned read_now(const int *from) {
    unsigned value;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Wait until `blocks` blocks have called this with one number, which is 0 before the first time;
// `before` is what it was when the kernel began. They must all be on the device at once. What they
// wrote before is seen after by who reads past L1. The highest bit turns when all have come, and
// the others are then 0 again: nobody clears it.
__device__ inline void meet_blocks(int *number, unsigned before, unsigned blocks, bool first) {
    __syncthreads();
    if (threadIdx.x == 0) {
        constexpr unsigned TURN = 1u << 31;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(number),
                     "r"(first ? TURN - (blocks - 1) : 1u)
                     : "memory");
        for (int tries = 0;; tries++) {
            unsigned now;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(number)
                         : "memory");
            if ((now ^ before) & TURN) break;
            if (tries == 1 << 25) __trap();
        }
    }
    __syncthreads();
}

// Name an operand of products: 64 lines of 64 bfloat16 numbers in shared memory, at a multiple of
// 1024 bytes. The 16-byte chunks of a line lie at their number xor the line's, modulo 8. Eight
// lines are 1024 bytes, whichever way the operand is read.
__device__ inline unsigned long long operand(const void *tile) {
    constexpr unsigned long long swizzled = 1ull << 62, eight_lines = 1024 >> 4;
    return swizzled | eight_lines << 32 | eight_lines << 16 |
           (shared_address(tile) & 0x3ffff) >> 4;
}

// How much to add to an operand for the next 16 numbers that are summed over: they lie in the same
// lines, or are the next 16 lines.
constexpr int IN_LINES = 32 >> 4, NEXT_LINES = 16 * 128 >> 4;

// Products run beside the program: the compiler must neither keep numbers elsewhere when they
// begin, nor read sums or reuse what they read before they are done.
template <int COUNT>
__device__ inline void pin(float (&sums)[COUNT]) {
#pragma unroll
    for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

template <int COUNT>
__device__ inline void pin(unsigned (&words)[COUNT]) {
#pragma unroll
    for (unsigned &word : words) asm volatile("" : "+r"(word)::"memory");
}

// Open products, after whatever wrote the registers that they use.
__device__ inline void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Let products go on beside the program, which must not touch the sums.
__device__ inline void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ inline void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define SUMS_AS_OPERANDS(s)                                                                      \
    "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]),          \
        "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]),  \
        "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]),            \
        "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]),            \
        "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
#define PRODUCT "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "     \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// Add products over 16 numbers of the 64 lines of `a`, of which each warp has 16, and of the 64
// lines of `b`. Sum 4 j + 2 i + n is of line lane / 4 + 8 i, column 8 j + lane % 4 * 2 + n.
__device__ inline void multiply(float (&sums)[32], unsigned long long a, unsigned long long b) {
    asm volatile(PRODUCT "%32, %33, 1, 1, 1, 0, 0;"
                 : SUMS_AS_OPERANDS(sums)
                 : "l"(a), "l"(b)
                 : "memory");
}

// The same over 16 lines of `b` and for its 64 columns. Lanes hold the 16 numbers of a line of the
// first operand by pairs: word 2 k + i is of line lane / 4 + 8 i, numbers 8 k + lane % 4 * 2.
__device__ inline void multiply_held(float (&sums)[32], const unsigned *a, unsigned long long b) {
    asm volatile(PRODUCT "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SUMS_AS_OPERANDS(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}

#undef PRODUCT
#undef SUMS_AS_OPERANDS

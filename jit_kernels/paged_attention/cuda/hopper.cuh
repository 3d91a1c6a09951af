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

// The number of this warp, which the compiler then knows to be the same in all its threads.
__device__ inline int warp_number() { return __shfl_sync(ALL, (int)threadIdx.x / 32, 0); }

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

// Wait until the kernels before this one are done; the next may be launched, and waits as well.
// What they wrote must not be read as constant: such a read may come before.
__device__ inline void await_kernels() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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

// Ask for 16 bytes that are read once; the compiler keeps the order of such requests.
__device__ inline uint4 read_16(const void *from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

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
// begin, nor read sums before they are done.
template <int TILES>
__device__ inline void pin(float (&sums)[TILES][32]) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 32; i++) asm volatile("" : "+f"(sums[t][i])::"memory");
    }
}

template <int TILES>
__device__ inline void open_products(float (&sums)[TILES][32]) {
    pin(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Let products go on beside the program, which must not touch the sums.
__device__ inline void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int TILES>
__device__ inline void await_products(float (&sums)[TILES][32]) {
    close_products();
    pin(sums);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
}

// Add products over 16 numbers of the 64 lines of `a`, of which each warp has 16, and of the 64
// lines of `b`, or with BY_LINE over 16 lines of `b` and for its 64 columns. The first ones are
// taken as they are. Sum 4 j + 2 i + n is of line lane / 4 + 8 i, column 8 j + lane % 4 * 2 + n.
template <bool BY_LINE>
__device__ inline void multiply(float (&sums)[32], unsigned long long a, unsigned long long b,
                                bool first) {
    asm volatile(
        "{\n"
        ".reg .pred more;\n"
        "setp.eq.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, more, 1, 1, 0, %35;\n"
        "}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]),
          "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]),
          "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]),
          "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]),
          "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]),
          "+f"(sums[30]), "+f"(sums[31])
        : "l"(a), "l"(b), "r"((int)first), "n"(BY_LINE ? 1 : 0)
        : "memory");
}

// What the kernel asks of the device beyond C++: clusters of blocks that write into each other's
// shared memory, copies that barriers count, products of small tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr unsigned ALL = 0xffffffffu;

__device__ inline unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// The number of this warp, which the compiler then knows to be the same in all its threads.
__device__ inline int warp_number() { return __shfl_sync(ALL, (int)threadIdx.x / 32, 0); }

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

// Take registers from the pool, or give them back, so that a thread has `COUNT`; whole warpgroups.
template <int COUNT>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Wait for `threads` threads of the block, whole warps, at one of its 16 barriers.
template <int BARRIER, int THREADS>
__device__ inline void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// Wait for all threads of the cluster. Of what they did before, only barriers that were made and
// shown need be seen after; waiting for all that they wrote would take as long as a tile.
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Make a barrier that so many arrivals, and the bytes they announce, complete.
__device__ inline void make_barrier(unsigned long long *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

// Let the cluster see barriers that this thread made, when all have met afterwards.
__device__ inline void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrive, and announce bytes, some of which may have been counted already.
__device__ inline void expect_bytes(unsigned long long *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Whether the phase of a barrier, 0 or 1 in turn, is complete; wait a little if not.
__device__ inline bool is_complete(unsigned long long *barrier, unsigned phase) {
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
    return done;
}

// Wait for the phase of a barrier to complete; what never comes ends the kernel, after seconds.
// Bytes that the barrier counted are then there, whichever block of the cluster sent them: they lie
// in this block's own shared memory, so that no wider scope is asked for, with which the L1 cache
// would be emptied each time.
__device__ inline void await_phase(unsigned long long *barrier, unsigned phase) {
    for (int tries = 0; !is_complete(barrier, phase); tries++) {
        if (tries == 1 << 25) __trap();
    }
}

// Copy 16 bytes of global memory into shared memory without waiting, or do nothing.
__device__ inline void copy_if(void *to, const void *from, bool copies) {
    asm volatile(
        "{\n"
        ".reg .pred copies;\n"
        "setp.ne.b32 copies, %2, 0;\n"
        "@copies cp.async.cg.shared.global [%0], [%1], 16;\n"
        "}" ::"r"(shared_address(to)),
        "l"(from), "r"((int)copies)
        : "memory");
}

// Wait for all such copies that this thread has asked for.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Arrive when all copies that this thread has asked for are done; one of the barrier's arrivals.
__device__ inline void arrive_with_copies(unsigned long long *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// The place in another block of the cluster that `mine` has in this one.
__device__ inline unsigned at_rank(const void *mine, int rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(mine)), "r"(rank));
    return address;
}

// Write into a block of the cluster without waiting; a barrier of the same block counts the bytes.
__device__ inline void send(unsigned to, float4 value, unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(to),
        "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
        "r"(__float_as_uint(value.w)), "r"(barrier)
        : "memory");
}

// Copy rows of 16 bytes of global memory into this block's shared memory without waiting; a barrier
// counts the bytes. One thread asks for all of them.
__device__ inline void copy_row(void *to, const void *from, unsigned bytes,
                                unsigned long long *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Bring such rows into the L2 cache; what they hold may still change.
__device__ inline void ask_cache_for_row(const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Bring one line of memory into the L2 cache; what it holds may still change.
__device__ inline void ask_cache(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// Let such copies see barriers that this thread made.
__device__ inline void show_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Write 16 bytes at once, which the compiler may split into four, or do nothing.
__device__ inline void store_if(void *to, uint4 value, bool stores) {
    asm volatile(
        "{\n"
        ".reg .pred stores;\n"
        "setp.ne.b32 stores, %5, 0;\n"
        "@stores st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
        "}" ::"l"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"((int)stores)
        : "memory");
}

// Ask for two numbers of memory that no one writes meanwhile; the compiler keeps the order of such
// requests.
__device__ inline float2 read_or_zero(const float *from, bool reads) {
    float2 value;
    asm volatile(
        "{\n"
        ".reg .pred reads;\n"
        "setp.ne.b32 reads, %3, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "@reads ld.global.nc.v2.f32 {%0, %1}, [%2];\n"
        "}"
        : "=&f"(value.x), "=&f"(value.y)
        : "l"(from), "r"((int)reads));
    return value;
}

// Read 16 bytes that the launch before wrote, perhaps after this block began.
__device__ inline float4 read_written(const float *from) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
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

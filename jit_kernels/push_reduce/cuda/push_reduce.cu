// SPDX-License-Identifier: Apache-2.0
// Sums of small tensors over the GPUs of one host: each rank writes its numbers into the memory of all
// others, and waits for theirs. The data are their own flags: a word that is zero has not come yet.
#include <cuda_runtime.h>

#include <cstring>

namespace {

constexpr int THREADS = 512, MOST_RANKS = 8, GENERATIONS = 3;
// Polls between two looks at the clock.
constexpr int POLLS = 1024;

// What a rank keeps on its device from call to call.
struct State {
    unsigned epoch, ticket;
    int count;  // vectors of the call before
};

// Memory of a rank: [GENERATIONS][world][capacity] vectors of 16 bytes, all zero at first.
struct Memory {
    uint4 *of[MOST_RANKS];
};

struct Call {
    const uint4 *in;
    uint4 *out;
    State *state;
    long long limit_ns;
    int count, capacity, rank, world;
};

__device__ inline void store(uint4 *to, uint4 x) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ inline uint4 load(const uint4 *from) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ inline long long now_ns() {
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Two zeros become two of the other sign.
__device__ inline unsigned never_zero(unsigned pair) { return pair ? pair : 0x80008000u; }

__device__ inline bool has_come(uint4 x) { return x.x && x.y && x.z && x.w; }

// Wait for a vector; a rank that never writes it ends the kernel as an error.
__device__ inline uint4 awaited(const uint4 *from, long long limit_ns) {
    uint4 x = load(from);
    if (has_come(x)) return x;
    const long long began = now_ns();
    for (;;) {
        for (int poll = 0; poll < POLLS; poll++) {
            x = load(from);
            if (has_come(x)) return x;
        }
        if (limit_ns && now_ns() - began > limit_ns) __trap();
    }
}

struct Sums {
    float of[8] = {};

    __device__ void add(int at, unsigned pair) {
        of[at] += __uint_as_float(pair << 16);
        of[at + 1] += __uint_as_float(pair & 0xffff0000u);
    }
    __device__ void add(uint4 x) { add(0, x.x), add(2, x.y), add(4, x.z), add(6, x.w); }
    __device__ unsigned pair(int at) const {
        unsigned both;
        asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(both) : "f"(of[at]), "f"(of[at + 1]));
        return both;
    }
    __device__ uint4 rounded() const { return {pair(0), pair(2), pair(4), pair(6)}; }
};

// Sum bfloat16 numbers over all ranks, in their order. What the call before left is cleared: all ranks
// have read it, or they would not have written what this call waits for. The next to write there is
// the call after next.
__global__ void __launch_bounds__(THREADS) push_reduce(const Call call, const Memory memory) {
    const unsigned epoch = *(volatile unsigned *)&call.state->epoch;
    const int before = *(volatile int *)&call.state->count;
    const long long room = (long long)call.world * call.capacity;
    const long long here = epoch % GENERATIONS * room;
    const int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    for (int i = first; i < call.count; i += step) {
        const uint4 x = call.in[i];
        const uint4 told = {never_zero(x.x), never_zero(x.y), never_zero(x.z), never_zero(x.w)};
        for (int peer = 0; peer < call.world; peer++) {
            // Each rank begins with another one.
            const int to = (call.rank + peer) % call.world;
            store(memory.of[to] + here + (long long)call.rank * call.capacity + i, told);
        }
    }
    const uint4 *const mine = memory.of[call.rank] + here;
    for (int i = first; i < call.count; i += step) {
        Sums sums;
        for (int rank = 0; rank < call.world; rank++) {
            sums.add(awaited(mine + (long long)rank * call.capacity + i, call.limit_ns));
        }
        call.out[i] = sums.rounded();
    }
    uint4 *const old = memory.of[call.rank] + (epoch + GENERATIONS - 1) % GENERATIONS * room;
    for (int i = first; i < before * call.world; i += step) {
        old[(long long)(i / before) * call.capacity + i % before] = {0, 0, 0, 0};
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&call.state->ticket, 1) == gridDim.x - 1) {
        call.state->ticket = 0;
        call.state->count = call.count;
        call.state->epoch = epoch + 1;
    }
}

}  // namespace

extern "C" {

const char *push_reduce_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

int push_reduce_handle_bytes() { return sizeof(cudaIpcMemHandle_t); }

// Allocate zeros on the current device, and say how other processes find them. Returns a cudaError_t.
int push_reduce_allocate(long long bytes, void **memory, void *handle) {
    cudaError_t error = cudaMalloc(memory, bytes);
    if (error == cudaSuccess) error = cudaMemset(*memory, 0, bytes);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    cudaIpcMemHandle_t made;
    if (error == cudaSuccess) error = cudaIpcGetMemHandle(&made, *memory);
    if (error == cudaSuccess) std::memcpy(handle, &made, sizeof made);
    return error;
}

// Map what another process has allocated on another device. Returns a cudaError_t.
int push_reduce_open(const void *handle, void **memory) {
    cudaIpcMemHandle_t made;
    std::memcpy(&made, handle, sizeof made);
    return cudaIpcOpenMemHandle(memory, made, cudaIpcMemLazyEnablePeerAccess);
}

// Sum `count` vectors of 16 bytes, at most `capacity`, by at most `blocks` blocks of threads, which the
// device holds at once. `memory` has the addresses of all ranks' memory. Returns a cudaError_t.
int push_reduce_call(const void *in, void *out, void *state, void *const *memory, int count,
                     int capacity, int rank, int world, int blocks, long long limit_ns, void *where) {
    if (world > MOST_RANKS || count > capacity) return cudaErrorInvalidValue;
    const Call call = {static_cast<const uint4 *>(in), static_cast<uint4 *>(out),
                       static_cast<State *>(state), limit_ns, count, capacity, rank, world};
    Memory all = {};
    for (int i = 0; i < world; i++) all.of[i] = static_cast<uint4 *>(memory[i]);
    const int needed = (count + THREADS - 1) / THREADS;
    const dim3 grid(needed < blocks ? needed : blocks);
    push_reduce<<<grid, THREADS, 0, static_cast<cudaStream_t>(where)>>>(call, all);
    return cudaGetLastError();
}
}

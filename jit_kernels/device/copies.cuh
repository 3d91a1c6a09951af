// Copies of 16 bytes from global to shared memory that run beside the program, in the order
// in which a thread asks for them. `barriers.cuh` has those of many bytes.
#pragma once

#include "barriers.cuh"

__device__ inline void copy_ahead(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ inline void copy_ahead(void *to, const void *from) {
    copy_ahead(shared_address(to), from);
}

// Ask the L2 cache for a line of 128 bytes. All that is written goes through it: a kernel may ask for
// what the launch before is still writing, and read it when that has ended.
__device__ inline void bring_line(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// End a group of copies: what lies between two calls.
__device__ inline void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until this thread has no more than OPEN groups of copies under way.
template <int OPEN>
__device__ inline void await_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

// Wait for all copies that this thread has asked for.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// When a kernel begins: while the launch before it ends. The counterpart of `device_order.py`.
//
// A kernel that is launched early waits before it reads what the launch before writes and before it
// writes, and lets the next one begin only then; a block of it may end without waiting if another of
// its blocks waits. So when a kernel begins, all launches of its stream have ended but the one before
// it: what that one does not write may be read without waiting, past the L1 cache, which still holds
// what other launches found there.
#pragma once

#include <cuda_runtime.h>

// Wait until the launches before have ended and what they wrote can be read. It must not be read as
// constant (`nc`): the assembler moves this in front of such loads, or such loads in front of this.
__device__ inline void await_launch_before() { cudaGridDependencySynchronize(); }

// Let the launch after begin; it waits for the end of this one by itself.
__device__ inline void let_next_begin() { cudaTriggerProgrammaticLaunchCompletion(); }

__device__ inline void take_turn() {
    await_launch_before();
    let_next_begin();
}

// The same on a condition, without a branch: at one the compiler would wait for all that is asked for.
__device__ inline void let_next_begin_if(bool now) {
    asm volatile(
        "{\n"
        ".reg .pred now;\n"
        "setp.ne.b32 now, %0, 0;\n"
        "@now griddepcontrol.launch_dependents;\n"
        "}" ::"r"((int)now)
        : "memory");
}

// The attribute of a launch that may begin early; with `early` false it is like any other.
inline cudaLaunchAttribute early_launch(bool early = true) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = early;
    return attribute;
}

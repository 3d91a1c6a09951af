// The driver's function that describes tensors for copies of boxes; the driver itself is not linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

using Describe = decltype(&cuTensorMapEncodeTiled);

// Return it; null if the driver has none.
inline Describe find_describe() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &state);
#endif
    const bool there = error == cudaSuccess && state == cudaDriverEntryPointSuccess;
    return there ? reinterpret_cast<Describe>(found) : nullptr;
}

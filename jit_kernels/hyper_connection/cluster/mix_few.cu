// Streams of few tokens mixed into one by two launches: pieces of channels, then tokens.
#include "pieces.cuh"
#include "tokens.cuh"

namespace {

// EIGHTS  lines of `fn` by eight: 3 with gates and matrix, 1 for the head
template <class Shape, int EIGHTS>
__global__ void __launch_bounds__(PIECE_THREADS, 2)
    multiply_pieces(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    run_pieces(call, *reinterpret_cast<PieceMemory<Shape, EIGHTS> *>(memory));
}

// So few registers that blocks have room beside those of the first launch.
template <class Shape, bool HEAD, bool NORM>
__global__ void __maxnreg__(Shape::TOKEN_REGISTERS) mix_tokens(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) unsigned char memory[];
    run_token<Shape, HEAD, NORM>(call, *reinterpret_cast<TokenMemory<Shape> *>(memory));
}

using Kernel = void (*)(Call);
// The two kernels, their shared memory, and how many blocks the first has for so many tokens.
struct Pair {
    Kernel multiply, mix;
    int first_bytes, second_bytes;
    int (*blocks)(int tokens);
};

template <class Shape>
int blocks_of(int tokens) {
    return (tokens + Shape::SPAN - 1) / Shape::SPAN * (PIECES / pieces_of_block<Shape>(tokens));
}

template <class Shape, int EIGHTS, bool NORM>
constexpr Pair pair() {
    return {multiply_pieces<Shape, EIGHTS>, mix_tokens<Shape, EIGHTS == 1, NORM>,
            sizeof(PieceMemory<Shape, EIGHTS>), sizeof(TokenMemory<Shape>), blocks_of<Shape>};
}

// Of the head, of streams without norm, with norm; then those of 7,168 channels.
constexpr Pair PAIRS[] = {pair<Narrow, 1, false>(), pair<Narrow, 3, false>(),
                          pair<Narrow, 3, true>(),  pair<Broad, 1, false>(),
                          pair<Broad, 3, false>(),  pair<Broad, 3, true>()};
constexpr int BROADER = 3;

cudaError_t prepare(Kernel kernel, int bytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    // Blocks of both kernels share multiprocessors, which must be parted alike for them.
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

cudaError_t launch(Kernel kernel, int blocks, int threads, int bytes, const Call &call,
                   cudaStream_t stream) {
    cudaLaunchAttribute attribute = early_launch();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}

}  // namespace

extern "C" {

// Prepare the current device for calls. Returns a cudaError_t.
int mix_few_prepare() {
    for (const Pair &pair : PAIRS) {
        cudaError_t error = prepare(pair.multiply, pair.first_bytes);
        if (error == cudaSuccess) error = prepare(pair.mix, pair.second_bytes);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

// Mix streams of 4,096 or 7,168 channels, up to 256 tokens, with `sums` [tokens, 128, 32] to write
// to. Without `mixing` the head's four rows of `fn` alone are used; without `weight` there is no
// norm. A token's bits are those that clusters give. Returns a cudaError_t.
int mix_few_call(const void *streams, long long token_stride, long long stream_stride,
                 const float *fn, const float *base, const float *scale, const float *weight,
                 void *mixed, float *post, float *mixing, float *sums, int tokens, int width,
                 int iterations, float norm_eps, float hc_eps, void *where) {
    const Call call = {static_cast<const __nv_bfloat16 *>(streams), token_stride, stream_stride,
                       fn, base, scale, weight, static_cast<__nv_bfloat16 *>(mixed), post, mixing,
                       sums, tokens, width, 0, 0, iterations, 0, 0, norm_eps, hc_eps,
                       1.0f / (STREAMS * width), 1.0f / width};
    const cudaStream_t stream = static_cast<cudaStream_t>(where);
    const Pair &pair =
        PAIRS[(width == Broad::WIDTH ? BROADER : 0) + (!mixing ? 0 : weight ? 2 : 1)];
    const cudaError_t error = launch(pair.multiply, pair.blocks(tokens), PIECE_THREADS,
                                     pair.first_bytes, call, stream);
    if (error != cudaSuccess) return error;
    return launch(pair.mix, tokens, TOKEN_THREADS, pair.second_bytes, call, stream);
}
}

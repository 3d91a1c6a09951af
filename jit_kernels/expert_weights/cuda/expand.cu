// SPDX-License-Identifier: Apache-2.0
// Expert weights of fp4 written as e4m3 in blocks of 128 x 128. A table of the eight sizes of e2m1 as
// bytes of e4m3 lies in two registers: a byte permutation looks up four numbers at once.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace {

constexpr int BLOCK = 128, GROUP = 32, GROUPS = BLOCK / GROUP, THREADS = 256;
constexpr int ROWS = THREADS / GROUPS, EACH = BLOCK / ROWS, HEADROOM = 6;
// Exponents over the block's from which on all sizes are normal numbers of e4m3, and from which on
// all are numbers of e4m3 at all.
constexpr int LEAST_NORMAL = -5, LEAST_EXACT = -8, LEAST = -32;

struct Table {
    unsigned low, high;
    // Sizes that are rounded, a bit each.
    unsigned rounded;
};

// Sizes in halves: 0 1 2 3 4 6 8 12.
__device__ inline int halves_of(int size) { return size < 2 ? size : (2 + (size & 1)) << ((size >> 1) - 1); }

__device__ inline Table table_of(int over) {
    if (over >= LEAST_NORMAL) {
        const unsigned one = (HEADROOM + over) << 3;
        return {one << 8 | (one + 8) << 16 | (one + 12) << 24,
                (one + 16) * 0x00000101u + 0x00000400u + ((one + 24) * 0x00000101u + 0x00000400u << 16), 0};
    }
    Table table = {};
    const int missing = LEAST_EXACT - over > 0 ? min(LEAST_EXACT - over, 5) : 0;
    for (int size = 0; size < 8; size++) {
        const int halves = halves_of(size);
        const unsigned code = __nv_cvt_float_to_fp8(ldexpf(halves, max(over, LEAST) - 1), __NV_SATFINITE, __NV_E4M3);
        (size < 4 ? table.low : table.high) |= code << 8 * (size % 4);
        table.rounded |= (halves & ((1 << missing) - 1) ? 1u : 0u) << size;
    }
    return table;
}

// The same three bits of four words, as nibbles in order.
__device__ inline unsigned sizes(uint2 words, int at) {
    const unsigned both = (words.x >> at & 0x00070007u) | (words.y >> at & 0x00070007u) << 8;
    return (both | both >> 12) & 0x7777u;
}

// The same bit of four words, as bits of bytes in order.
__device__ inline unsigned signs(uint2 words, int at) {
    const unsigned both = (words.x >> at & 0x00010001u) | (words.y >> at & 0x00010001u) << 8;
    return __byte_perm(both << 7, 0, 0x3120);
}

// Four numbers, one of each word.
__device__ inline unsigned codes(uint2 words, int sign, int size, const Table &table) {
    return __byte_perm(table.low, table.high, sizes(words, size)) | signs(words, sign);
}

__device__ inline int rounded(uint2 words, int size, const Table &table) {
    int count = 0;
    for (unsigned all = sizes(words, size), i = 0; i < 4; i++) count += table.rounded >> (all >> 4 * i & 7) & 1;
    return count;
}

__device__ inline uint4 of_neighbour(uint4 x) {
    constexpr unsigned ALL = 0xffffffffu;
    return {__shfl_xor_sync(ALL, x.x, 1), __shfl_xor_sync(ALL, x.y, 1), __shfl_xor_sync(ALL, x.z, 1),
            __shfl_xor_sync(ALL, x.w, 1)};
}

__device__ inline int most_of_block(int value) {
    __shared__ int warps[THREADS / 32];
    value = __reduce_max_sync(0xffffffffu, value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; warp++) value = max(value, warps[warp]);
    return value;
}

// A block of threads writes a block of 128 x 128; a thread, groups of some rows.
__global__ void __launch_bounds__(THREADS)
    expand(const uint4 *__restrict__ words, const unsigned char *__restrict__ scales, uint4 *__restrict__ out,
           float *__restrict__ block_scales, int *__restrict__ lost, int rows, int columns) {
    const int group = threadIdx.x % GROUPS, first = threadIdx.x / GROUPS;
    const long long block_row = (long long)blockIdx.z * (rows / BLOCK) + blockIdx.y;
    const long long at = (block_row * BLOCK + first) * (columns / GROUP) + blockIdx.x * GROUPS + group;
    uint4 held[EACH];
    int exponent[EACH], most = 0;
    for (int i = 0; i < EACH; i++) {
        const long long mine = at + (long long)i * ROWS * (columns / GROUP);
        held[i] = __ldcs(words + mine);
        exponent[i] = scales[mine];
        most = max(most, exponent[i]);
    }
    const int top = max(most_of_block(most) - HEADROOM, 1);
    if (threadIdx.x == 0) {
        block_scales[block_row * (columns / BLOCK) + blockIdx.x] = __int_as_float(top << 23);
    }
    int missed = 0;
    for (int i = 0; i < EACH; i++) {
        const Table table = table_of(exponent[i] - top);
        const uint2 near = {held[i].x, held[i].y}, far = {held[i].z, held[i].w};
        // Bits of signs and sizes of columns 8 j to 8 j + 7: see pack_fp4.
        const uint4 low = {codes(near, 15, 6, table), codes(far, 15, 6, table), codes(near, 12, 3, table),
                           codes(far, 12, 3, table)};
        const uint4 high = {codes(near, 14, 0, table), codes(far, 14, 0, table), codes(near, 13, 9, table),
                            codes(far, 13, 9, table)};
        // Two lanes write a group together, then the other, so that each store is whole sectors.
        const bool odd = group & 1;
        const uint4 other = of_neighbour(odd ? low : high);
        uint4 *const to = out + 2 * (at - odd + (long long)i * ROWS * (columns / GROUP)) + odd;
        to[0] = odd ? other : low;
        to[2] = odd ? high : other;
        if (table.rounded) {
            for (int size = 0; size < 12; size += 3) {
                missed += rounded(near, size, table) + rounded(far, size, table);
            }
        }
    }
    if (missed) atomicAdd(lost + blockIdx.z, missed);
}

}  // namespace

extern "C" {

const char *expert_weights_words(int error) {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// Expand `count` matrices; `lost` [count] is zero. Returns a cudaError_t.
int expand_fp4_call(const void *words, const void *scales, void *codes, void *block_scales, void *lost,
                    int count, int rows, int columns, void *where) {
    const dim3 blocks(columns / BLOCK, rows / BLOCK, count);
    expand<<<blocks, THREADS, 0, static_cast<cudaStream_t>(where)>>>(
        static_cast<const uint4 *>(words), static_cast<const unsigned char *>(scales),
        static_cast<uint4 *>(codes), static_cast<float *>(block_scales), static_cast<int *>(lost), rows,
        columns);
    return cudaGetLastError();
}
}

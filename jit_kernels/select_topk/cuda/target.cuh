// Where what a row chooses goes: the columns as they are, or the slots that a page table gives
// them.
#pragma once

#include "device/lanes.cuh"

struct Target {
    void *out;         // of int where there is a table, else of long long
    long long stride;  // from row to row
    int columns;       // of a row; those after what is chosen become -1
    const int *table;  // null: columns are written as they are
    long long table_stride;
    int shift;  // a page has 1 << shift columns

    __host__ __device__ Target of(int row) const {
        Target mine = *this;
        mine.out = table ? static_cast<void *>(static_cast<int *>(out) + row * stride)
                         : static_cast<void *>(static_cast<long long *>(out) + row * stride);
        if (table) mine.table = table + row * table_stride;
        return mine;
    }

    // The page of a column that is seen: what `put` needs, for those who can load it early.
    __device__ int page(int column) const { return table ? table[column >> shift] : 0; }

    __device__ void put(int place, int column, int page) const {
        if (table) {
            const unsigned slot = ((unsigned)page << shift) + (column & ((1u << shift) - 1));
            static_cast<int *>(out)[place] = (int)slot;
        } else {
            static_cast<long long *>(out)[place] = column;
        }
    }

    __device__ void put(int place, int column) const { put(place, column, page(column)); }

    // Write that nothing is chosen from place `first` on; the whole block does.
    __device__ void end_at(int first) const {
#pragma unroll 1
        for (int i = first + (int)threadIdx.x; i < columns; i += blockDim.x) {
            if (table) {
                static_cast<int *>(out)[i] = -1;
            } else {
                static_cast<long long *>(out)[i] = -1;
            }
        }
    }
};

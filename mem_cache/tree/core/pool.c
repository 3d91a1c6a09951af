/* Which units of a pool are free, and how many references each of the others has. */
#include "core.h"

/* Take `count` free units with one reference each. */
int32_t pool_alloc(Pool *pool, int32_t count, int32_t *units) {
    if (count > pool->free) return FAULT_SHORT;
    for (int32_t i = 0; i < count; i++) {
        int32_t unit = pool->stack[--pool->free];
        pool->references[unit] = 1;
        units[i] = unit;
    }
    return 0;
}

static int32_t check_units(Pool *pool, const int32_t *units, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (units[i] < 1 || units[i] > pool->capacity) {
            pool->culprit = units[i];
            return FAULT_NO_UNIT;
        }
    }
    return 0;
}

/* Add a reference to each unit; on a fault nothing has changed. */
int32_t pool_incref(Pool *pool, const int32_t *units, int32_t count) {
    int32_t fault = check_units(pool, units, count);
    if (fault) return fault;
    for (int32_t i = 0; i < count; i++) {
        if (pool->references[units[i]] == 0) {
            pool->culprit = units[i];
            return FAULT_FREE_UNIT;
        }
    }
    for (int32_t i = 0; i < count; i++) pool->references[units[i]]++;
    return 0;
}

/* Drop a reference of each unit and return how many became free; on a fault nothing has changed.
 * The units go onto the stack last to first, so that they are handed out in the same order. */
int32_t pool_decref(Pool *pool, const int32_t *units, int32_t count) {
    int32_t fault = check_units(pool, units, count), freed = 0;
    if (fault) return fault;
    for (int32_t i = 0; i < count; i++) {
        if (--pool->references[units[i]] >= 0) continue;
        pool->culprit = units[i];
        for (; i >= 0; i--) pool->references[units[i]]++;
        return FAULT_FREE_UNIT;
    }
    for (int32_t i = count - 1; i >= 0; i--) {
        int32_t unit = units[i];
        if (pool->references[unit] != 0) continue;
        /* A unit named twice must enter the stack once: mark it until all are in. */
        pool->references[unit] = -1;
        pool->stack[pool->free++] = unit;
        freed++;
    }
    for (int32_t i = 0; i < freed; i++) pool->references[pool->stack[pool->free - 1 - i]] = 0;
    return freed;
}

/* Resume points: on which page each hangs, and behind which tokens.
 *
 * A point hangs on the page with its last token. One at the end of a page serves whoever has that
 * page. One inside a page serves whoever has the tokens before it, on whichever sibling: it is
 * found through a table, by (page before, tokens in the page).
 */
#include <string.h>

#include "core.h"

static inline int32_t offset_of(const Tree *tree, int32_t point) {
    return tree->position[point] - tree->number[tree->holder[point]] * tree->page_size;
}

static inline uint64_t hash_start(int32_t parent) {
    return ((uint64_t)(uint32_t)parent + 1) * 0x9E3779B97F4A7C15u;
}

static inline uint64_t hash_add(uint64_t hash, int32_t token) {
    return ((hash ^ (uint32_t)token) * 0xD6E8FEB86659FD93u) ^ (hash >> 29);
}

static inline int32_t *bucket_of(const Tree *tree, uint64_t hash) {
    return tree->buckets + ((hash ^ (hash >> 32)) & (uint64_t)tree->bucket_mask);
}

static int32_t *bucket_for(const Tree *tree, int32_t parent, const int32_t *tokens, int32_t run) {
    uint64_t hash = hash_start(parent);
    for (int32_t i = 0; i < run; i++) hash = hash_add(hash, tokens[i]);
    return bucket_of(tree, hash);
}

static int32_t find_in(const Tree *tree, int32_t point, int32_t parent, const int32_t *tokens,
                       int32_t offset) {
    for (; point; point = tree->chain[point]) {
        int32_t page = tree->holder[point];
        const int32_t *theirs = tree->tokens + (int64_t)page * tree->page_size;
        if (tree->parent[page] == parent && offset_of(tree, point) == offset &&
            !is_aside(tree, page) &&
            memcmp(theirs, tokens, (size_t)offset * sizeof *tokens) == 0)
            return point;
    }
    return 0;
}

/* Return the deepest point inside or at the end of a page that shares `run` tokens with `tokens`,
 * at most `limit` tokens in; one at `limit` + 1 only if it is not exact. A point right at the limit
 * is preferred to the one behind it, which serves it as well. `run` is at most `limit` + 1. */
int32_t points_deepest_inside(const Tree *tree, int32_t page, const int32_t *tokens, int32_t run,
                              int32_t limit) {
    int32_t size = tree->page_size, past = 0;
    for (int32_t point = tree->point[page]; point; point = tree->below[point]) {
        int32_t offset = offset_of(tree, point);
        /* A token behind the run does no harm to one that serves the position before its own. */
        bool reached = offset <= run || (offset == run + 1 && limit == run);
        if (!reached) continue;
        if (offset <= limit) {
            if (offset == size || offset == limit) return point;
            break;
        }
        if (!tree->exact[point]) past = point;
    }
    int32_t most = run < size - 1 ? run : size - 1;
    if (*heads_of(tree, tree->parent[page]) == 0) return past;
    int32_t parent = tree->parent[page], *found[most + 1];
    uint64_t hash = hash_start(parent);
    for (int32_t i = 0; i < most; i++) {
        hash = hash_add(hash, tokens[i]);
        found[i + 1] = bucket_of(tree, hash);
    }
    for (int32_t offset = most; offset > 0; offset--) {
        int32_t point = *found[offset] ? find_in(tree, *found[offset], parent, tokens, offset) : 0;
        if (!point) continue;
        if (offset > limit) {
            if (!tree->exact[point]) past = point;
        } else {
            return past && offset < limit ? past : point;
        }
    }
    return past;
}

/* Return the point at `position` of a page, if it serves the position before it, too. */
int32_t point_serving_one_less(const Tree *tree, int32_t page, int32_t position) {
    for (int32_t point = tree->point[page]; point; point = tree->below[point])
        if (tree->position[point] == position) return tree->exact[point] ? 0 : point;
    return 0;
}

static void enter_table(Tree *tree, int32_t point) {
    int32_t page = tree->holder[point], offset = offset_of(tree, point);
    if (offset == tree->page_size) return;
    const int32_t *tokens = tree->tokens + (int64_t)page * tree->page_size;
    int32_t *bucket = bucket_for(tree, tree->parent[page], tokens, offset);
    tree->chain[point] = *bucket;
    *bucket = point;
    ++*heads_of(tree, tree->parent[page]);
}

static void leave_table(Tree *tree, int32_t point) {
    int32_t page = tree->holder[point], offset = offset_of(tree, point);
    if (offset == tree->page_size) return;
    const int32_t *tokens = tree->tokens + (int64_t)page * tree->page_size;
    int32_t *at = bucket_for(tree, tree->parent[page], tokens, offset);
    while (*at != point) at = &tree->chain[*at];
    *at = tree->chain[point];
    --*heads_of(tree, tree->parent[page]);
}

static void hang(Tree *tree, int32_t point, int32_t page) {
    int32_t *at = &tree->point[page];
    while (*at && tree->position[*at] > tree->position[point]) at = &tree->below[*at];
    tree->below[point] = *at;
    *at = point;
    tree->holder[point] = page;
}

static void unhang(Tree *tree, int32_t point) {
    int32_t *at = &tree->point[tree->holder[point]];
    while (*at != point) at = &tree->below[*at];
    *at = tree->below[point];
}

/* Return the tokens that a request starting from the point need not compute because of it: those
 * behind the point before it on its path, but no more than a replay computes. */
static int32_t saved_by(const Tree *tree, int32_t point) {
    int32_t position = tree->position[point], page = tree->holder[point];
    int32_t other = tree->below[point];
    int32_t most = tree->replay >= 0 && tree->replay < position ? tree->replay : position;
    while (other == 0) {
        page = tree->parent[page];
        if (page <= 0 || position - (tree->number[page] + 1) * tree->page_size >= most) return most;
        other = tree->point[page];
    }
    int32_t saved = position - tree->position[other];
    return saved < most ? saved : most;
}

static uint8_t save_class(const Tree *tree, int32_t point) {
    int32_t saved = saved_by(tree, point), class = 0;
    while (class < SAVE_CLASSES - 1 && saved >= FIRST_SAVE_TOKENS << class) class++;
    return (uint8_t)class;
}

static List *list_of(const Tree *tree, int32_t point) {
    return &tree->point_lists[tree->point_kind[point] * SAVE_CLASSES + tree->point_saves[point]];
}

/* Return the point at `position` inside the page, or inside a sibling with the same tokens. */
int32_t point_find(const Tree *tree, int32_t page, int32_t position) {
    int32_t offset = position - tree->number[page] * tree->page_size;
    if (offset == tree->page_size) return 0;
    const int32_t *tokens = tree->tokens + (int64_t)page * tree->page_size;
    int32_t parent = tree->parent[page];
    return find_in(tree, *bucket_for(tree, parent, tokens, offset), parent, tokens, offset);
}

/* Return the point at `position`, on the page or on a sibling with the same tokens before it. */
int32_t point_at(const Tree *tree, int32_t page, int32_t position) {
    for (int32_t point = tree->point[page]; point; point = tree->below[point])
        if (tree->position[point] == position) return point;
    return point_find(tree, page, position);
}

static void drop_units(Tree *tree, const int32_t *window, int32_t count, int32_t state) {
    pool_decref(tree->swa, window, count);
    if (tree->has_state) pool_decref(tree->states, &state, 1);
}

/* Take a reference on each unit of a point to be; on a fault on none. */
static int32_t take_units(Tree *tree, const int32_t *window, int32_t count, int32_t state) {
    if (tree->has_state) {
        tree->states->culprit = state;
        if (state < 1 || state > tree->states->capacity) return FAULT_NO_UNIT;
        if (tree->point_of[state]) return FAULT_NO_UNIT;
    }
    int32_t fault = pool_incref(tree->swa, window, count);
    if (fault < 0 || !tree->has_state) return fault;
    fault = pool_incref(tree->states, &state, 1);
    if (fault < 0) pool_decref(tree->swa, window, count);
    return fault;
}

/* Hang a point on the path to `node`, with a reference on each of its units. Returns 1, or 0 if
 * these tokens have one already that is as good or in use, or no more points can be. */
int32_t point_add(Tree *tree, int32_t node, int32_t position, const int32_t *window, int32_t count,
                  int32_t state, int32_t exact, int32_t kind) {
    if (node > 0 && tree->parent[node] == 0) return 0;
    while (node > 0 && tree->number[node] * tree->page_size >= position) node = tree->parent[node];
    if (node <= 0 || position > tree->number[node] * tree->page_size + tree->length[node]) return 0;
    int32_t known = point_at(tree, node, position);
    if (known && (exact || !tree->exact[known] || tree->pins[known])) return 0;
    int32_t fault = take_units(tree, window, count, state), point = 0;
    if (fault < 0) return fault;
    if (known) point_free(tree, known);
    if (pool_alloc(tree->point_ids, 1, &point) < 0) {
        drop_units(tree, window, count, state);
        return 0;
    }
    tree->position[point] = position;
    tree->state[point] = tree->has_state ? state : 0;
    if (tree->has_state) tree->point_of[state] = point;
    tree->pins[point] = 0;
    tree->exact[point] = (uint8_t)exact;
    /* The point at a request's end is worth what its leaf is worth. */
    if (kind == tree->end_kind) kind += tree->kind[node];
    tree->point_kind[point] = (uint8_t)kind;
    tree->point_stamp[point] = now(tree);
    int32_t *mine = tree->windows + (int64_t)point * tree->window_pages;
    for (int32_t i = 0; i < tree->window_pages; i++) mine[i] = i < count ? window[i] : 0;
    hang(tree, point, node);
    enter_table(tree, point);
    tree->point_saves[point] = save_class(tree, point);
    list_push_newest(list_of(tree, point), tree->point_links, point);
    tree->flags[node] &= (uint8_t)~FLAG_LOST_POINT;
    tree->uses[kind].points++;
    tree->points++;
    return 1;
}

/* The same with the caller's own references: they become the point's, or are dropped. */
int32_t point_give(Tree *tree, int32_t node, int32_t position, const int32_t *window, int32_t count,
                   int32_t state, int32_t exact, int32_t kind) {
    int32_t added = point_add(tree, node, position, window, count, state, exact, kind);
    if (added < 0) return added;
    drop_units(tree, window, count, state);
    return added;
}

static void give_back(Tree *tree, int32_t point) {
    const int32_t *window = tree->windows + (int64_t)point * tree->window_pages;
    int32_t count = 0;
    while (count < tree->window_pages && window[count]) count++;
    list_remove(list_of(tree, point), tree->point_links, point);
    tree->position[point] = 0;
    tree->uses[tree->point_kind[point]].points--;
    tree->points--;
    drop_units(tree, window, count, tree->state[point]);
    if (tree->has_state) tree->point_of[tree->state[point]] = 0;
    tree->state[point] = 0;
    pool_decref(tree->point_ids, &point, 1);
}

/* Take an unpinned point off the tree and drop its references. */
void point_free(Tree *tree, int32_t point) {
    leave_table(tree, point);
    unhang(tree, point);
    give_back(tree, point);
}

void point_touch(Tree *tree, int32_t point) {
    tree->point_stamp[point] = now(tree);
    if (tree->pins[point]) return;
    List *list = list_of(tree, point);
    list_remove(list, tree->point_links, point);
    list_push_newest(list, tree->point_links, point);
}

/* Make a point the first that is evicted, unless it is pinned. */
void point_cool(Tree *tree, int32_t point) {
    if (tree->pins[point]) return;
    List *list = list_of(tree, point);
    list_remove(list, tree->point_links, point);
    tree->point_stamp[point] = COLD;
    list_push_before(list, tree->point_links, point, list->oldest);
}

void point_pin(Tree *tree, int32_t point) {
    if (tree->pins[point]++ == 0)
        list_remove(list_of(tree, point), tree->point_links, point);
    tree->pins_held++;
}

int32_t point_unpin(Tree *tree, int32_t point) {
    if (tree->position[point] == 0 || tree->pins[point] == 0) return FAULT_NOT_LOCKED;
    tree->pins_held--;
    if (--tree->pins[point] == 0) {
        tree->point_stamp[point] = now(tree);
        uint8_t before = tree->point_kind[point], after = tree->kind_after_use[before];
        tree->uses[before].used++;
        tree->uses[before].points--;
        tree->uses[after].points++;
        tree->point_kind[point] = after;
        tree->point_saves[point] = save_class(tree, point);
        list_push_newest(list_of(tree, point), tree->point_links, point);
    }
    return 0;
}

/* Free all points of a page, which is about to leave the tree. */
void points_leave(Tree *tree, int32_t page) {
    while (tree->point[page]) {
        point_free(tree, tree->point[page]);
        tree->evicted_points++;
    }
}

/* Move the points behind at most `run` tokens, fewer than a page has, to a sibling that has these
 * tokens, too. */
void points_move(Tree *tree, int32_t from, int32_t to, int32_t run) {
    int32_t point = tree->point[from];
    while (point) {
        int32_t below = tree->below[point], offset = offset_of(tree, point);
        if (offset <= run) {
            unhang(tree, point);
            hang(tree, point, to);
        }
        point = below;
    }
}

/* Move a point to the list of its class if it saves more by now: the point before it is gone. A
 * point that saves less by now stays. Returns whether it was moved. */
static bool relist(Tree *tree, int32_t point) {
    uint8_t class = save_class(tree, point);
    if (class <= tree->point_saves[point]) return false;
    list_remove(list_of(tree, point), tree->point_links, point);
    tree->point_saves[point] = class;
    List *list = list_of(tree, point);
    int64_t stamp = tree->point_stamp[point];
    int32_t newer = list->oldest;
    for (int32_t steps = 64; steps && newer && tree->point_stamp[newer] < stamp; steps--)
        newer = tree->point_links.newer[newer];
    if (newer == 0) {
        list_push_newest(list, tree->point_links, point);
        return true;
    }
    if (tree->point_stamp[newer] < stamp) tree->point_stamp[point] = tree->point_stamp[newer];
    list_push_before(list, tree->point_links, point, newer);
    return true;
}

/* Drop unpinned points, those that count as oldest first, until so many units are free. Returns 0
 * if that many cannot be had. */
int32_t points_evict(Tree *tree, int64_t free_swa, int64_t free_states) {
    while (tree->swa->free < free_swa || tree->states->free < free_states) {
        int32_t oldest = 0;
        int64_t least = 0;
        for (int32_t i = 0; i < tree->point_kinds * SAVE_CLASSES; i++) {
            int32_t point = tree->point_lists[i].oldest;
            if (point == 0) continue;
            int64_t stamp = tree->point_stamp[point] + tree->point_favour[i];
            if (oldest == 0 || stamp < least) oldest = point, least = stamp;
        }
        if (oldest == 0) return 0;
        if (relist(tree, oldest)) continue;
        tree->flags[tree->holder[oldest]] |= FLAG_LOST_POINT;
        point_free(tree, oldest);
        tree->evicted_points++;
    }
    return 1;
}

/* The tree over all sequences: match and insert.
 *
 * Every page is a node: nothing is ever split, and a node's number, place and known tokens stay
 * what they are for as long as it is in the tree; only a partial one may get more. What people call
 * a span is a run of pages with one child each.
 */
#include <string.h>

#include "core.h"

/* Return what follows `tokens[start]` in its page, padded unless it fills the page. */
static const int32_t *page_of(const Tree *tree, const int32_t *tokens, int32_t start,
                              int32_t length) {
    if (length == tree->page_size) return tokens + start;
    memcpy(tree->scratch, tokens + start, (size_t)length * sizeof *tokens);
    for (int32_t i = length; i < tree->page_size; i++) tree->scratch[i] = -1;
    return tree->scratch;
}

static int32_t follow(const Tree *tree, int32_t trie, const int32_t *query, int32_t length,
                      int32_t *run) {
    int32_t page = siblings_nearest(tree, trie, query);
    *run = 0;
    if (page == 0) return 0;
    if (tree->length[page] < length) length = tree->length[page];
    *run = common_run(query, tokens_of(tree, page), length);
    return page;
}

/* Whether a page behind `start` lost a point, which a request to `full` could have started from. */
static int32_t lost_point(const Tree *tree, const int32_t *pages, int32_t start, int32_t full) {
    for (int32_t i = start / tree->page_size; i * tree->page_size < full; i++)
        if (tree->flags[pages[i]] & FLAG_LOST_POINT) return 1;
    return 0;
}

/* Find the longest run of `tokens` that any path has, and the point that saves most: none where no
 * more than a replay's tokens from the end would be saved by it. `limit` is at least 1, `length` at
 * most one more. Nothing changes. */
void tree_match(Tree *tree, int32_t root, const int32_t *tokens, int32_t length, int32_t limit,
                int32_t *pages, Match *match) {
    int32_t size = tree->page_size, node = -1 - root, count = 0, position = 0, run = 0, next = 0;
    while (position < length) {
        int32_t rest = length - position < size ? length - position : size;
        const int32_t *query = page_of(tree, tokens, position, rest);
        int32_t page = follow(tree, *child_of(tree, node), query, rest, &run);
        if (run == 0) {
            next = page;
            break;
        }
        pages[count++] = node = page;
        position += run;
        if (run < size) break;
    }
    int32_t full = position < limit ? position : limit, replay = tree->replay;
    int32_t point = 0, deepest = tree->points ? count - 1 : -1;
    if (next && full > 0) point = point_serving_one_less(tree, next, full + 1);
    int32_t shallowest = replay < 0 || full < replay ? 0 : full - replay;
    for (int32_t i = deepest; i >= 0; i--) {
        int32_t start = i * size, ahead = full - start;
        if (start + size <= shallowest) break;
        int32_t shared = i == count - 1 ? position - start : size;
        int32_t found = points_deepest_inside(tree, pages[i], tokens + start, shared, ahead);
        if (found && (point == 0 || tree->position[found] == full)) point = found;
        if (point && (tree->position[point] <= full || start < full)) break;
    }
    if (point && tree->position[point] <= shallowest) point = 0;
    match->full_tokens = full;
    match->pages = (full + size - 1) / size;
    match->holder = full ? pages[match->pages - 1] : -1 - root;
    match->point = point;
    match->resume_tokens = full;
    if (point == 0) match->resume_tokens = 0;
    else if (tree->position[point] < full) match->resume_tokens = tree->position[point];
    match->turns = turns_after(tree, match->holder, full);
    match->point_evicted = lost_point(tree, pages, match->resume_tokens, full);
    for (int32_t i = 0; i < match->pages; i++) pages[i] = tree->unit[pages[i]];
}

/* Count a request that matched: the clock advances, and what it uses is the newest. */
void tree_use(Tree *tree, int32_t holder, int32_t point, int32_t turns) {
    if (turns > 1) turns_return(tree, holder);
    if (holder > 0) page_touch(tree, holder);
    if (point) point_touch(tree, point);
    tree->tick++;
    for (int32_t kind = 0; kind < tree->point_kinds; kind++)
        tree->uses[kind].lived += tree->uses[kind].points;
}

/* --- insert */

/* Verify that every page from `first` on can be adopted. */
static int32_t check_pages(Tree *tree, const Insertion *insertion, int32_t first) {
    int32_t size = tree->page_size, count = (insertion->length + size - 1) / size;
    for (int32_t i = first; i < count; i++) {
        int32_t page = insertion->pages[i];
        tree->full->culprit = page;
        if (page < 1 || page > tree->full->capacity) return FAULT_NO_UNIT;
        if (tree->full->references[page] == 0) return FAULT_FREE_UNIT;
        if (tree->node_of[page]) return FAULT_IN_TREE;
    }
    return 0;
}

/* Return the node of a full page that the tree has below `node`, a partial one with nothing but
 * the first of `tokens`; 0 if it is none. */
static int32_t begun(const Tree *tree, int32_t unit, int32_t node, const int32_t *tokens,
                     int32_t length) {
    int32_t page = unit < 1 || unit > tree->full->capacity ? 0 : tree->node_of[unit];
    if (page == 0 || tree->parent[page] != node) return 0;
    int32_t known = tree->length[page];
    bool begins = known < length && common_run(tokens_of(tree, page), tokens, known) == known;
    return begins ? page : 0;
}

/* Move the caller's lock to the page of its last token, and note what is known of that one. */
static void settle(Tree *tree, Insertion *insertion) {
    int32_t node = insertion->node;
    if (node > 0) {
        bool listed = page_evictable(tree, node);
        if (listed) page_unlist(tree, node);
        tree->stamp[node] = now(tree);
        if (insertion->ended) turns_end(tree, insertion);
        if (insertion->copied) turns_copy(tree, insertion);
        if (listed) page_list(tree, node);
    }
    if (insertion->locked) {
        tree_lock(tree, node);
        tree_unlock(tree, insertion->from);
    }
}

/* Publish a sequence. On a fault nothing has changed. */
int32_t tree_insert(Tree *tree, Insertion *insertion) {
    int32_t size = tree->page_size, length = insertion->length, from = insertion->from;
    int32_t node = from < 0 ? from : tree->parent[from], shorter = 0, other = 0, run = 0;
    int32_t start = from < 0 ? 0 : tree->number[from] * size;
    if (node == 0) return FAULT_GONE;
    if (is_aside(tree, from) && insertion->pages[start / size] == tree->unit[from]) {
        /* Nothing finds it by its tokens; it is the caller's very page. */
        int32_t known = tree->length[from], rest = length - start;
        if (rest <= known || known == size) node = from, start += rest < size ? rest : size;
    }
    while (start < length) {
        int32_t rest = length - start < size ? length - start : size;
        const int32_t *query = page_of(tree, insertion->tokens, start, rest);
        int32_t page = follow(tree, *child_of(tree, node), query, rest, &run);
        if (run < rest) {
            other = run || *children_of(tree, node) == 1 ? page : 0;
            if (run && run == tree->length[page]) shorter = page;
            break;
        }
        if (rest == size) insertion->pages[start / size] = tree->unit[page];
        node = page;
        start += rest;
    }
    int32_t rest = length - start < size ? length - start : size, mine = 0;
    insertion->first_new = (start + size - 1) / size;
    insertion->new_tokens = rest > 0 ? length - start - run : 0;
    const int32_t *tokens = insertion->tokens + start;
    if (rest > 0) mine = begun(tree, insertion->pages[start / size], node, tokens, rest);
    int32_t fault = check_pages(tree, insertion, insertion->first_new + (mine != 0));
    if (fault) return fault;
    if (other && !shorter && other != mine) turns_part(tree, insertion, other);
    if (mine) {
        page_lengthen(tree, mine, insertion, tokens, rest);
        node = mine;
        start += size;
        if (shorter == mine || is_aside(tree, mine)) shorter = 0;
    }
    for (; start < length; start += size) node = page_adopt(tree, node, insertion, start);
    insertion->node = node;
    if (shorter) {
        tree->flags[shorter] |= FLAG_SUPERSEDED;
        int32_t longer = tree->node_of[insertion->pages[insertion->first_new]];
        tree->flags[longer] |= tree->flags[shorter] & FLAG_OUTPUT;
    }
    settle(tree, insertion);
    bool stays = shorter == 0 || tree->parent[shorter] == 0 || !page_evictable(tree, shorter);
    if (!stays) page_leave(tree, shorter);
    return 0;
}

/* For the Python side, to compare with its mirror. */
void struct_sizes(int64_t *sizes) {
    sizes[0] = sizeof(Pool);
    sizes[1] = sizeof(Tree);
    sizes[2] = sizeof(Match);
    sizes[3] = sizeof(Insertion);
    sizes[4] = sizeof(Root);
    sizes[5] = sizeof(Returns);
    sizes[6] = sizeof(Trace);
    sizes[7] = sizeof(Uses);
}

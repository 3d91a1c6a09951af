/* Pages of the tree: how they come and go, who has locked them, and who of them goes first.
 *
 * A page may be evicted when nobody has locked it and none follows it: exactly those stand in the
 * lists. Whoever uses a page uses all above it, so a page that loses its last child was used at
 * least as recently as that child: recency travels up when pages go, and a use costs one list
 * operation however deep the path is.
 */
#include <string.h>

#include "core.h"

static inline int32_t *locks_of(Tree *tree, int32_t node) {
    return node < 0 ? &tree->roots[-1 - node].locks : &tree->locks[node];
}

/* --- who may be evicted, by age */

bool page_evictable(const Tree *tree, int32_t page) {
    return tree->locks[page] == 0 && tree->children[page] == 0;
}

/* Put an evictable page where its stamp belongs. It is nearly always the newest or the oldest. */
void page_list(Tree *tree, int32_t page) {
    List *list = &tree->page_lists[tree->kind[page]];
    List *leaves = &tree->roots[tree->root[page]].leaves;
    int64_t stamp = tree->stamp[page];
    if (list->newest == 0 || tree->stamp[list->newest] <= stamp) {
        list_push_newest(list, tree->page_links, page);
    } else {
        int32_t newer = list->oldest;
        for (int32_t steps = 64; steps && tree->stamp[newer] < stamp; steps--)
            newer = tree->page_links.newer[newer];
        if (tree->stamp[newer] < stamp) tree->stamp[page] = tree->stamp[newer];
        list_push_before(list, tree->page_links, page, newer);
    }
    if (leaves->newest == 0 || tree->stamp[leaves->newest] <= stamp)
        list_push_newest(leaves, tree->root_links, page);
    else
        list_push_before(leaves, tree->root_links, page, leaves->oldest);
}

void page_unlist(Tree *tree, int32_t page) {
    list_remove(&tree->page_lists[tree->kind[page]], tree->page_links, page);
    list_remove(&tree->roots[tree->root[page]].leaves, tree->root_links, page);
}

void page_touch(Tree *tree, int32_t page) {
    bool listed = page_evictable(tree, page);
    if (listed) page_unlist(tree, page);
    tree->stamp[page] = now(tree);
    if (listed) page_list(tree, page);
}

/* --- pages come and go */

static void write_tokens(Tree *tree, int32_t page, const int32_t *tokens, int32_t length) {
    int32_t *mine = tokens_of(tree, page);
    memcpy(mine, tokens, (size_t)length * sizeof *mine);
    for (int32_t i = length; i < tree->page_size; i++) mine[i] = -1;
    tree->length[page] = length;
}

static uint32_t *evicted_at(const Tree *tree, uint64_t trail) {
    return &tree->evicted[(trail >> 32) & (uint64_t)tree->evicted_mask];
}

/* Count a page of a prompt that was there before. */
static void count_returned(Tree *tree, const Insertion *insertion, int32_t page) {
    uint32_t *evicted = evicted_at(tree, tree->trail[page]);
    if (insertion->copied) return;
    if ((tree->number[page] + 1) * tree->page_size > insertion->output_from) return;
    if (*evicted != (uint32_t)tree->trail[page]) return;
    *evicted = 0;
    tree->returned_pages++;
}

static void follow_trail(Tree *tree, Insertion *insertion, int32_t page) {
    int32_t parent = tree->parent[page];
    uint64_t trail = parent > 0 ? tree->trail[parent] : (uint64_t)(1 - parent);
    tree->trail[page] = trail_add(trail, tokens_of(tree, page), tree->page_size);
    turns_learn(tree, insertion, page);
    count_returned(tree, insertion, page);
}

/* Take the full page at `start` of a sequence into the tree, below `parent`; return its node. */
int32_t page_adopt(Tree *tree, int32_t parent, Insertion *insertion, int32_t start) {
    int32_t length = insertion->length - start, unit = insertion->pages[start / tree->page_size];
    int32_t page = 0;
    pool_alloc(tree->node_ids, 1, &page);
    if (length > tree->page_size) length = tree->page_size;
    int32_t root = parent < 0 ? -1 - parent : tree->root[parent];
    if (parent > 0 && page_evictable(tree, parent)) page_unlist(tree, parent);
    write_tokens(tree, page, insertion->tokens + start, length);
    tree->parent[page] = parent;
    tree->root[page] = root;
    tree->number[page] = start / tree->page_size;
    tree->child[page] = tree->children[page] = tree->heads[page] = 0;
    tree->point[page] = tree->locks[page] = tree->guards[page] = 0;
    tree->flags[page] = start + length > insertion->output_from ? FLAG_OUTPUT : 0;
    tree->turns[page] = tree->kind[page] = 0;
    tree->stamp[page] = now(tree);
    tree->unit[page] = unit;
    tree->node_of[unit] = page;
    tree->full->references[unit]++;
    siblings_add(tree, child_of(tree, parent), page);
    if (++*children_of(tree, parent) > 1 && parent > 0) tree->flags[parent] |= FLAG_FORKED;
    tree->pages++;
    tree->roots[root].pages++;
    tree->roots[root].tokens += length;
    page_list(tree, page);
    if (length == tree->page_size) follow_trail(tree, insertion, page);
    return page;
}

/* Give a partial page of the tree the tokens that its owner has written behind the known ones. */
void page_lengthen(Tree *tree, int32_t page, Insertion *insertion, const int32_t *tokens,
                     int32_t length) {
    int32_t *trie = child_of(tree, tree->parent[page]);
    bool aside = is_aside(tree, page);
    tree->roots[tree->root[page]].tokens += length - tree->length[page];
    if (!aside) siblings_remove(tree, trie, page);
    write_tokens(tree, page, tokens, length);
    if (!aside) siblings_add(tree, trie, page);
    tree->flags[page] &= (uint8_t)~FLAG_SUPERSEDED;
    page_touch(tree, page);
    int32_t end = tree->number[page] * tree->page_size + length;
    if (end > insertion->output_from) tree->flags[page] |= FLAG_OUTPUT;
    if (length == tree->page_size) follow_trail(tree, insertion, page);
}

/* Take an unlocked page without children out of the tree. What its siblings can serve stays. */
void page_leave(Tree *tree, int32_t page) {
    int32_t parent = tree->parent[page];
    Root *root = &tree->roots[tree->root[page]];
    bool aside = is_aside(tree, page);
    if (!aside) siblings_remove(tree, child_of(tree, parent), page);
    if (tree->point[page]) {
        int32_t heir = siblings_nearest(tree, *child_of(tree, parent), tokens_of(tree, page));
        if (heir && !aside) {
            /* What the heir lacks is -1, which no token is. */
            int32_t length = tree->length[page];
            int32_t run = common_run(tokens_of(tree, page), tokens_of(tree, heir), length);
            points_move(tree, page, heir, run);
        }
        points_leave(tree, page);
    }
    page_unlist(tree, page);
    --*children_of(tree, parent);
    tree->pages--;
    root->pages--;
    root->tokens -= tree->length[page];
    tree->parent[page] = 0;
    if (tree->log_removed) {
        if (tree->removed_count <= tree->full->capacity)
            tree->removed[tree->removed_count] = tree->unit[page];
        tree->removed_count++;
    }
    tree->node_of[tree->unit[page]] = 0;
    pool_decref(tree->full, &tree->unit[page], 1);
    tree->unit[page] = 0;
    pool_decref(tree->node_ids, &page, 1);
}

/* Let the page before one that was evicted be the next in line, with the age it has earned. */
static void inherit(Tree *tree, int32_t parent, int64_t stamp, uint8_t kind) {
    if (parent < 0 || !page_evictable(tree, parent)) return;
    if (tree->stamp[parent] < stamp) tree->stamp[parent] = stamp;
    if (!(tree->flags[parent] & FLAG_FORKED)) tree->kind[parent] = kind;
    page_list(tree, parent);
}

static void evict_page(Tree *tree, int32_t page) {
    int32_t parent = tree->parent[page];
    int64_t stamp = tree->stamp[page];
    uint8_t kind = tree->kind[page];
    if (tree->length[page] == tree->page_size)
        *evicted_at(tree, tree->trail[page]) = (uint32_t)tree->trail[page];
    page_leave(tree, page);
    tree->evicted_pages++;
    inherit(tree, parent, stamp, kind);
}

/* Evict pages until so many are free. Returns 0 if that many cannot be had. */
int32_t tree_evict(Tree *tree, int64_t free_pages) {
    while (tree->full->free < free_pages) {
        int32_t oldest = 0;
        int64_t least = 0;
        for (int32_t kind = 0; kind < tree->page_kinds; kind++) {
            int32_t page = tree->page_lists[kind].oldest;
            if (page == 0) continue;
            int64_t stamp = tree->stamp[page] + tree->page_favour[kind];
            if (oldest == 0 || stamp < least) oldest = page, least = stamp;
        }
        if (oldest == 0) return 0;
        evict_page(tree, oldest);
    }
    return 1;
}

/* Evict pages of one namespace, oldest first, until it holds at most so many tokens. */
int32_t tree_evict_root(Tree *tree, int32_t root, int64_t keep_tokens) {
    while (tree->roots[root].tokens > keep_tokens) {
        int32_t oldest = tree->roots[root].leaves.oldest;
        if (oldest == 0) return 0;
        evict_page(tree, oldest);
    }
    return 1;
}

/* --- pages that are not to be trusted */

/* Let no match find a page from now on, nor what follows it. Locks on them stay, and whoever has
 * one may go on below. */
int32_t tree_set_aside(Tree *tree, int32_t node) {
    if (node <= 0 || tree->parent[node] == 0) return FAULT_GONE;
    if (is_aside(tree, node)) return 0;
    siblings_remove(tree, child_of(tree, tree->parent[node]), node);
    tree->flags[node] &= (uint8_t)~FLAG_SUPERSEDED;
    tree->flags[node] |= FLAG_ASIDE;
    return 1;
}

/* Evict one page of the tree if nothing locks or follows it. */
void tree_drop(Tree *tree, int32_t page) {
    if (page_evictable(tree, page)) evict_page(tree, page);
}

/* --- locks */

/* A page is guarded by its own lock and by every guarded page after it. A lock climbs to the first
 * page that is guarded already: to the top at most once a request. */
static void guard(Tree *tree, int32_t page) {
    for (; page > 0 && tree->guards[page]++ == 0; page = tree->parent[page]) tree->guarded++;
}

static void unguard(Tree *tree, int32_t page) {
    for (; page > 0 && --tree->guards[page] == 0; page = tree->parent[page]) tree->guarded--;
}

/* Whether a sibling still has all tokens of a partial page and more: it may have been evicted. */
static bool superseded(Tree *tree, int32_t page) {
    int32_t length = tree->length[page];
    memcpy(tree->scratch, tokens_of(tree, page), (size_t)length * sizeof *tree->scratch);
    /* Behind its tokens any valid one is nearer to 0 than the page's own -1 is. */
    memset(tree->scratch + length, 0, (size_t)(tree->page_size - length) * sizeof *tree->scratch);
    return siblings_nearest(tree, *child_of(tree, tree->parent[page]), tree->scratch) != page;
}

int32_t tree_lock(Tree *tree, int32_t node) {
    if (node > 0 && tree->parent[node] == 0) return FAULT_GONE;
    if (node > 0 && page_evictable(tree, node)) page_unlist(tree, node);
    if ((*locks_of(tree, node))++ == 0) guard(tree, node);
    return 0;
}

int32_t tree_unlock(Tree *tree, int32_t node) {
    if (node > 0 && tree->parent[node] == 0) return FAULT_NOT_LOCKED;
    if (*locks_of(tree, node) == 0) return FAULT_NOT_LOCKED;
    if (--*locks_of(tree, node) || node < 0) return 0;
    unguard(tree, node);
    tree->stamp[node] = now(tree);
    if (!page_evictable(tree, node)) return 0;
    page_list(tree, node);
    if (!(tree->flags[node] & FLAG_SUPERSEDED)) return 0;
    if (superseded(tree, node)) page_leave(tree, node);
    else tree->flags[node] &= (uint8_t)~FLAG_SUPERSEDED;
    return 0;
}

/* Lock a node and, unless `point` is 0, pin the point, which had this position when matched. */
int32_t tree_hold(Tree *tree, int32_t node, int32_t point, int32_t position) {
    if (point && tree->position[point] != position) return FAULT_GONE;
    int32_t fault = tree_lock(tree, node);
    if (fault || point == 0) return fault;
    tree_lock(tree, tree->holder[point]);
    point_pin(tree, point);
    return 0;
}

/* Let go of a point that was pinned, and of its page. */
int32_t tree_unpin(Tree *tree, int32_t point) {
    int32_t fault = point_unpin(tree, point);
    return fault ? fault : tree_unlock(tree, tree->holder[point]);
}

/* Make a page, and those above it that lead nowhere else, the first that are evicted, and `point`
 * with them; 0 for none. Nothing changes where the page is locked, or goes on. */
void tree_cool(Tree *tree, int32_t page, int32_t point) {
    if (page <= 0 || tree->parent[page] == 0 || !page_evictable(tree, page)) return;
    page_unlist(tree, page);
    tree->stamp[page] = COLD;
    page_list(tree, page);
    if (point) point_cool(tree, point);
    for (page = tree->parent[page]; page > 0; page = tree->parent[page]) {
        if (tree->children[page] > 1 || tree->guards[page]) break;
        tree->stamp[page] = COLD;
    }
}

/* Write the nodes of the span that ends with `page`, last to first; return how many they are. */
int32_t tree_span(const Tree *tree, int32_t page, int32_t *pages) {
    int32_t count = 0;
    pages[count++] = page;
    while (tree->parent[page] > 0 && tree->children[tree->parent[page]] == 1)
        pages[count++] = page = tree->parent[page];
    return count;
}


/* The Shadow Radix Cache's own memory: pools, pages in a tree, resume points, lists by age.
 *
 * Nothing here allocates: every array belongs to numpy (`arrays.py`), and Python mirrors the
 * structs of this file (`binding.py`). Ids are counted from 1; 0 is nobody. A call costs what it
 * changes, and a match costs the pages that it confirms, token by token.
 *
 * A page of the tree goes by its node: a number of its own, for as long as it is in the tree.
 * `unit` says which full page holds what was computed of it. A resume point has a number of its
 * own as well; what it keeps, a window and a state, are units of two other pools, and a model
 * may have neither: then there are no points, and each position serves as one.
 *
 *   pool.c       which units are free, and how many refer to each of the others
 *   list.c       items by age, oldest first
 *   siblings.c   the pages that may follow a page, found by their tokens
 *   points.c     resume points: on which page, behind which tokens
 *   turns.c      how many turns a conversation has had, remembered beyond eviction
 *   pages.c      pages come and go, are locked, are evicted
 *   tree.c       match, insert
 */
#ifndef UMBRA_CORE_H
#define UMBRA_CORE_H

#include <stdbool.h>
#include <stdint.h>

/* What a call that can fail returns; 0 and above is success. */
enum {
    FAULT_NO_UNIT = -1,    /* a unit that the pool does not have, or the dummy 0 */
    FAULT_FREE_UNIT = -2,  /* a reference to a free unit, or the drop of one too many */
    FAULT_SHORT = -3,      /* fewer free units than wanted */
    FAULT_IN_TREE = -4,    /* a page to adopt that the tree has already */
    FAULT_GONE = -5,       /* a page or point that left the tree */
    FAULT_NOT_LOCKED = -6, /* an unlock without its lock */
};

typedef struct {
    int32_t *references; /* [capacity + 1] */
    int32_t *stack;      /* [capacity] free units; the last of them is handed out next */
    int64_t capacity;
    int64_t free;
    int64_t culprit; /* the unit that the last fault was about */
} Pool;

typedef struct {
    int32_t oldest;
    int32_t newest;
    int64_t length;
} List;

/* Links of the items that stand in some list: one list an item at a time. */
typedef struct {
    int32_t *newer;
    int32_t *older;
} Links;

/* The top of a namespace. As a parent it goes by the number -1 - index. */
typedef struct {
    int32_t child;    /* its pages: a reference as in `siblings.c` */
    int32_t children; /* how many of them */
    int32_t locks;
    int32_t heads; /* resume points inside them */
    int64_t pages; /* in the whole namespace */
    int64_t tokens;
    List leaves; /* those that may be evicted, oldest first */
} Root;

/* What became of the requests of one kind that ended: after so many turns, with so many tokens. */
typedef struct {
    int64_t ended;
    int64_t returned; /* that the next turn came back to, evicted meanwhile or not */
    int64_t waited;   /* ticks until then, added up */
} Returns;

/* How long points of one kind were in the tree, and how often a request started from one. */
typedef struct {
    int64_t points; /* in the tree now */
    int64_t lived;  /* ticks in the tree, summed over all points */
    int64_t used;   /* requests that started from one */
} Uses;

/* One conversation's last end, remembered beyond its eviction; of no consequence if wrong. */
typedef struct {
    int64_t tick;
    uint32_t trail; /* hash of all tokens up to the end of its last whole page; 0: none */
    uint8_t turns;
    uint8_t kind; /* the entry of `returns` in which it was counted */
} Trace;

typedef struct {
    int32_t page_size;
    int32_t window_pages; /* most SWA pages of one point */
    int32_t page_kinds;
    int32_t point_kinds;
    int32_t end_kind; /* of points where a request ended; the page's kind is added to it */
    int32_t replay;   /* tokens that a replay computes again; -1: there is none, all are */
    int32_t has_state; /* whether a point keeps a state besides its window */
    int64_t tick; /* requests so far (`tree_use`): the clock of all ages */
    Pool *full;
    Pool *swa;
    Pool *states;
    Pool *node_ids;  /* which numbers pages of the tree have */
    Pool *point_ids; /* likewise, resume points */
    Root *roots; /* [] */

    int32_t *node_of; /* [full capacity + 1] the node of each full page that the tree has */

    /* Pages, by node: [node capacity + 1] each. */
    int32_t *unit;     /* the full page that holds what was computed of it */
    int32_t *tokens;   /* [][page_size], -1 behind the valid ones */
    int32_t *length;   /* valid tokens */
    int32_t *number;   /* it begins at position number * page_size */
    int32_t *parent;   /* the page before it, a root if negative; 0: not in the tree */
    int32_t *root;     /* index of its namespace */
    int32_t *child;    /* the pages after it: a reference as in `siblings.c` */
    int32_t *children; /* how many of them */
    int32_t *heads;    /* resume points inside them, other than at their ends */
    int32_t *point;    /* its own resume points, the deepest first */
    int32_t *locks;    /* locks on it and pins of its points */
    int32_t *guards;   /* pages after it that are guarded, and 1 if it is locked itself */
    int32_t *split_at; /* the branch of the siblings' trie that bears its number */
    int32_t *split_low;
    int32_t *split_high;
    int64_t *stamp;  /* tick of its last use */
    uint8_t *kind;  /* which list it stands in when it may be evicted */
    uint8_t *turns; /* most turns of a conversation that goes through it */
    uint8_t *flags;
    uint64_t *trail; /* hash of all tokens up to the end of this page, if it is a whole one */
    Links page_links;
    Links root_links;
    List *page_lists; /* [page_kinds] */
    int64_t *page_favour;  /* [page_kinds] ticks by which that kind counts as younger */
    Returns *returns;      /* [page_kinds] */
    Trace *traces;         /* [trace_mask + 1], by trail */
    int64_t trace_mask;
    uint32_t *evicted; /* [evicted_mask + 1] by trail: of pages that were evicted */
    int64_t evicted_mask;

    int32_t *point_of; /* [states capacity + 1] the point that keeps each state, 0: none */

    /* Resume points, by number: [point capacity + 1] each. */
    int32_t *position; /* 0: no such point */
    int32_t *state;    /* its state, 0 where there is none */
    int32_t *holder;   /* the page that holds its last token */
    int32_t *below;    /* the next less deep point of the same page */
    int32_t *pins;
    int32_t *chain; /* the next point in the same bucket */
    int32_t *windows; /* [][window_pages] SWA pages, 0 behind the last one */
    int64_t *point_stamp;
    uint8_t *exact; /* it cannot serve the position before its own */
    uint8_t *point_kind;
    uint8_t *point_saves; /* class of the tokens that it saves, when last computed */
    int32_t *buckets;
    int64_t bucket_mask;
    Links point_links;
    List *point_lists;     /* [point_kinds][SAVE_CLASSES] */
    int64_t *point_favour; /* [point_kinds][SAVE_CLASSES] */
    Uses *uses;              /* [point_kinds] */
    uint8_t *kind_after_use; /* [point_kinds] what a point becomes when a request went on from it */

    /* Counts that anyone may read. */
    int64_t pages;
    int64_t guarded; /* pages that a lock on them or below them protects */
    int64_t points;
    int64_t pins_held;
    int64_t evicted_pages;
    int64_t evicted_points;
    int64_t returned_pages; /* prompts' whole pages computed again after their eviction */

    /* Full pages that left the tree, since Python looked; kept only if asked for. */
    int32_t *removed; /* [full capacity + 1]; none is written behind it */
    int64_t removed_count;
    int32_t log_removed;

    int32_t *scratch; /* [page_size] */
} Tree;

enum {
    /* Kinds of pages where a request ended: 1 to 5, 6 and 7, 8 to 11, 12 and more turns, and for
     * each of them less than 8, 16, 32, 64 pages, and more. */
    TURN_CLASSES = 8,
    LENGTH_CLASSES = 5,
    FIRST_LENGTH_PAGES = 8,
    /* Classes of the tokens that a point saves: less than 64, 128, ... 4,096, and more. */
    SAVE_CLASSES = 8,
    FIRST_SAVE_TOKENS = 64,
};

/* The stamp of what goes before anything that was used. */
#define COLD (-((int64_t)1 << 40))

enum {
    FLAG_SUPERSEDED = 1, /* a sibling has all its tokens and more: it goes with its last lock */
    FLAG_FORKED = 2,     /* it once had two children */
    FLAG_OUTPUT = 4,     /* its last token was sampled, not given */
    FLAG_LOST_POINT = 8, /* a resume point of it was evicted since one was added */
    FLAG_ASIDE = 16,     /* no match finds it, nor what follows it: it waits for its eviction */
};

typedef struct {
    int32_t full_tokens;   /* F */
    int32_t pages;         /* that hold F */
    int32_t holder;        /* node with position F - 1, or the root */
    int32_t point;         /* the point that saves most, or 0 */
    int32_t resume_tokens; /* S */
    int32_t turns;         /* that the conversation will have had at the end of this one */
    int32_t point_evicted; /* whether a point between S and F was evicted */
} Match;

typedef struct {
    const int32_t *tokens; /* [length] */
    int32_t *pages;        /* [ceil(length / page_size)] full pages; whole ones become the tree's */
    int32_t length;
    int32_t from;        /* node or root to begin at: pages before it are the tree's already */
    int32_t locked;      /* whether the caller has a lock on `from`; it moves to `node` */
    int32_t turns;       /* in and out: as matched; more once the tokens tell */
    int32_t output_from; /* tokens from here on were sampled */
    int32_t ended;       /* whether the request ends with these tokens */
    int32_t node;        /* out: node or root that holds the last token */
    int32_t new_tokens;  /* out */
    int32_t first_new;   /* out: index of the first page that the tree took */
    int32_t copied; /* 0: computed for this tree; else 1 + the turns that the sequence has had in
                       the tree that it was copied from */
    int64_t since;       /* tick of the match */
} Insertion;

static inline bool is_aside(const Tree *tree, int32_t node) {
    return node > 0 && tree->flags[node] & FLAG_ASIDE;
}

static inline int32_t *tokens_of(const Tree *tree, int32_t page) {
    return tree->tokens + (int64_t)page * tree->page_size;
}

/* Of a page, or of a root, whose number is below zero. */
static inline int32_t *child_of(const Tree *tree, int32_t node) {
    return node < 0 ? &tree->roots[-1 - node].child : &tree->child[node];
}
static inline int32_t *heads_of(const Tree *tree, int32_t node) {
    return node < 0 ? &tree->roots[-1 - node].heads : &tree->heads[node];
}
static inline int32_t *children_of(const Tree *tree, int32_t node) {
    return node < 0 ? &tree->roots[-1 - node].children : &tree->children[node];
}

/* The stamp of whatever happens after a match; the next match comes at the same time. */
static inline int64_t now(const Tree *tree) { return tree->tick + 1; }

/* pool.c */
int32_t pool_alloc(Pool *pool, int32_t count, int32_t *units);
int32_t pool_incref(Pool *pool, const int32_t *units, int32_t count);
int32_t pool_decref(Pool *pool, const int32_t *units, int32_t count);

/* list.c */
void list_push_newest(List *list, Links links, int32_t item);
void list_push_before(List *list, Links links, int32_t item, int32_t newer);
void list_remove(List *list, Links links, int32_t item);

/* siblings.c */
int32_t common_run(const int32_t *left, const int32_t *right, int32_t length);
int32_t siblings_nearest(const Tree *tree, int32_t trie, const int32_t *page_tokens);
void siblings_add(Tree *tree, int32_t *trie, int32_t page);
void siblings_remove(Tree *tree, int32_t *trie, int32_t page);

/* points.c */
int32_t point_add(Tree *tree, int32_t node, int32_t position, const int32_t *window, int32_t count,
                  int32_t state, int32_t exact, int32_t kind);
int32_t point_give(Tree *tree, int32_t node, int32_t position, const int32_t *window, int32_t count,
                   int32_t state, int32_t exact, int32_t kind);
int32_t point_serving_one_less(const Tree *tree, int32_t page, int32_t position);
int32_t point_find(const Tree *tree, int32_t page, int32_t position);
int32_t point_at(const Tree *tree, int32_t page, int32_t position);
void point_free(Tree *tree, int32_t point);
void point_touch(Tree *tree, int32_t point);
void point_cool(Tree *tree, int32_t point);
void point_pin(Tree *tree, int32_t point);
int32_t point_unpin(Tree *tree, int32_t point);
int32_t points_deepest_inside(const Tree *tree, int32_t page, const int32_t *tokens, int32_t run,
                              int32_t limit);
void points_leave(Tree *tree, int32_t page);
void points_move(Tree *tree, int32_t from, int32_t to, int32_t run);
int32_t points_evict(Tree *tree, int64_t free_swa, int64_t free_states);

/* tree.c */
void tree_match(Tree *tree, int32_t root, const int32_t *tokens, int32_t length, int32_t limit,
                int32_t *pages, Match *match);
void tree_use(Tree *tree, int32_t holder, int32_t point, int32_t turns);
int32_t tree_insert(Tree *tree, Insertion *insertion);
void struct_sizes(int64_t *sizes);

/* pages.c */
bool page_evictable(const Tree *tree, int32_t page);
void page_list(Tree *tree, int32_t page);
void page_unlist(Tree *tree, int32_t page);
void page_touch(Tree *tree, int32_t page);
int32_t page_adopt(Tree *tree, int32_t parent, Insertion *insertion, int32_t start);
void page_lengthen(Tree *tree, int32_t page, Insertion *insertion, const int32_t *tokens,
                   int32_t length);
void page_leave(Tree *tree, int32_t page);
int32_t tree_lock(Tree *tree, int32_t node);
int32_t tree_unlock(Tree *tree, int32_t node);
int32_t tree_hold(Tree *tree, int32_t node, int32_t point, int32_t position);
int32_t tree_unpin(Tree *tree, int32_t point);
void tree_cool(Tree *tree, int32_t page, int32_t point);
int32_t tree_evict(Tree *tree, int64_t free_pages);
int32_t tree_evict_root(Tree *tree, int32_t root, int64_t keep_tokens);
int32_t tree_span(const Tree *tree, int32_t page, int32_t *pages);
int32_t tree_set_aside(Tree *tree, int32_t node);
void tree_drop(Tree *tree, int32_t page);

/* turns.c */
uint64_t trail_add(uint64_t trail, const int32_t *tokens, int32_t length);
void turns_return(Tree *tree, int32_t holder);
void turns_learn(Tree *tree, Insertion *insertion, int32_t page);
void turns_part(Tree *tree, Insertion *insertion, int32_t page);
void turns_end(Tree *tree, const Insertion *insertion);
void turns_copy(Tree *tree, const Insertion *insertion);
int32_t turns_after(const Tree *tree, int32_t holder, int32_t full_tokens);

#endif

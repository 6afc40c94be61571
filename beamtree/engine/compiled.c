/* The search of search.py with the sliced scorer, in C: the same steps, choices and record, without the cost of
 * PyTorch operations. One call advances a group of sequences on one thread; compiled.py calls it.
 *
 * Compiled twice, with REAL as float and as double. Each row of a product is summed in a fixed order that does
 * not depend on the other rows, so a sequence gives the same result alone and in a batch, to the last bit. The
 * caller provides all memory; nothing is allocated here. Integers are int64_t, as in PyTorch.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef REAL real;
typedef int64_t whole;

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define VECTORS 4
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define VECTORS 2
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define VECTORS 4
#else
#define VECTOR_BYTES 16
#define VECTORS 2
#endif
enum { LANES = VECTOR_BYTES / sizeof(real), PANEL = LANES * VECTORS, TILE = 6 };  /* TILE rows, PANEL columns */
typedef real vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

enum { NONE = 0 };
enum { BEFORE, LEFT_NEIGHBOUR, LEFT, RIGHT, RIGHT_NEIGHBOUR, POSITION, LINKS };  /* columns of Tape.links */
enum { DROPOUT = 1, FIRST_SELECTION = 2, SECOND_SELECTION = 3 };  /* streams of randomness.py */

typedef struct {  /* same fields in the same order as _Problem in compiled.py */
    whole B, n, K, d, hidden, slice, scorer_hidden;
    const whole *order, *lengths;  /* sequences longest first, and their lengths in that order */
    real *w1, *w2, *scorer_w1;     /* packed */
    const real *b1, *b2, *gamma, *beta, *scorer_b1, *scorer_w2, *scorer_b2;
    double eps;
    whole noisy, dropped;  /* dropped: out of 65536 entries of a mask */
    uint64_t seed;
    real *nodes, *ended, *scores;  /* the tape; scores, roots and offset in the order of Problem.order */
    whole *links, *roots;
    double *offset;
} Problem;

typedef struct {  /* the sequences from `start` on, in Problem's order; K rows each, width n + 2 */
    whole start, rows, width;
    whole *ids, *next_ids;     /* as Lists in search.py: the remaining nodes, padded with NONE */
    real *pairs, *next_pairs;  /* scores of (ids[c], ids[c + 1]) */
    real *log_z, *values, *best_values, *candidates;  /* for one sequence: (K), (K), (K), (K, K) */
    whole *column, *best;       /* (K, K) of `candidates`, (K) */
    whole *near;                /* (rows, 4) ids: left neighbour, left, right, right neighbour */
    whole *new_pairs;           /* (2 rows or n, 2) ids to be scored */
    real **places;              /* where their scores go */
    real *read, *inner, *gates; /* operands and results of the products */
} Group;

static whole padded(whole size, whole unit) { return (size + unit - 1) / unit * unit; }

/* ---- Products --------------------------------------------------------------------------------------- */

whole packed_size(whole width, whole depth) { return padded(width, PANEL) * depth; }

/* Pack a weight (width, depth) into panels of PANEL rows, each transposed; the last is padded with zeros. */
void pack(const real *weight, whole width, whole depth, real *packed) {
    for (whole panel = 0; panel < width; panel += PANEL, packed += PANEL * depth)
        for (whole from = 0; from < depth; from += LANES) {  /* part of each row, to stay in the cache */
            whole until = from + LANES < depth ? from + LANES : depth;
            for (whole j = 0; j < PANEL; j++)
                for (whole k = from; k < until; k++)
                    packed[k * PANEL + j] = panel + j < width ? weight[(panel + j) * depth + k] : 0;
        }
}

/* out (rows, padded width) = x (rows, depth) · weightᵀ; reads and writes up to a multiple of TILE rows. */
static void multiply(const real *x, whole stride, whole rows, whole depth, const real *packed, whole width,
                     real *out) {
    whole wide = padded(width, PANEL);
    for (whole panel = 0; panel < wide; panel += PANEL, packed += PANEL * depth)
        for (whole r = 0; r < rows; r += TILE) {
            const real *row = x + r * stride;
            vector sum[TILE][VECTORS] = {0};
            for (whole k = 0; k < depth; k++) {
                const vector *w = (const vector *)(packed + k * PANEL);
#pragma GCC unroll 8
                for (int i = 0; i < TILE; i++)
#pragma GCC unroll 8
                    for (int j = 0; j < VECTORS; j++)
                        sum[i][j] += row[i * stride + k] * w[j];
            }
            for (int i = 0; i < TILE; i++)
                memcpy(out + (r + i) * wide + panel, sum[i], sizeof sum[i]);
        }
}

/* ---- Functions; in single precision, loops over them compile to vector instructions ------------------- */

static inline float exp_single(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  /* rounds to an integer */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static inline float erf_single(float x) {  /* a quotient of polynomials on [−4, 4] */
    x = x < -4.0f ? -4.0f : x;
    x = x > 4.0f ? 4.0f : x;
    float s = x * x;
    float p = -2.72614225801306e-10f;
    p = p * s + 2.77068142495902e-08f;
    p = p * s - 2.10102402082508e-06f;
    p = p * s - 5.69250639462346e-05f;
    p = p * s - 7.34990630326855e-04f;
    p = p * s - 2.95459980854025e-03f;
    p = p * s - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * s - 2.13374055278905e-04f;
    q = q * s - 1.68282697438203e-03f;
    q = q * s - 7.37332916720468e-03f;
    q = q * s - 1.42647390514189e-02f;
    return x * p / q;
}

static inline real sigmoid(real x) {
    return sizeof(real) == 4 ? (real)(1.0f / (1.0f + exp_single((float)-x))) : (real)(1.0 / (1.0 + exp(-x)));
}

static inline real gelu(real x) {
    real scaled = x * (real)0.70710678118654752440;
    real e = sizeof(real) == 4 ? (real)erf_single((float)scaled) : (real)erf(scaled);
    return (real)0.5 * x * (1 + e);
}

static real sum_of_products(const real *x, const real *y, whole count) {
    real lane[LANES] = {0}, total = 0;
    whole i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * y[i + j];
    for (int j = 0; j < LANES; j++) total += lane[j];
    for (; i < count; i++) total += x[i] * y[i];
    return total;
}

static real sum(const real *x, whole count) {
    real lane[LANES] = {0}, total = 0;
    whole i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j];
    for (int j = 0; j < LANES; j++) total += lane[j];
    for (; i < count; i++) total += x[i];
    return total;
}

/* ---- Random numbers, bit for bit those of randomness.py ---------------------------------------------- */

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t key_of(const Problem *p, uint64_t stream, whole step, whole sequence, whole slot) {
    uint64_t begin = mixed(p->seed + stream * 0x2545F4914F6CDD1Du);
    return mixed(begin + (uint64_t)step * 0x5851F42D4C957F2Du + (uint64_t)sequence * 0x369DEA0F31A53F85u +
                 (uint64_t)slot * GOLDEN);
}

static real gumbel(uint64_t key, whole lane) {
    uint64_t word = mixed(key + (uint64_t)(lane / 2 + 1) * GOLDEN);
    real u = (real)(int32_t)(uint32_t)(lane % 2 ? word >> 32 : word) * (real)0x1p-32 + (real)0.5;
    u = u < (real)0x1p-33 ? (real)0x1p-33 : u;
    u = u > 1 - (real)0x1p-24 ? 1 - (real)0x1p-24 : u;
    return sizeof(real) == 4 ? -logf(-logf((float)u)) : -log(-log(u));
}

static void drop(const Problem *p, uint64_t key, real *row) {
    enum { WORDS = 32, ENTRIES = 4 * WORDS };
    real scale = (real)(65536.0 / (double)(65536 - p->dropped));
    int least = (int)p->dropped - 32768;
    for (whole from = 0; from < p->hidden; from += ENTRIES) {
        whole count = p->hidden - from < ENTRIES ? p->hidden - from : ENTRIES;
        uint64_t words[WORDS];
        int16_t drawn[ENTRIES];
        for (uint64_t i = 0; i < WORDS; i++) words[i] = mixed(key + ((uint64_t)from / 4 + i + 1) * GOLDEN);
        memcpy(drawn, words, sizeof drawn);
        for (whole c = 0; c < count; c++) row[from + c] *= drawn[c] >= least ? scale : 0;
    }
}

/* ---- The learned parts ------------------------------------------------------------------------------- */

/* Apply the gated cell to the children near[1] and near[2] of every row at step t; write the nodes to `made`. */
static void compose(const Problem *p, const Group *g, whole rows, whole t, real *made) {
    whole d = p->d, wide = padded(p->hidden, PANEL), gates_wide = padded(4 * d, PANEL);
    for (whole r = 0; r < rows; r++)
        for (int side = 0; side < 2; side++)
            memcpy(g->read + (2 * r + side) * d, p->nodes + g->near[4 * r + 1 + side] * d, d * sizeof(real));
    multiply(g->read, 2 * d, rows, 2 * d, p->w1, p->hidden, g->inner);
    for (whole r = 0; r < rows; r++) {
        real *h = g->inner + r * wide;
        for (whole c = 0; c < p->hidden; c++) h[c] = gelu(h[c] + p->b1[c]);
        if (p->dropped)
            drop(p, key_of(p, DROPOUT, t, p->order[g->start + r / p->K], r % p->K), h);
    }
    multiply(g->inner, wide, rows, p->hidden, p->w2, 4 * d, g->gates);
    for (whole r = 0; r < rows; r++) {
        const real *left = g->read + 2 * r * d, *right = left + d;
        real *a = g->gates + r * gates_wide, *b = a + d, *c = b + d, *content = c + d, *parent = made + r * d;
        for (whole i = 0; i < d; i++)
            a[i] = sigmoid(a[i] + p->b2[i]) * left[i] + sigmoid(b[i] + p->b2[d + i]) * right[i] +
                   sigmoid(c[i] + p->b2[2 * d + i]) * (content[i] + p->b2[3 * d + i]);
        real mean = sum(a, d) / (real)d;
        for (whole i = 0; i < d; i++) a[i] -= mean;
        real scale = 1 / (real)sqrt(sum_of_products(a, a, d) / (real)d + (real)p->eps);
        for (whole i = 0; i < d; i++) parent[i] = a[i] * scale * p->gamma[i] + p->beta[i];
    }
}

/* Score pairs of ids; write each score to its place. */
static void score(const Problem *p, const Group *g, whole count) {
    whole s = p->slice, wide = padded(p->scorer_hidden, PANEL);
    for (whole from = 0; from < count; from += g->rows) {
        whole rows = count - from < g->rows ? count - from : g->rows;
        for (whole r = 0; r < 2 * rows; r++)
            memcpy(g->read + r * s, p->nodes + g->new_pairs[2 * from + r] * p->d, s * sizeof(real));
        multiply(g->read, 2 * s, rows, 2 * s, p->scorer_w1, p->scorer_hidden, g->inner);
        for (whole r = 0; r < rows; r++) {
            real *h = g->inner + r * wide;
            for (whole c = 0; c < p->scorer_hidden; c++) h[c] = gelu(h[c] + p->scorer_b1[c]);
            *g->places[from + r] = sum_of_products(h, p->scorer_w2, p->scorer_hidden) + p->scorer_b2[0];
        }
    }
}

/* ---- A step ------------------------------------------------------------------------------------------ */

static double log_sum_exp(const real *x, whole count) {  /* in double precision, as in search.py */
    double best = -INFINITY, total = 0;
    for (whole i = 0; i < count; i++) best = x[i] > best ? x[i] : best;
    if (isinf(best)) best = 0;
    for (whole i = 0; i < count; i++) total += exp(x[i] - best);
    return best + log(total);
}

/* Insert `what` with this value into the `found` best so far, at most k; return the new number. Equal values
 * stay in order of arrival. */
static whole rank(real value, whole what, whole k, whole found, real *values, whole *whats) {
    if (found == k && !(value > values[k - 1])) return found;
    whole i = found < k ? found++ : k - 1;
    for (; i > 0 && value > values[i - 1]; i--) values[i] = values[i - 1], whats[i] = whats[i - 1];
    values[i] = value, whats[i] = what;
    return found;
}

/* Make values equal that differ only by rounding errors; choosing.py says why. */
static real up_to_rounding(real x) {
    return x + (sizeof(real) == 4 ? (real)24 : (real)(1.5 * 0x1p24));
}

/* Choose K merges of one sequence, record them, and build its next lists; new pairs are scored later. */
static whole choose(const Problem *p, Group *g, whole t, whole a, whole waiting) {
    whole K = p->K, sequence = g->start + a, live = p->lengths[sequence] - t, width = g->width;
    whole k = live - 1 < K ? live - 1 : K, found = 0;
    real *scores = p->scores + sequence * K;
    const whole *ids = g->ids + a * K * width;
    const real *pairs = g->pairs + a * K * width;
    real *candidates = g->candidates;
    whole *best = g->best;
    for (whole b = 0; b < K; b++) {
        const real *row = pairs + b * width;
        whole kept = 0;
        g->log_z[b] = (real)log_sum_exp(row + 1, live - 1);
        uint64_t first = 0, second = 0;
        if (p->noisy) {
            first = key_of(p, FIRST_SELECTION, t, p->order[sequence], b);
            second = key_of(p, SECOND_SELECTION, t, p->order[sequence], b);
        }
        for (whole c = 1; c < live; c++)
            kept = rank(p->noisy ? row[c] + gumbel(first, c - 1) : up_to_rounding(row[c]), c, k, kept, g->values,
                        g->column + b * k);
        for (whole i = 0; i < k; i++) {
            real candidate = row[g->column[b * k + i]] + (scores[b] - g->log_z[b]);
            candidates[b * k + i] = candidate;
            found = rank(p->noisy ? candidate + gumbel(second, i) : up_to_rounding(candidate), b * k + i, K, found,
                         g->best_values, best);
        }
    }
    whole first_row = (t * p->B + sequence) * K, first_id = 1 + p->B * p->n;
    for (whole slot = 0; slot < K; slot++) {
        scores[slot] = candidates[best[slot]];
        /* A dead slot copies the best one, so that every list remains a list of real nodes. */
        whole what = scores[slot] > -INFINITY ? best[slot] : best[0];
        whole from = what / k, here = g->column[what], made = first_id + first_row + slot;
        const whole *old = ids + from * width;
        const real *old_pairs = pairs + from * width;
        whole *near = g->near + 4 * (a * K + slot), *link = p->links + (first_row + slot) * LINKS;
        real *ended = p->ended + (first_row + slot) * 4;
        memcpy(near, old + here - 1, 4 * sizeof(whole));
        link[BEFORE] = t ? first_id + first_row - p->B * K + from : NONE;
        memcpy(link + LEFT_NEIGHBOUR, near, 4 * sizeof(whole));
        link[POSITION] = here - 1;
        memcpy(ended, old_pairs + here - 1, 3 * sizeof(real));
        ended[3] = g->log_z[from];

        whole *next = g->next_ids + (a * K + slot) * width;
        real *next_pairs = g->next_pairs + (a * K + slot) * width;
        memcpy(next, old, here * sizeof(whole));
        next[here] = made;
        memcpy(next + here + 1, old + here + 2, (live - here) * sizeof(whole));  /* including the NONE at the end */
        memcpy(next_pairs, old_pairs, here * sizeof(real));
        memcpy(next_pairs + here + 1, old_pairs + here + 2, (live - here - 1) * sizeof(real));
        next_pairs[here - 1] = next_pairs[here] = -INFINITY;
        for (int side = 0; side < 2; side++) {
            whole neighbour = near[3 * side], *pair = g->new_pairs + 2 * waiting;
            if (neighbour == NONE) continue;
            pair[side] = neighbour, pair[1 - side] = made;
            g->places[waiting++] = next_pairs + here - 1 + side;
        }
    }
    real lead = scores[0];
    p->offset[sequence] += lead;
    for (whole slot = 0; slot < K; slot++) scores[slot] -= lead;
    return waiting;
}

/* ---- Groups ------------------------------------------------------------------------------------------ */

/* Lay out a group of `count` sequences in memory; with NULL, only return the size. */
static whole lay_out(const Problem *p, whole count, char *memory, Group *g) {
    whole used = 0, K = p->K, n = p->n, rows = padded(count * K, TILE);
    whole lists = count * K * (n + 2), most = 2 * rows > n ? 2 * rows : n;
    whole inner = p->hidden > p->scorer_hidden ? p->hidden : p->scorer_hidden;
    g->rows = rows, g->width = n + 2;
#define PLACE(field, size) \
    g->field = (void *)(memory + used), used += padded((size) * (whole)sizeof *g->field, VECTOR_BYTES)
    PLACE(ids, lists), PLACE(next_ids, lists), PLACE(pairs, lists), PLACE(next_pairs, lists);
    PLACE(log_z, K), PLACE(values, K), PLACE(best_values, K), PLACE(candidates, K * K);
    PLACE(column, K * K), PLACE(best, K), PLACE(near, 4 * rows);
    PLACE(new_pairs, 2 * most), PLACE(places, most);
    PLACE(read, rows * 2 * p->d), PLACE(inner, rows * padded(inner, PANEL));
    PLACE(gates, rows * padded(4 * p->d, PANEL));
#undef PLACE
    return used;
}

whole memory_size(const Problem *p, whole count) {
    Group g;
    return lay_out(p, count, NULL, &g);
}

/* Make the lists of leaves, the same for all beams of a sequence; only the first beam is alive. */
static void start(const Problem *p, const Group *g, whole count) {
    for (whole a = 0; a < count; a++) {
        whole sequence = g->start + a, length = p->lengths[sequence], waiting = 0;
        whole *ids = g->ids + a * p->K * g->width;
        real *pairs = g->pairs + a * p->K * g->width;
        ids[0] = ids[length + 1] = NONE;
        pairs[0] = pairs[length] = -INFINITY;
        for (whole c = 1; c <= length; c++) ids[c] = p->order[sequence] * p->n + c;
        for (whole c = 1; c < length; c++) {
            memcpy(g->new_pairs + 2 * waiting, ids + c, 2 * sizeof(whole));
            g->places[waiting++] = pairs + c;
        }
        score(p, g, waiting);
        for (whole b = 1; b < p->K; b++) {
            memcpy(ids + b * g->width, ids, (length + 2) * sizeof(whole));
            memcpy(pairs + b * g->width, pairs, (length + 1) * sizeof(real));
        }
    }
}

static void exchange(Group *g) {  /* the lists after one step are the input of the next */
    whole *ids = g->ids;
    real *pairs = g->pairs;
    g->ids = g->next_ids, g->next_ids = ids;
    g->pairs = g->next_pairs, g->next_pairs = pairs;
}

/* Run steps t to `until` (excluded) of `count` sequences; `memory` keeps their state between calls. */
void advance(const Problem *p, whole first, whole count, whole t, whole until, char *memory) {
    Group g;
    lay_out(p, count, memory, &g);
    g.start = first;
    if (t == 0) start(p, &g, count);
    if (t % 2) exchange(&g);
    for (; t < until; t++, exchange(&g)) {
        whole running = 0, waiting = 0, made = (t * p->B + first) * p->K;
        while (running < count && p->lengths[first + running] > t + 1) running++;
        if (!running) return;
        for (whole a = 0; a < running; a++) {
            waiting = choose(p, &g, t, a, waiting);
            if (p->lengths[first + a] == t + 2)
                for (whole slot = 0; slot < p->K; slot++)
                    p->roots[(first + a) * p->K + slot] = 1 + p->B * p->n + made + a * p->K + slot;
        }
        compose(p, &g, running * p->K, t, p->nodes + (1 + p->B * p->n + made) * p->d);
        score(p, &g, waiting);
    }
}

/* The compiled core: what solvers ask most often, equal to the bit to the numpy code that calls it.

   It knows arrays by Python's buffer protocol alone, and so no numpy, and keeps to the stable ABI: one build serves every
   Python from 3.11 on. Every sum here is exact, as simulators' embeddings, weights and hidden units are on grids (see
   shard_gym/simulators/networks.py), or is made in the order that numpy makes it. The compiler must not contract products
   and sums to one rounding (-ffp-contract=off); nothing here takes a logarithm or the like, which libraries round each in
   its own way.

   Shards are costed TILE at once, the same column of all side by side, so that compilers make vectors of the loops. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "double arithmetic with more digits would not equal numpy's"
#endif

#define VERSION 6 /* of the functions below; shard_gym/core/__init__.py knows which one it calls */
#define TILE 8
#define FEW_TOTALS 6 /* of a shard, of most networks: their loops are compiled for it */
#define MOST_TOTALS 16
#define MOST_COLUMNS 64
#define MOST_MEMBERS 16
#define WHOLE 4503599627370496.0 /* 2**52: from here on doubles have no fraction */
#define GRAIN 16384.0
#define HIGHEST 65536.0
#define LOWEST_FACTOR 0.05
#define MAD_TO_DEVIATION 1.2533
#define LIMIT 5.0f /* these three as shard_gym/envs/observations.py has them */
#define FAR 1e300
#define TINY 1e-12

/* Where the loader can choose, loops are compiled for newer processors too; the numbers are the same. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_ALL_PROCESSORS __attribute__((target_clones("avx512f", "avx2", "default")))
#define INLINE static inline __attribute__((always_inline))
#else
#define FOR_ALL_PROCESSORS
#define INLINE static inline
#endif

typedef double Column[TILE];

static Py_ssize_t whole_tiles(Py_ssize_t count) { return (count + TILE - 1) / TILE * TILE; }

/* ---- Models: what a shard's sum of embeddings costs */

/* A model is one array of numbers: the first says how many members its ensemble has, 0 of a roofline. */
typedef struct {
    Py_ssize_t members, totals, units; /* sizes of a learned network, units of a member */
    Py_ssize_t front, back;            /* columns that count, from the front and from the back of a sum */
    double per_us;                     /* times are in milliseconds (1e3), or in microseconds (1) of speed 1 */
    double other;                      /* error that members share; or the launch of a pass, us */
    double highest;                    /* units of a learned network stop here */
    const double *added, *unit, *factor;
} Model;

enum { TABLES, DIMS, FAR_AWAY, OWN };                                                      /* learned, then the network's */
enum { FORWARD_DRAM, FORWARD_ISSUE, BACKWARD_DRAM, BACKWARD_ISSUE, SORT, DIM, COUNT, ALL }; /* roofline */

INLINE double nearest(double x) /* whole number, halves to even, as rint, which some processors only have in a library */
{
    double size = fabs(x), rounded = (size + WHOLE) - WHOLE;
    return size < WHOLE ? copysign(rounded, x) : x;
}

INLINE double between(double x, double low, double high) /* a NaN stays one, as in numpy */
{
    double raised = low > x ? low : x;
    return high < raised ? high : raised;
}

INLINE double larger(double a, double b) { return a > b || a != a ? a : b; }

INLINE double smaller(double a, double b) { return a < b ? a : b; }

/* Ours.times and Ours.decode: forward and backward ms of each shard, and what members say of both, in grains. */
INLINE void learned(const Model *m, Py_ssize_t totals, Column *x, double *forward, double *backward, Column *whole)
{
    Column roots[MOST_TOTALS];
    for (Py_ssize_t q = 0; q < totals; q++) {
        for (int j = 0; j < TILE; j++)
            roots[q][j] = sqrt(sqrt((x[OWN + q][j] + m->added[q]) * (GRAIN * GRAIN * GRAIN * GRAIN)));
        for (int j = 0; j < TILE; j++)
            roots[q][j] = nearest(roots[q][j]);
    }
    for (int j = 0; j < TILE; j++)
        forward[j] = backward[j] = 0.0;
    const double *unit = m->unit, *factor = m->factor;
    for (Py_ssize_t member = 0; member < m->members; member++, factor += 2 * (m->units + 1)) {
        Column hidden, there, back;
        for (int j = 0; j < TILE; j++) {
            there[j] = factor[m->units] * GRAIN;
            back[j] = factor[2 * m->units + 1] * GRAIN;
        }
        for (Py_ssize_t u = 0; u < m->units; u++, unit += 1 + totals) {
            for (int j = 0; j < TILE; j++)
                hidden[j] = unit[0] * GRAIN;
            for (Py_ssize_t q = 0; q < totals; q++)
                for (int j = 0; j < TILE; j++)
                    hidden[j] += unit[1 + q] * roots[q][j];
            for (int j = 0; j < TILE; j++)
                hidden[j] = between(hidden[j], 0.0, m->highest * GRAIN);
            for (int j = 0; j < TILE; j++) {
                double value = (hidden[j] + WHOLE) - WHOLE; /* of what is not negative, and small */
                there[j] += factor[u] * value;
                back[j] += factor[m->units + 1 + u] * value;
            }
        }
        Py_ssize_t base = totals + 2 * member;
        for (int j = 0; j < TILE; j++) {
            double a = between(there[j], LOWEST_FACTOR * GRAIN, HIGHEST * GRAIN);
            double b = between(back[j], LOWEST_FACTOR * GRAIN, HIGHEST * GRAIN);
            a = nearest(a * (x[OWN + base][j] + m->added[base]));
            b = nearest(b * (x[OWN + base + 1][j] + m->added[base + 1]));
            forward[j] += a;
            backward[j] += b;
            whole[member][j] = a + b;
        }
    }
}

/* The rest of Learned.decode but for the speed of devices: mean of the members, their spread and the mean distance. */
INLINE void mean(const Model *m, Column *x, double *forward, double *backward)
{
    double scale = 1e-3 / (double)m->members / GRAIN;
    for (int j = 0; j < TILE; j++) {
        double some = x[TABLES][j] > 0.0 ? 1.0 : 0.0;
        forward[j] = forward[j] * scale * some;
        backward[j] = backward[j] * scale * some;
    }
}

INLINE void doubts(const Model *m, Column *x, const double *forward, const double *backward, Column *whole, double *spread,
                   double *far)
{
    double members = (double)m->members, scale = 1e-3 * MAD_TO_DEVIATION / (members * members) / GRAIN;
    Column apart = {0.0}, sum = {0.0};
    for (Py_ssize_t member = 0; member < m->members; member++)
        for (int j = 0; j < TILE; j++)
            sum[j] += whole[member][j];
    for (Py_ssize_t member = 0; member < m->members; member++)
        for (int j = 0; j < TILE; j++)
            apart[j] += fabs(whole[member][j] * members - sum[j]);
    for (int j = 0; j < TILE; j++) {
        double some = x[TABLES][j] > 0.0 ? 1.0 : 0.0;
        far[j] = x[FAR_AWAY][j] / larger(x[TABLES][j], 1.0);
        double own = apart[j] * scale * some, shared = (m->other + far[j]) * (forward[j] + backward[j]);
        spread[j] = sqrt(own * own + shared * shared);
    }
}

/* Roofline.decode, of tasks whose tables are whole or cut by columns. */
INLINE void roofline(const Model *m, Column *x, double *forward, double *backward)
{
    for (int j = 0; j < TILE; j++) {
        double launch = (x[COUNT][j] > 0.0 ? 1.0 : 0.0) * m->other;
        forward[j] = larger(x[FORWARD_DRAM][j], x[FORWARD_ISSUE][j]) + launch;
        backward[j] = larger(x[BACKWARD_DRAM][j], x[BACKWARD_ISSUE][j]) + x[SORT][j] + launch;
    }
}

/* Forward and backward times of a tile of shards on devices of speed 1; spread and distance where they are asked for. */
INLINE void tile_times(const Model *m, Column *x, double *forward, double *backward, double *spread, double *far)
{
    if (m->members) {
        Column whole[MOST_MEMBERS];
        if (m->totals == FEW_TOTALS)
            learned(m, FEW_TOTALS, x, forward, backward, whole);
        else
            learned(m, m->totals, x, forward, backward, whole);
        mean(m, x, forward, backward);
        if (spread)
            doubts(m, x, forward, backward, whole, spread, far);
    } else {
        roofline(m, x, forward, backward);
    }
}

/* ---- Loops over shards, plans and tables; they run without the interpreter's lock */

/* rows of out, (rows, shards): 1: cost; 2: forward, backward; 4: and spread, distance */
FOR_ALL_PROCESSORS
static void decode_all(const Model *m, const double *sums, Py_ssize_t shards, Py_ssize_t width, const double *ms_per_us,
                       Py_ssize_t devices, double *out, Py_ssize_t rows)
{
    Column x[MOST_COLUMNS], forward, backward, spread, far;
    if (shards % TILE) /* the last tile is not full */
        memset(x, 0, sizeof x);
    for (Py_ssize_t first = 0; first < shards; first += TILE) {
        int count = (int)(shards - first < TILE ? shards - first : TILE);
        for (int j = 0; j < count; j++) {
            const double *sum = sums + (first + j) * width;
            for (Py_ssize_t c = 0; c < m->front; c++)
                x[c][j] = sum[c];
            for (Py_ssize_t c = 0; c < m->back; c++)
                x[m->front + c][j] = sum[width - m->back + c];
        }
        tile_times(m, x, forward, backward, rows == 4 ? spread : NULL, far);
        for (int j = 0; j < count; j++) {
            double scale = ms_per_us[(first + j) % devices] * m->per_us, *to = out + first + j;
            if (rows == 1) {
                to[0] = forward[j] * scale + backward[j] * scale;
                continue;
            }
            to[0] = forward[j] * scale;
            to[shards] = backward[j] * scale;
            if (rows == 4) {
                to[2 * shards] = spread[j] * scale;
                to[3 * shards] = far[j];
            }
        }
    }
}

/* device_sums: values (rows, width), placements (plans, tables) with -1 for none -> (plans, devices, width). The tables
   of a plan are the rows from its `first` on. `sums` and `padded` are room for the sums of a plan and for a row, as wide
   as whole tiles: what the next row adds beside the width is never read. */
FOR_ALL_PROCESSORS
static void add_up(const double *values, Py_ssize_t rows, Py_ssize_t width, const int64_t *placements, Py_ssize_t plans,
                   Py_ssize_t tables, const int64_t *first, Py_ssize_t devices, double *restrict sums, double *padded,
                   double *out)
{
    Py_ssize_t wide = whole_tiles(width);
    for (Py_ssize_t p = 0; p < plans; p++) {
        memset(sums, 0, (size_t)(devices * wide) * sizeof(double));
        for (Py_ssize_t t = 0; t < tables; t++) {
            int64_t device = placements[p * tables + t];
            if (device < 0 || device >= devices)
                continue;
            const double *row = values + (first[p] + t) * width;
            if ((rows - first[p] - t) * width < wide)
                row = memcpy(padded, row, (size_t)width * sizeof(double));
            for (Py_ssize_t c = 0; c < wide; c += TILE)
                for (int j = 0; j < TILE; j++)
                    sums[device * wide + c + j] += row[c + j];
        }
        for (Py_ssize_t d = 0; d < devices; d++, out += width)
            memcpy(out, sums + d * wide, (size_t)width * sizeof(double));
    }
}

/* Tables in turn, each to the device with room that then costs least, the first of equals; sums are (columns, devices
   rounded up to tiles). How many were placed: fewer than all where a table has no room, or a cost is no number. */
FOR_ALL_PROCESSORS
static Py_ssize_t place_all(const Model *m, const double *rows, Py_ssize_t width, const int64_t *order, Py_ssize_t count,
                            const int64_t *size, int64_t *room, const double *ms_per_us, Py_ssize_t devices, double *sums,
                            int64_t *device)
{
    Py_ssize_t columns = m->front + m->back, across = whole_tiles(devices);
    Column x[MOST_COLUMNS], forward, backward;
    for (Py_ssize_t i = 0; i < count; i++) {
        const double *row = rows + order[i] * width;
        Py_ssize_t best = -1;
        double least = INFINITY;
        for (Py_ssize_t first = 0; first < devices; first += TILE) {
            for (Py_ssize_t c = 0; c < columns; c++)
                for (int j = 0; j < TILE; j++)
                    x[c][j] = sums[c * across + first + j] + row[c];
            tile_times(m, x, forward, backward, NULL, NULL);
            for (int j = 0; j < TILE && first + j < devices; j++) {
                double scale = ms_per_us[first + j] * m->per_us, cost = forward[j] * scale + backward[j] * scale;
                if (cost != cost)
                    return i;
                if (cost < least && room[first + j] >= size[order[i]]) {
                    least = cost;
                    best = first + j;
                }
            }
        }
        if (best < 0)
            return i;
        for (Py_ssize_t c = 0; c < columns; c++)
            sums[c * across + best] += row[c];
        room[best] -= size[order[i]];
        device[order[i]] = best;
    }
    return count;
}

/* A device in a heap of those that hold the least, by cost, bytes and number, as Python's heapq has them. */
typedef struct {
    double load;
    int64_t used, device;
} Turn;

static int before(const Turn *a, const Turn *b)
{
    if (a->load != b->load)
        return a->load < b->load;
    return a->used != b->used ? a->used < b->used : a->device < b->device;
}

static void rise(Turn *heap, Py_ssize_t at)
{
    Turn turn = heap[at];
    for (; at && before(&turn, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = turn;
}

static void sink(Turn *heap, Py_ssize_t count)
{
    Turn turn = heap[0];
    Py_ssize_t at = 0, next;
    while ((next = 2 * at + 1) < count) {
        next += next + 1 < count && before(&heap[next + 1], &heap[next]);
        if (!before(&heap[next], &turn))
            break;
        heap[at] = heap[next], at = next;
    }
    heap[at] = turn;
}

/* Greedy by a named cost: tables in turn, each to the device that holds the least of those with room. How many were
   placed: fewer than all where a table has no room. `full` is room for as many turns as there are devices. */
static Py_ssize_t deal_all(const double *cost, const int64_t *weight, const int64_t *size, const int64_t *order,
                           Py_ssize_t count, const double *speed, int64_t *room, Py_ssize_t devices, Turn *heap, Turn *full,
                           int64_t *device)
{
    for (Py_ssize_t d = 0; d < devices; d++)
        heap[d] = (Turn){0.0, 0, d};
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t t = order[i];
        Py_ssize_t passed = 0, left = devices;
        while (left && room[heap[0].device] < size[t]) {
            full[passed++] = heap[0];
            heap[0] = heap[--left];
            if (left)
                sink(heap, left);
        }
        if (!left)
            return i;
        device[t] = heap[0].device;
        room[device[t]] -= size[t];
        heap[0].load += cost[t] / speed[device[t]];
        heap[0].used += weight[t];
        sink(heap, left);
        while (passed) {
            heap[left] = full[--passed];
            rise(heap, left++);
        }
    }
    return count;
}

/* ---- Steps of many episodes at once, see shard_gym/plan/placing.py and shard_gym/envs/vector/views.py */

typedef struct {
    int64_t *free, *least; /* (plans, devices), (plans,) bytes left */
    double *sums;          /* (plans, devices, width) */
    Py_ssize_t plans, devices, width;
} Plans;

/* Placing.place: a piece of each plan to a device; tells that device's number among all, what is left there and what it
   holds. */
FOR_ALL_PROCESSORS
static void place_each(const Plans *to, const int64_t *size, const double *restrict vector, const int64_t *rows,
                       const int64_t *options, int64_t *at, int64_t *left, double *restrict held)
{
    Py_ssize_t width = to->width;
    for (Py_ssize_t p = 0; p < to->plans; p++) {
        int64_t shard = p * to->devices + options[p];
        at[p] = shard;
        left[p] = to->free[shard] -= size[rows[p]];
        if (left[p] < to->least[p])
            to->least[p] = left[p];
        double *restrict sum = to->sums + shard * width;
        const double *row = vector + rows[p] * width;
        for (Py_ssize_t c = 0; c < width; c++)
            sum[c] += row[c];
        memcpy(held + p * width, sum, (size_t)width * sizeof(double));
    }
}

/* Placing.masks: 1 where a piece has room; all 1 where it has none. */
static void mask_each(const Plans *of, const int64_t *size, const int64_t *rows, int8_t *mask)
{
    for (Py_ssize_t p = 0; p < of->plans; p++, mask += of->devices) {
        int64_t needed = size[rows[p]], any = of->least[p] >= needed;
        if (!any)
            for (Py_ssize_t d = 0; d < of->devices; d++)
                any |= mask[d] = of->free[p * of->devices + d] >= needed;
        if (of->least[p] >= needed || !any)
            memset(mask, 1, (size_t)of->devices);
    }
}

INLINE float within_limit(double value) /* of float32, as numpy rounds first */
{
    float x = (float)value;
    x = x > LIMIT ? LIMIT : x;
    return x < -LIMIT ? -LIMIT : x;
}

/* Costs of a tile of devices, 0 past the last one, and those with the next piece on them; FAR where it may not go. */
INLINE void costs_ahead(const double *cost, const double *pace, const int8_t *mask, double next, Py_ssize_t count, double *now,
                        double *ahead)
{
    for (int j = 0; j < TILE; j++) {
        now[j] = j < count ? cost[j] : 0.0;
        ahead[j] = j < count && mask[j] ? cost[j] + next * pace[j] : FAR;
    }
}

/* FlatView.show: the next piece, costs and gaps of devices, and the mask, of each episode. Numbers that do not change with
   a step are in `shown` (plans, width) already. */
FOR_ALL_PROCESSORS
static void show_each(float *shown, Py_ssize_t width, const float *pieces, Py_ssize_t state, const double *alone,
                      const int64_t *rows, const double *cost, const double *share, const double *pace, const int8_t *mask,
                      Py_ssize_t actions, Py_ssize_t plans, Py_ssize_t devices)
{
    Column now, ahead, behind;
    for (Py_ssize_t p = 0; p < plans; p++, shown += width, cost += devices, pace += devices, mask += actions) {
        float *to = memcpy(shown, pieces + rows[p] * state, (size_t)state * sizeof(float));
        double least = FAR / 2, next = alone[rows[p]], own = next + TINY;
        for (Py_ssize_t d = 0; d < devices; d += TILE) {
            costs_ahead(cost + d, pace + d, mask + d, next, devices - d, now, ahead);
            for (int j = 0; j < TILE; j++)
                least = least != least || least < ahead[j] ? least : ahead[j];
        }
        for (Py_ssize_t d = 0; d < devices; d += TILE) {
            int count = (int)(devices - d < TILE ? devices - d : TILE);
            costs_ahead(cost + d, pace + d, mask + d, next, count, now, ahead);
            for (int j = 0; j < TILE; j++) {
                now[j] /= share[p];
                behind[j] = ahead[j] - least;
                behind[j] /= behind[j] + own;
            }
            for (int j = 0; j < count; j++) {
                to[state + d + j] = within_limit(now[j]);
                to[state + devices + d + j] = within_limit(behind[j]);
            }
        }
        for (Py_ssize_t a = 0; a < actions; a++)
            to[width - actions + a] = mask[a];
    }
}

/* ---- All kinds of sharding, see shard_gym_agents/search/kinds_options.py: the option of a table that adds least */

#define CHOICES 4
#define MOST_PIECES 8
#define PICKED (2 + MOST_PIECES) /* numbers that tell an option: form, choice, and where each piece goes */

enum { ON_DEVICES, ON_HOSTS, ON_ALL };

typedef struct {
    const double *loads, *size; /* (phases or memories, forms, CHOICES, devices) that a piece adds to each device */
    const int8_t *may;          /* (forms, CHOICES) */
    const int64_t *first;       /* (tables + 1,) forms */
    const int64_t *pieces;      /* (forms,) */
    const int8_t *allowed;      /* (devices,) where single pieces may go, or NULL: anywhere */
    double *load, *free;        /* (phases or memories, devices) */
    Py_ssize_t phases, memories, tables, forms, devices, host;
    double *power, *now, *grown; /* room for a number a device, twice, and for one of each piece on each */
} Options;

typedef struct {
    double worth;
    int64_t picked[PICKED];
} Pick;

INLINE const double *of_choice(const Options *o, const double *values, Py_ssize_t row, Py_ssize_t form, int choice)
{
    return values + ((row * o->forms + form) * CHOICES + choice) * o->devices;
}

/* Fourth powers of the loads of devices that hold so many pieces more, phases added up. */
INLINE void powers(const Options *o, Py_ssize_t form, int choice, double times, double *restrict sum)
{
    for (Py_ssize_t p = 0; p < o->phases; p++) {
        const double *load = o->load + p * o->devices, *more = of_choice(o, o->loads, p, form, choice);
        for (Py_ssize_t k = 0; k < o->devices; k++) {
            double x = larger(load[k] + more[k] * times, 0.0);
            x *= x;
            sum[k] = (p ? sum[k] : 0.0) + x * x;
        }
    }
}

/* True if all devices have room for a piece each. */
INLINE int have_room(const Options *o, Py_ssize_t form, int choice)
{
    int fits = 1;
    for (Py_ssize_t q = 0; q < o->memories; q++) {
        const double *size = of_choice(o, o->size, q, form, choice), *free = o->free + q * o->devices;
        for (Py_ssize_t k = 0; k < o->devices; k++)
            fits &= size[k] <= free[k];
    }
    return fits;
}

/* Bytes at their price: of so many pieces, each on so many devices. */
INLINE double paid(const Options *o, Py_ssize_t form, int choice, double times, Py_ssize_t span, const double *price)
{
    double sum = 0.0;
    for (Py_ssize_t q = 0; q < o->memories; q++) {
        const double *size = of_choice(o, o->size, q, form, choice);
        double taken = 0.0;
        for (Py_ssize_t k = 0; k < span; k++)
            taken += size[k];
        sum += price[q] * (times * taken);
    }
    return sum;
}

INLINE void keep_better(Pick *best, double worth, Py_ssize_t form, int choice)
{
    best->worth = worth;
    best->picked[0] = form;
    best->picked[1] = choice;
}

/* A form that puts a shard on every device. */
INLINE void on_all(const Options *o, Py_ssize_t form, int choice, const double *price, double all, Pick *best)
{
    double total = 0.0;
    if (!have_room(o, form, choice))
        return;
    powers(o, form, choice, 1.0, o->now);
    for (Py_ssize_t k = 0; k < o->devices; k++)
        total += o->now[k];
    double worth = (total - all) / 4 + paid(o, form, choice, 1.0, o->devices, price);
    if (worth < best->worth) {
        keep_better(best, worth, form, choice);
        best->picked[2] = 0;
    }
}

INLINE double sum_at(const double *values, Py_ssize_t place, Py_ssize_t span)
{
    double sum = 0.0;
    for (Py_ssize_t k = place * span; k < (place + 1) * span; k++)
        sum += values[k];
    return sum;
}

/* What each piece adds to each place of `span` devices, beside those before it, (pieces, places); out of reach where it
   has no room. */
INLINE void grow(const Options *o, Py_ssize_t form, int choice, Py_ssize_t span, Py_ssize_t pieces)
{
    Py_ssize_t places = o->devices / span;
    double *to = o->grown, *before = to + pieces * places;
    for (Py_ssize_t place = 0; place < places; place++)
        before[place] = sum_at(o->power, place, span);
    for (Py_ssize_t j = 0; j < pieces; j++, to += places) {
        double times = (double)(j + 1);
        powers(o, form, choice, times, o->now);
        for (Py_ssize_t q = 0; q < o->memories; q++) {
            const double *size = of_choice(o, o->size, q, form, choice), *free = o->free + q * o->devices;
            for (Py_ssize_t k = 0; k < o->devices; k++)
                o->now[k] = size[k] * times <= free[k] ? o->now[k] : INFINITY;
        }
        for (Py_ssize_t k = 0; choice == ON_DEVICES && o->allowed && k < o->devices; k++)
            o->now[k] = o->allowed[k] ? o->now[k] : INFINITY;
        for (Py_ssize_t place = 0; place < places; place++) {
            double total = sum_at(o->now, place, span);
            to[place] = total < INFINITY ? total - before[place] : INFINITY;
            before[place] = total;
        }
    }
}

/* A form whose pieces go to places of `span` devices, each where it adds least, the first of equals. */
INLINE void on_places(const Options *o, Py_ssize_t form, int choice, Py_ssize_t span, const double *price, Pick *best)
{
    Py_ssize_t pieces = o->pieces[form], places = o->devices / span;
    int64_t chosen[MOST_PIECES];
    double total = 0.0, bytes = paid(o, form, choice, (double)pieces, span, price), *least = o->now;
    grow(o, form, choice, span, pieces);
    memcpy(least, o->grown, (size_t)places * sizeof(double));
    for (Py_ssize_t j = 1; j < pieces; j++)
        for (Py_ssize_t place = 0; place < places; place++)
            least[place] = smaller(o->grown[j * places + place], least[place]);
    for (Py_ssize_t i = 0; i < pieces; i++) {
        Py_ssize_t at = 0, j = 0;
        for (Py_ssize_t place = 1; place < places; place++)
            at = least[place] < least[at] ? place : at;
        total += least[at];
        if (!(total / 4 + bytes < best->worth) && least[at] >= 0.0) /* those to come add no less */
            return;
        while (j < pieces - 1 && o->grown[j * places + at] != least[at])
            j++;
        o->grown[j * places + at] = least[at] = INFINITY;
        for (j = 0; j < pieces; j++)
            least[at] = smaller(o->grown[j * places + at], least[at]);
        chosen[i] = at;
    }
    if (!(total / 4 + bytes < best->worth))
        return;
    keep_better(best, total / 4 + bytes, form, choice);
    for (Py_ssize_t i = 0, j; i < pieces; i++) {
        for (j = i; j && best->picked[1 + j] > chosen[i]; j--)
            best->picked[2 + j] = best->picked[1 + j];
        best->picked[2 + j] = chosen[i];
    }
}

/* The option of a table that adds least to fourth powers of loads, and bytes at their price; how many were asked about. */
INLINE Py_ssize_t pick_of(const Options *o, Py_ssize_t table, const double *price, Pick *best)
{
    Py_ssize_t asked = 0;
    double all = 0.0;
    best->worth = INFINITY;
    best->picked[0] = -1;
    for (Py_ssize_t p = 0; p < o->phases; p++)
        for (Py_ssize_t k = 0; k < o->devices; k++) {
            double x = larger(o->load[p * o->devices + k], 0.0);
            x *= x;
            o->power[k] = (p ? o->power[k] : 0.0) + x * x;
        }
    for (Py_ssize_t k = 0; k < o->devices; k++)
        all += o->power[k];
    for (Py_ssize_t form = o->first[table]; form < o->first[table + 1]; form++)
        for (int choice = ON_ALL; choice < CHOICES; choice++)
            if (o->may[form * CHOICES + choice]) {
                on_all(o, form, choice, price, all, best);
                asked++;
            }
    for (Py_ssize_t form = o->first[table]; form < o->first[table + 1]; form++)
        if (o->may[form * CHOICES + ON_DEVICES]) {
            on_places(o, form, ON_DEVICES, 1, price, best);
            asked += o->devices;
        }
    for (Py_ssize_t form = o->first[table]; form < o->first[table + 1]; form++)
        if (o->may[form * CHOICES + ON_HOSTS]) {
            on_places(o, form, ON_HOSTS, o->host, price, best);
            asked += o->devices / o->host;
        }
    return asked;
}

INLINE Py_ssize_t pick_best(const Options *o, Py_ssize_t table, const double *price, Pick *best)
{
    Options few = *o; /* loops are compiled for it */
    few.devices = TILE;
    return o->devices == TILE ? pick_of(&few, table, price, best) : pick_of(o, table, price, best);
}

FOR_ALL_PROCESSORS
static Py_ssize_t pick_one(const Options *o, Py_ssize_t table, const double *price, Pick *best)
{
    return pick_best(o, table, price, best);
}

/* Tables in turn in their best options: loads, and the offset that they grow from, are raised before each, by `more`
   (tables, phases); bytes have a price then, (tables, memories). `times` are pieces of each on each device. */
FOR_ALL_PROCESSORS
static Py_ssize_t pick_all(Options *o, const int64_t *order, Py_ssize_t count, const double *more, const double *price,
                           double *offset, double *worth, int64_t *picked, double *times)
{
    Py_ssize_t asked = 0;
    for (Py_ssize_t i = 0; i < count; i++, picked += PICKED, times += o->devices) {
        Pick best;
        for (Py_ssize_t p = 0; p < o->phases; p++)
            for (Py_ssize_t k = 0; k < o->devices; k++) {
                o->load[p * o->devices + k] += more[i * o->phases + p];
                offset[p * o->devices + k] += more[i * o->phases + p];
            }
        asked += pick_best(o, order[i], price + i * o->memories, &best);
        worth[i] = best.worth;
        memset(picked, 0, PICKED * sizeof(int64_t));
        memset(times, 0, (size_t)o->devices * sizeof(double));
        picked[0] = best.picked[0];
        if (picked[0] < 0)
            continue;
        int choice = (int)best.picked[1], everywhere = choice >= ON_ALL;
        Py_ssize_t form = best.picked[0], pieces = everywhere ? 1 : o->pieces[form];
        Py_ssize_t span = everywhere ? o->devices : choice == ON_DEVICES ? 1 : o->host;
        memcpy(picked, best.picked, (size_t)(2 + pieces) * sizeof(int64_t));
        for (Py_ssize_t j = 0; j < pieces; j++)
            for (Py_ssize_t k = 0; k < span; k++)
                times[best.picked[2 + j] * span + k] += 1.0;
        for (Py_ssize_t p = 0; p < o->phases; p++)
            for (Py_ssize_t k = 0; k < o->devices; k++)
                o->load[p * o->devices + k] += of_choice(o, o->loads, p, form, choice)[k] * times[k];
        for (Py_ssize_t q = 0; q < o->memories; q++)
            for (Py_ssize_t k = 0; k < o->devices; k++)
                o->free[q * o->devices + k] -= of_choice(o, o->size, q, form, choice)[k] * times[k];
    }
    return asked;
}

/* ---- Prices of memory, see shard_gym/bounds/prices.py */

typedef struct {
    const double *cost, *size, *room; /* (tables, options), (2, tables, options), (2,) */
    Py_ssize_t tables, options;
    double *paid; /* (tables,) */
} Market;

/* The sum of an array as numpy makes it. */
static double sum_of(const double *values, Py_ssize_t count)
{
    double sum = 0.0, part[8];
    Py_ssize_t i;
    if (count < 8) {
        for (i = 0; i < count; i++)
            sum += values[i];
        return sum;
    }
    if (count > 128) {
        Py_ssize_t half = count / 2 - count / 2 % 8;
        return sum_of(values, half) + sum_of(values + half, count - half);
    }
    memcpy(part, values, sizeof part);
    for (i = 8; i < count - count % 8; i += 8)
        for (int j = 0; j < 8; j++)
            part[j] += values[i + j];
    sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    for (; i < count; i++)
        sum += values[i];
    return sum;
}

/* The mean at a price; bytes of one memory that tables take more than there are. */
INLINE double at_price(const Market *m, const double *price, int memory, double *over)
{
    Py_ssize_t all = m->tables * m->options;
    double taken = 0.0;
    for (Py_ssize_t t = 0; t < m->tables; t++) {
        const double *cost = m->cost + t * m->options, *size = m->size + t * m->options, *chosen = size;
        double least = INFINITY;
        for (Py_ssize_t i = 0; i < m->options; i++) {
            double paid = cost[i] + price[0] * size[i];
            paid = price[1] != 0.0 ? paid + price[1] * size[all + i] : paid;
            if (paid < least) {
                least = paid;
                chosen = size + i;
            }
        }
        m->paid[t] = least;
        taken += chosen[memory * all];
    }
    *over = taken - m->room[memory];
    return sum_of(m->paid, m->tables) - (price[0] * m->room[0] + price[1] * m->room[1]);
}

/* Relaxed._priced: the best price of one memory by halving, and its mean; `best` is that of `price` as it was. */
FOR_ALL_PROCESSORS
static double best_price(const Market *m, double *price, int memory, double low, double high, Py_ssize_t steps, double best)
{
    double tried[2] = {price[0], price[1]}, over, mean;
    tried[memory] = 0.0;
    mean = at_price(m, tried, memory, &over);
    if (over <= 0.0) {
        memcpy(price, tried, sizeof tried);
        return mean;
    }
    while (steps--) {
        tried[memory] = sqrt(low * high);
        mean = at_price(m, tried, memory, &over);
        if (mean > best) {
            memcpy(price, tried, sizeof tried);
            best = mean;
        }
        if (over > 0.0)
            low = tried[memory];
        else
            high = tried[memory];
    }
    return best;
}

/* ---- Collectives of an iteration, see shard_gym/task/links.py and shard_gym/simulators/collectives.py */

enum { ROWS, HOST_ROWS, COPIES, IDS }; /* columns of what moves, as collectives.py has them */
enum { PORT, LATENCY, UPLINK, FABRIC, PEER_TO_PEER, HOSTS, POOLED, AN_ID, MIB, WIRES };

typedef struct {
    const double *number;        /* (WIRES,) those of the links, hosts, bytes of a column, of a MiB of ids, and 2**20 */
    const int64_t *first, *size; /* (devices,) of each device's host */
    Py_ssize_t devices;
} Wires;

/* Links.all_to_all_ms of columns, or nothing where nobody sends: added to `out`. */
INLINE void exchanged(const Wires *w, const double *dims, double batch, double *out)
{
    const double *x = w->number;
    double devices = (double)w->devices, total = 0.0, slice = batch / devices;
    for (Py_ssize_t k = 0; k < w->devices; k++)
        total += dims[k];
    double some = total > 0.0 ? 1.0 : 0.0;
    if (w->devices == 1)
        return;
    double held = 0.0;
    for (Py_ssize_t k = 0; k < w->devices; k++) {
        double host = (double)w->size[k], near, far;
        if (k == w->first[k]) /* else as the device before it has it */
            held = 0.0;
        for (Py_ssize_t j = k; k == w->first[k] && j < k + w->size[k]; j++)
            held += dims[j];
        if (x[PEER_TO_PEER] != 0.0)
            near = larger(dims[k] * (host - 1), held - dims[k]);
        else
            near = larger(dims[k] * (devices - 1), total - dims[k]);
        double ms = near * (slice / x[PORT]) + x[LATENCY];
        if (x[UPLINK] < INFINITY) {
            if (x[PEER_TO_PEER] != 0.0)
                far = larger(held * (devices - host), (total - held) * host);
            else
                far = larger(held * (devices - 1), total * host - held);
            ms += far * (slice / x[UPLINK]);
        }
        if (x[FABRIC] < INFINITY)
            ms += total * ((devices - 1) * slice / x[FABRIC]);
        out[k] += ms * some;
    }
}

/* Links._ms */
INLINE double passing(const double *x, double near, double leaving, double everything)
{
    double ms = near / x[PORT] + leaving / x[UPLINK] + everything / x[FABRIC];
    return ms + x[LATENCY] * (near + leaving > 0.0 ? 1.0 : 0.0);
}

/* Links.ring_ms */
INLINE double ring(const Wires *w, Py_ssize_t k, double held)
{
    const double *x = w->number;
    if (held == 0.0)
        return 0.0;
    double devices = (double)w->devices, passed = held * ((devices - 1) / devices);
    double leaving = passed * (x[PEER_TO_PEER] != 0.0 ? (x[HOSTS] > 1.0 ? 1.0 : 0.0) : (double)w->size[k]);
    return passing(x, passed, leaving, passed * devices);
}

/* Links.rings_in_groups_ms and Links.between_groups_ms of the same bytes, whose share of each device adds up to `all`. */
INLINE double by_hosts(const Wires *w, Py_ssize_t k, double held, double all)
{
    const double *x = w->number;
    if (held == 0.0 && all == 0.0)
        return 0.0;
    double host = (double)w->size[k], hosts = x[HOSTS], passed = held * ((host - 1) / host);
    double leaving = larger(held * (hosts - 1), all - held) / hosts;
    double inside = passing(x, passed, passed * (x[PEER_TO_PEER] != 0.0 ? 0.0 : host), passed * (double)w->devices);
    return inside + passing(x, 0.0, leaving, all * ((hosts - 1) / hosts));
}

/* collectives.comm_ms: of whole tables' columns in column `dim` of sums, and what moves besides from column `moved` on;
   forward and backward, (2, plans, devices). `room` is for four numbers of each device. */
FOR_ALL_PROCESSORS
static void comm_all(const Wires *w, const double *sums, Py_ssize_t plans, Py_ssize_t width, Py_ssize_t dim, Py_ssize_t moved,
                     double *room, double *out)
{
    Py_ssize_t devices = w->devices;
    double *dims = room, *ids = room + devices, *share = ids + devices, *of_ids = share + devices;
    const double *x = w->number;
    for (Py_ssize_t p = 0; p < plans; p++, sums += devices * width) {
        double *there = out + p * devices, *back = there + plans * devices;
        for (Py_ssize_t k = 0; k < devices; k++) {
            const double *of = sums + k * width + moved;
            dims[k] = sums[k * width + dim];
            ids[k] = of[IDS];
            share[k] = of[HOST_ROWS] * x[POOLED] / (double)w->size[k];
            there[k] = of_ids[k] = 0.0;
        }
        exchanged(w, dims, x[POOLED], there);
        exchanged(w, ids, x[AN_ID], of_ids);
        double all = sum_of(share, devices);
        for (Py_ssize_t k = 0; k < devices; k++) {
            const double *of = sums + k * width + moved;
            double both = there[k] + ring(w, k, of[ROWS] * x[POOLED]);
            both += by_hosts(w, k, of[HOST_ROWS] * x[POOLED], all);
            there[k] = both + of_ids[k];
            back[k] = both + 2 * ring(w, k, of[COPIES] * x[MIB]);
        }
    }
}

/* ---- Changes of a plan of all kinds of sharding, see shard_gym_agents/search/kinds_changes.py */

#define DRAWN 8       /* random numbers of a change; the last says how much worse it may be, in units of the heat */
#define SQUARINGS 5   /* the aim is the 32nd root of the sum of 32nd powers */
#define SWAPPED 0.5   /* share of the changes that swap pieces of two tables */
#define SOMETIMES 0.3 /* share of changes that do one thing more */
#define FETCHED 4     /* columns of what moves, as collectives.py has them: from the host's memory, and back */
#define UPDATED 5

typedef struct {
    const int64_t *pieces, *placed;      /* (forms,), (forms, CHOICES, devices) the part that a piece puts there */
    const double *vector, *size;         /* (parts, width) and (memories, parts) that a part adds */
    const double *room, *per_byte;       /* (memories, devices) bytes, and what one too many counts */
    const int64_t *items, *first, *ways; /* (items,) tables that change; (tables + 1,), (ways, 2) form and choice */
    int64_t *plan;                       /* (tables, PICKED) */
    double *sums, *used;                 /* (devices, width), (memories, devices) */
    Py_ssize_t count, tables, forms, devices, host, width, parts, memories;
    Model model;
    Wires wires;
    const double *ms_per_us;
    double per_mib, per_ms;           /* ms of a MiB at the host's memory; units of a ms */
    double *pass, *comm, *own, *room_of_comm; /* (2, devices) twice, (devices,), (4, devices) */
} Changing;

typedef struct {
    double value, makespan, over;
} Aim;

/* Put the pieces of a table's option where they go, or (sign -1) take them away. */
INLINE void put_option(Changing *c, const int64_t *option, double sign)
{
    const int64_t *placed = c->placed + (option[0] * CHOICES + option[1]) * c->devices;
    Py_ssize_t count = option[1] <= ON_HOSTS ? (Py_ssize_t)c->pieces[option[0]] : 1;
    Py_ssize_t span = option[1] == ON_DEVICES ? 1 : option[1] == ON_HOSTS ? c->host : c->devices;
    for (Py_ssize_t piece = 0; piece < count; piece++) {
        Py_ssize_t from = (Py_ssize_t)option[2 + piece] * span;
        for (Py_ssize_t k = from; k < from + span; k++) {
            const double *added = c->vector + placed[k] * c->width;
            double *sum = c->sums + k * c->width;
            for (Py_ssize_t h = 0; h < c->width; h++)
                sum[h] += sign * added[h];
            for (Py_ssize_t q = 0; q < c->memories; q++)
                c->used[q * c->devices + k] += sign * c->size[q * c->parts + placed[k]];
        }
    }
}

INLINE double peak(const double *ms, Py_ssize_t devices, double per_ms)
{
    double sum = 0.0;
    for (Py_ssize_t k = 0; k < devices; k++) {
        double power = ms[k] * per_ms;
        for (int i = 0; i < SQUARINGS; i++)
            power *= power;
        sum += power;
    }
    for (int i = 0; i < SQUARINGS; i++)
        sum = sqrt(sum);
    return sum;
}

INLINE double longest(const double *ms, Py_ssize_t devices)
{
    double most = ms[0];
    for (Py_ssize_t k = 1; k < devices; k++)
        most = larger(most, ms[k]);
    return most;
}

/* Roofline.decode of an iteration with all kinds of sharding, and what the plan is worth by it. */
INLINE Aim aim_of(Changing *c, double dear)
{
    Py_ssize_t devices = c->devices;
    double *forward = c->pass, *backward = c->pass + devices, over = 0.0;
    decode_all(&c->model, c->sums, devices, c->width, c->ms_per_us, devices, c->pass, 2);
    comm_all(&c->wires, c->sums, 1, c->width, DIM, ALL, c->room_of_comm, c->comm);
    for (Py_ssize_t k = 0; k < devices; k++) {
        const double *moved = c->sums + k * c->width + ALL;
        forward[k] += moved[FETCHED] * c->per_mib;
        backward[k] += moved[UPDATED] * c->per_mib;
        c->own[k] = c->comm[k] + c->comm[devices + k] + backward[k];
    }
    for (Py_ssize_t i = 0; i < c->memories * devices; i++) {
        double more = c->used[i] - c->room[i];
        over += (more > 0.0 ? more : 0.0) * c->per_byte[i];
    }
    double value = peak(forward, devices, c->per_ms) + peak(c->own, devices, c->per_ms);
    return (Aim){value + dear * over, longest(forward, devices) + longest(c->own, devices), over};
}

INLINE int64_t pick(double drawn, int64_t count) { return (int64_t)(drawn * (double)count); }

INLINE const int64_t *drawn_way(const Changing *c, int64_t item, double drawn)
{
    return c->ways + 2 * (c->first[item] + pick(drawn, c->first[item + 1] - c->first[item]));
}

/* Another way of a table, or one of its pieces elsewhere; pieces stay where they are as far as they may. 0: neither. */
static int alter(const Changing *c, const double *drawn, int64_t *option, const int64_t *way)
{
    int64_t places = way[1] == ON_DEVICES ? c->devices : way[1] == ON_HOSTS ? c->devices / c->host : 1;
    int64_t count = way[1] <= ON_HOSTS ? c->pieces[way[0]] : 1, start = pick(drawn[3], places);
    int64_t kept = way[1] == option[1] ? (way[1] <= ON_HOSTS ? c->pieces[option[0]] : 1) : 0;
    int elsewhere = kept && drawn[4] < SOMETIMES, other = way[0] != option[0] || way[1] != option[1];
    for (int64_t piece = kept; piece < count; piece++)
        option[2 + piece] = (start + piece) % places;
    if (elsewhere)
        option[2 + pick(drawn[5], count)] = start;
    option[0] = way[0], option[1] = way[1];
    return elsewhere || other;
}

/* A piece of each of two tables on single devices change places, the first one in another way now and then. 0: no. */
static int swap(const Changing *c, const double *drawn, int64_t item, int64_t *one, int64_t *other)
{
    if (one[1] != ON_DEVICES || other[1] != ON_DEVICES)
        return 0;
    int64_t *mine = one + 2 + pick(drawn[3], c->pieces[one[0]]), *theirs = other + 2 + pick(drawn[4], c->pieces[other[0]]);
    int64_t place = *mine;
    if (place == *theirs)
        return 0;
    *mine = *theirs, *theirs = place;
    const int64_t *way = drawn_way(c, item, drawn[6]);
    if (drawn[5] < SOMETIMES && way[1] == ON_DEVICES && c->pieces[way[0]] == c->pieces[one[0]])
        one[0] = way[0];
    return 1;
}

/* The plan changes again and again; a change stays if it is not worse by more than it may. The best plan on the way that
   fits goes to `best`, its makespan is told, and changes after which the plan does not fit are counted. */
FOR_ALL_PROCESSORS
static double change_all(Changing *c, const double *drawn, Py_ssize_t changes, double heat, double dear, double makespan,
                         int64_t *best, int64_t *asked, int64_t *over)
{
    size_t one = PICKED * sizeof(int64_t);
    Aim now = aim_of(c, dear);
    for (; changes--; drawn += DRAWN, *over += now.over > 0.0) {
        int64_t item = c->items[pick(drawn[1], c->count)], other = c->items[pick(drawn[2], c->count)];
        int64_t *mine = c->plan + item * PICKED, *theirs = c->plan + other * PICKED, before[2][PICKED], after[2][PICKED];
        int swaps = drawn[0] < SWAPPED;
        memcpy(before[0], mine, one), memcpy(before[1], theirs, one);
        memcpy(after, before, sizeof after);
        if (!(swaps ? item != other && swap(c, drawn, item, after[0], after[1])
                    : alter(c, drawn, after[0], drawn_way(c, item, drawn[2]))))
            continue;
        for (int i = 0; i <= swaps; i++)
            put_option(c, before[i], -1.0), put_option(c, after[i], 1.0);
        Aim then = aim_of(c, dear);
        ++*asked;
        if (!(then.value <= now.value + heat * drawn[7])) {
            for (int i = 0; i <= swaps; i++)
                put_option(c, after[i], -1.0), put_option(c, before[i], 1.0);
            continue;
        }
        now = then;
        memcpy(mine, after[0], one);
        if (swaps)
            memcpy(theirs, after[1], one);
        if (now.over == 0.0 && now.makespan < makespan) {
            makespan = now.makespan;
            memcpy(best, c->plan, (size_t)c->tables * one);
        }
    }
    return makespan;
}

/* ---- What Python calls: arrays as buffers, checked, so that no call can read or write beside them */

#define MOST_ARRAYS 20

typedef struct {
    Py_buffer of[MOST_ARRAYS];
    int held;
} Arrays;

static void let_go(Arrays *arrays)
{
    while (arrays->held)
        PyBuffer_Release(&arrays->of[--arrays->held]);
}

/* The next argument as a contiguous array of float64 ("d"), int64 ("l" or "q"), float32 ("f") or int8 ("b"); NULL with an
   error set if it is not. */
static Py_buffer *take(Arrays *arrays, PyObject *argument, char type, int dimensions, int writable)
{
    Py_buffer *view = &arrays->of[arrays->held];
    if (PyObject_GetBuffer(argument, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return NULL;
    arrays->held++;
    char found = view->format && view->format[0] && !view->format[1] ? view->format[0] : '?';
    int bytes = type == 'f' ? 4 : type == 'b' ? 1 : 8;
    if (view->itemsize != bytes || !(found == type || (type == 'l' && found == 'q')) || view->ndim != dimensions) {
        PyErr_Format(PyExc_TypeError, "expected %d dimensions of %s, got %d of \"%s\"", dimensions,
                     type == 'd' ? "float64" : type == 'f' ? "float32" : type == 'b' ? "int8" : "int64", view->ndim,
                     view->format ? view->format : "bytes");
        return NULL;
    }
    return view;
}

static int refuse(const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return 0;
}

static int read_model(Model *m, const Py_buffer *numbers, Py_ssize_t width)
{
    const double *number = numbers->buf;
    Py_ssize_t left = numbers->shape[0] - 6;
    memset(m, 0, sizeof *m);
    if (left < 0)
        return refuse("a model begins with six numbers");
    for (int i = 0; i < 3; i++)
        if (!(number[i] >= 0.0 && number[i] < MOST_COLUMNS))
            return refuse("a model is larger than the core was built for");
    m->members = (Py_ssize_t)number[0], m->totals = (Py_ssize_t)number[1], m->units = (Py_ssize_t)number[2];
    m->per_us = number[3], m->other = number[4], m->highest = number[5];
    m->front = m->members ? OWN : ALL;
    m->back = m->totals + 2 * m->members;
    m->added = number + 6, m->unit = m->added + m->back, m->factor = m->unit + m->members * m->units * (1 + m->totals);
    if (m->members > MOST_MEMBERS || m->front + m->back > MOST_COLUMNS || m->totals > MOST_TOTALS)
        return refuse("a model is larger than the core was built for");
    if (left != m->back + m->members * (m->units * (3 + m->totals) + 2))
        return refuse("a model has as many numbers as its sizes say");
    return width >= m->front + m->back ? 1 : refuse("sums have fewer columns than the model");
}

static PyObject *decode(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *numbers, *sums, *speed, *out;
    Model model;
    int fine = given == 4 || refuse("decode(model, sums, ms_per_us, out)");
    if (fine && (numbers = take(&arrays, args[0], 'd', 1, 0)) && (sums = take(&arrays, args[1], 'd', 3, 0)) &&
        (speed = take(&arrays, args[2], 'd', 1, 0)) && (out = take(&arrays, args[3], 'd', 3, 1)) &&
        read_model(&model, numbers, sums->shape[2])) {
        Py_ssize_t shards = sums->shape[0] * sums->shape[1], rows = out->shape[0], devices = speed->shape[0];
        fine = (rows == 1 || rows == 2 || (rows == 4 && model.members)) && out->shape[1] == sums->shape[0] &&
               out->shape[2] == sums->shape[1] && devices && (devices == 1 || devices == sums->shape[1]);
        if (fine) {
            Py_BEGIN_ALLOW_THREADS
            decode_all(&model, sums->buf, shards, sums->shape[2], speed->buf, devices, out->buf, rows);
            Py_END_ALLOW_THREADS
        } else {
            refuse("decode wants sums (P, K, H), ms_per_us (K,) and out (1, 2 or 4, P, K)");
        }
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int in_range(const int64_t *given, Py_ssize_t count, Py_ssize_t rows)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (given[i] < 0 || given[i] >= rows)
            return 0;
    return 1;
}

static PyObject *device_sums(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *values, *placements, *first, *out;
    int fine = given == 4 || refuse("device_sums(values, placements, first, out)");
    if (fine && (values = take(&arrays, args[0], 'd', 2, 0)) && (placements = take(&arrays, args[1], 'l', 2, 0)) &&
        (first = take(&arrays, args[2], 'l', 1, 0)) && (out = take(&arrays, args[3], 'd', 3, 1))) {
        Py_ssize_t rows = values->shape[0], width = values->shape[1], plans = placements->shape[0];
        Py_ssize_t tables = placements->shape[1], devices = out->shape[1], wide = whole_tiles(width);
        double *sums = NULL;
        if (tables > rows || first->shape[0] != plans || out->shape[0] != plans || out->shape[2] != width ||
            !in_range(first->buf, plans, rows - tables + 1))
            refuse("device_sums wants values (R, H), placements (P, N), first (P,) of N rows and out (P, K, H)");
        else if (!(sums = calloc((size_t)((devices + 1) * wide) + TILE, sizeof(double))))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            double *even = sums + TILE - ((uintptr_t)sums / sizeof(double)) % TILE; /* where lines of the cache begin */
            add_up(values->buf, rows, width, placements->buf, plans, tables, first->buf, devices, even,
                   even + devices * wide, out->buf);
            Py_END_ALLOW_THREADS
        }
        free(sums);
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *greedy(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *numbers, *rows, *order, *size, *room, *speed, *device;
    Model model;
    Py_ssize_t placed = 0;
    int fine = given == 7 || refuse("greedy(model, rows, order, size, room, ms_per_us, device)");
    if (fine && (numbers = take(&arrays, args[0], 'd', 1, 0)) && (rows = take(&arrays, args[1], 'd', 2, 0)) &&
        (order = take(&arrays, args[2], 'l', 1, 0)) && (size = take(&arrays, args[3], 'l', 1, 0)) &&
        (room = take(&arrays, args[4], 'l', 1, 1)) && (speed = take(&arrays, args[5], 'd', 1, 0)) &&
        (device = take(&arrays, args[6], 'l', 1, 1)) && read_model(&model, numbers, rows->shape[1])) {
        Py_ssize_t tables = rows->shape[0], width = rows->shape[1], devices = room->shape[0], count = order->shape[0];
        Py_ssize_t columns = model.front + model.back, across = whole_tiles(devices);
        double *sums = NULL;
        if (width != columns || size->shape[0] != tables || device->shape[0] != tables || speed->shape[0] != devices ||
            !in_range(order->buf, count, tables))
            refuse("greedy wants rows (N, H), order of them, size (N,), room (K,), ms_per_us (K,) and device (N,)");
        else if (!(sums = calloc((size_t)(columns * across) + 1, sizeof(double))))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            placed = place_all(&model, rows->buf, width, order->buf, count, size->buf, room->buf, speed->buf, devices, sums,
                               device->buf);
            Py_END_ALLOW_THREADS
        }
        free(sums);
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(placed);
}

static PyObject *deal(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *cost, *weight, *size, *order, *speed, *room, *device;
    Py_ssize_t placed = 0;
    int fine = given == 7 || refuse("deal(cost, weight, size, order, speed, room, device)");
    if (fine && (cost = take(&arrays, args[0], 'd', 1, 0)) && (weight = take(&arrays, args[1], 'l', 1, 0)) &&
        (size = take(&arrays, args[2], 'l', 1, 0)) && (order = take(&arrays, args[3], 'l', 1, 0)) &&
        (speed = take(&arrays, args[4], 'd', 1, 0)) && (room = take(&arrays, args[5], 'l', 1, 1)) &&
        (device = take(&arrays, args[6], 'l', 1, 1))) {
        Py_ssize_t tables = cost->shape[0], devices = room->shape[0], count = order->shape[0];
        Turn *heap = NULL;
        if (weight->shape[0] != tables || size->shape[0] != tables || device->shape[0] != tables ||
            speed->shape[0] != devices || !in_range(order->buf, count, tables))
            refuse("deal wants cost, weight, size and device (N,), order of them, speed and room (K,)");
        else if (!(heap = calloc(2 * (size_t)devices + 1, sizeof(Turn))))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            placed = deal_all(cost->buf, weight->buf, size->buf, order->buf, count, speed->buf, room->buf, devices, heap,
                              heap + devices, device->buf);
            Py_END_ALLOW_THREADS
        }
        free(heap);
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(placed);
}

/* Free bytes, the least of each plan, sums, and bytes of pieces, as `place` and `masks` are given them. */
static Py_buffer *take_plans(Arrays *arrays, PyObject *const *args, Plans *plans, int writable)
{
    Py_buffer *free = take(arrays, args[0], 'l', 2, writable), *least = free ? take(arrays, args[1], 'l', 1, writable) : NULL;
    Py_buffer *size = least ? take(arrays, args[2], 'l', 2, 0) : NULL;
    if (!size)
        return NULL;
    *plans = (Plans){free->buf, least->buf, NULL, free->shape[0], free->shape[1], 0};
    if (least->shape[0] == plans->plans && size->shape[1] == 1)
        return size;
    refuse("plans are free (B, K), least (B,) and bytes of pieces (R, 1)");
    return NULL;
}

static PyObject *place(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *size, *sums, *vector, *rows, *options, *at, *left, *held;
    Plans plans;
    int fine = given == 10 || refuse("place(free, least, size, sums, vector, rows, options, at, left, held)");
    if (fine && (size = take_plans(&arrays, args, &plans, 1)) && (sums = take(&arrays, args[3], 'd', 3, 1)) &&
        (vector = take(&arrays, args[4], 'd', 2, 0)) && (rows = take(&arrays, args[5], 'l', 1, 0)) &&
        (options = take(&arrays, args[6], 'l', 1, 0)) && (at = take(&arrays, args[7], 'l', 1, 1)) &&
        (left = take(&arrays, args[8], 'l', 1, 1)) && (held = take(&arrays, args[9], 'd', 2, 1))) {
        Py_ssize_t count = plans.plans, pieces = size->shape[0];
        plans.sums = sums->buf, plans.width = sums->shape[2];
        if (sums->shape[0] != count || sums->shape[1] != plans.devices || rows->shape[0] != count ||
            options->shape[0] != count || at->shape[0] != count || left->shape[0] != count || held->shape[0] != count ||
            held->shape[1] != plans.width || (plans.width && vector->shape[1] != plans.width) ||
            vector->shape[0] != pieces || !in_range(rows->buf, count, pieces) ||
            !in_range(options->buf, count, plans.devices))
            refuse("place wants sums (B, K, H), vector (R, H), rows, options, at and left (B,), and held (B, H)");
        else {
            Py_BEGIN_ALLOW_THREADS
            place_each(&plans, size->buf, vector->buf, rows->buf, options->buf, at->buf, left->buf, held->buf);
            Py_END_ALLOW_THREADS
        }
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *masks(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *size, *rows, *out;
    Plans plans;
    int fine = given == 5 || refuse("masks(free, least, size, rows, out)");
    if (fine && (size = take_plans(&arrays, args, &plans, 0)) && (rows = take(&arrays, args[3], 'l', 1, 0)) &&
        (out = take(&arrays, args[4], 'b', 2, 1))) {
        if (rows->shape[0] != plans.plans || out->shape[0] != plans.plans || out->shape[1] != plans.devices ||
            !in_range(rows->buf, plans.plans, size->shape[0]))
            refuse("masks wants rows (B,) and out (B, K)");
        else {
            Py_BEGIN_ALLOW_THREADS
            mask_each(&plans, size->buf, rows->buf, out->buf);
            Py_END_ALLOW_THREADS
        }
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *flat(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *pieces, *alone, *rows, *cost, *share, *pace, *mask, *shown;
    int fine = given == 8 || refuse("flat(pieces, alone, rows, cost, share, pace, masks, shown)");
    if (fine && (pieces = take(&arrays, args[0], 'f', 2, 0)) && (alone = take(&arrays, args[1], 'd', 1, 0)) &&
        (rows = take(&arrays, args[2], 'l', 1, 0)) && (cost = take(&arrays, args[3], 'd', 2, 0)) &&
        (share = take(&arrays, args[4], 'd', 1, 0)) && (pace = take(&arrays, args[5], 'd', 2, 0)) &&
        (mask = take(&arrays, args[6], 'b', 2, 0)) && (shown = take(&arrays, args[7], 'f', 2, 1))) {
        Py_ssize_t plans = cost->shape[0], devices = cost->shape[1], actions = mask->shape[1], state = pieces->shape[1];
        if (alone->shape[0] != pieces->shape[0] || rows->shape[0] != plans || share->shape[0] != plans ||
            pace->shape[0] != plans || pace->shape[1] != devices || mask->shape[0] != plans || actions < devices ||
            shown->shape[0] != plans || shown->shape[1] < state + 2 * devices + actions ||
            !in_range(rows->buf, plans, pieces->shape[0]))
            refuse("flat wants pieces (R, S), alone (R,), rows and share (B,), cost and pace (B, K) and masks (B, A)");
        else {
            Py_BEGIN_ALLOW_THREADS
            show_each(shown->buf, shown->shape[1], pieces->buf, state, alone->buf, rows->buf, cost->buf, share->buf,
                      pace->buf, mask->buf, actions, plans, devices);
            Py_END_ALLOW_THREADS
        }
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Options as `cheapest` and `in_turn` are given them; 0 with an error set if they are not. */
static int take_options(Arrays *arrays, PyObject *const *args, Options *o, int writable)
{
    Py_buffer *first, *pieces, *may, *loads, *size, *load, *free;
    memset(o, 0, sizeof *o);
    if (!((first = take(arrays, args[0], 'l', 1, 0)) && (pieces = take(arrays, args[1], 'l', 1, 0)) &&
          (may = take(arrays, args[2], 'b', 2, 0)) && (loads = take(arrays, args[3], 'd', 4, 0)) &&
          (size = take(arrays, args[4], 'd', 4, 0)) && (load = take(arrays, args[6], 'd', 2, writable)) &&
          (free = take(arrays, args[7], 'd', 2, writable))))
        return 0;
    *o = (Options){.loads = loads->buf, .size = size->buf, .may = may->buf, .first = first->buf, .pieces = pieces->buf};
    o->load = load->buf, o->free = free->buf, o->host = PyLong_AsSsize_t(args[5]);
    o->phases = loads->shape[0], o->memories = size->shape[0], o->forms = loads->shape[1], o->devices = loads->shape[3];
    o->tables = first->shape[0] - 1;
    if (o->host == -1 && PyErr_Occurred())
        return 0;
    if (pieces->shape[0] != o->forms || may->shape[0] != o->forms || may->shape[1] != CHOICES ||
        loads->shape[2] != CHOICES || size->shape[1] != o->forms || size->shape[2] != CHOICES ||
        size->shape[3] != o->devices || load->shape[0] != o->phases || load->shape[1] != o->devices ||
        free->shape[0] != o->memories || free->shape[1] != o->devices || !o->phases || o->host < 1 ||
        o->devices % o->host)
        return refuse("options are first (N + 1,), pieces (R,), may (R, 4), loads (P, R, 4, K), size (Q, R, 4, K), the "
                      "devices of a host, load (P, K) and free (Q, K)");
    return 1;
}

/* True if there are such tables, and their forms and pieces are as many as there may be. */
static int known(const Options *o, const int64_t *tables, Py_ssize_t count)
{
    if (!in_range(tables, count, o->tables))
        return refuse("there are no such tables");
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t from = o->first[tables[i]], to = o->first[tables[i] + 1];
        if (from < 0 || to > o->forms)
            return refuse("there are no such forms");
        for (int64_t form = from; form < to; form++)
            if (o->pieces[form] < 1 || o->pieces[form] > MOST_PIECES)
                return refuse("a form has 1 to 8 pieces");
    }
    return 1;
}

static int make_room(Options *o)
{
    o->power = malloc((size_t)(o->devices * (3 + MOST_PIECES)) * sizeof(double) + 1);
    if (!o->power)
        PyErr_NoMemory();
    o->now = o->power + o->devices, o->grown = o->now + o->devices;
    return o->power != NULL;
}

static PyObject *cheapest(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *price, *allowed = NULL;
    PyObject *told = NULL;
    Options o;
    int fine = given == 11 || refuse("cheapest(*options, load, free, price, allowed, table)");
    if (fine && take_options(&arrays, args, &o, 0) && (price = take(&arrays, args[8], 'd', 1, 0)) &&
        (args[9] == Py_None || (allowed = take(&arrays, args[9], 'b', 1, 0)))) {
        int64_t table = PyLong_AsSsize_t(args[10]);
        o.allowed = allowed ? allowed->buf : NULL;
        if (price->shape[0] != o.memories || (allowed && allowed->shape[0] != o.devices))
            refuse("cheapest wants price (Q,) and allowed (K,)");
        else if (!PyErr_Occurred() && known(&o, &table, 1) && make_room(&o)) {
            Pick best;
            Py_ssize_t asked = pick_one(&o, table, price->buf, &best), form = best.picked[0];
            Py_ssize_t pieces = form < 0 ? 0 : best.picked[1] >= ON_ALL ? 1 : o.pieces[form];
            PyObject *targets = PyTuple_New(pieces);
            for (Py_ssize_t i = 0; targets && i < pieces; i++)
                PyTuple_SetItem(targets, i, PyLong_FromSsize_t(best.picked[2 + i]));
            if (targets)
                told = Py_BuildValue("ndnnN", asked, best.worth, form, form < 0 ? 0 : (Py_ssize_t)best.picked[1], targets);
            free(o.power);
        }
    }
    let_go(&arrays);
    return told;
}

static PyObject *in_turn(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *offset, *order, *more, *price, *worth, *picked, *times;
    Py_ssize_t asked = 0;
    Options o;
    int fine = given == 15 || refuse("in_turn(*options, load, free, offset, order, more, price, worth, picked, times)");
    if (fine && take_options(&arrays, args, &o, 1) && (offset = take(&arrays, args[8], 'd', 2, 1)) &&
        (order = take(&arrays, args[9], 'l', 1, 0)) && (more = take(&arrays, args[10], 'd', 2, 0)) &&
        (price = take(&arrays, args[11], 'd', 2, 0)) && (worth = take(&arrays, args[12], 'd', 1, 1)) &&
        (picked = take(&arrays, args[13], 'l', 2, 1)) && (times = take(&arrays, args[14], 'd', 2, 1))) {
        Py_ssize_t count = order->shape[0];
        if (offset->shape[0] != o.phases || offset->shape[1] != o.devices || more->shape[0] != count ||
            more->shape[1] != o.phases || price->shape[0] != count || price->shape[1] != o.memories ||
            worth->shape[0] != count || picked->shape[0] != count || picked->shape[1] != PICKED ||
            times->shape[0] != count || times->shape[1] != o.devices)
            refuse("in_turn wants offset (P, K), more (n, P), price (n, Q), worth (n,), picked (n, 10) and times (n, K)");
        else if (known(&o, order->buf, count) && make_room(&o)) {
            Py_BEGIN_ALLOW_THREADS
            asked = pick_all(&o, order->buf, count, more->buf, price->buf, offset->buf, worth->buf, picked->buf, times->buf);
            Py_END_ALLOW_THREADS
            free(o.power);
        }
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(asked);
}

static PyObject *priced(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *cost, *size, *room, *price, *between;
    double best = 0.0;
    int fine = given == 8 || refuse("priced(cost, size, room, price, memory, between, steps, mean)");
    if (fine && (cost = take(&arrays, args[0], 'd', 2, 0)) && (size = take(&arrays, args[1], 'd', 3, 0)) &&
        (room = take(&arrays, args[2], 'd', 1, 0)) && (price = take(&arrays, args[3], 'd', 1, 1)) &&
        (between = take(&arrays, args[5], 'd', 1, 0))) {
        Py_ssize_t memory = PyLong_AsSsize_t(args[4]), steps = PyLong_AsSsize_t(args[6]);
        Market market = {cost->buf, size->buf, room->buf, cost->shape[0], cost->shape[1], NULL};
        const double *ends = between->buf;
        best = PyFloat_AsDouble(args[7]);
        if (PyErr_Occurred())
            ;
        else if (size->shape[0] != 2 || size->shape[1] != market.tables || size->shape[2] != market.options ||
                 room->shape[0] != 2 || price->shape[0] != 2 || between->shape[0] != 2 || memory < 0 || memory > 1 ||
                 steps < 0 || market.options < 1)
            refuse("priced wants cost (N, M), size (2, N, M), room (2,), price (2,), memory 0 or 1 and two prices");
        else if (!(market.paid = malloc((size_t)market.tables * sizeof(double) + 1)))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            best = best_price(&market, price->buf, (int)memory, ends[0], ends[1], steps, best);
            Py_END_ALLOW_THREADS
        }
        free(market.paid);
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(best);
}

static int known_wires(const Wires *w, Py_ssize_t numbers, Py_ssize_t firsts, Py_ssize_t sizes)
{
    int known = numbers == WIRES && firsts == w->devices && sizes == w->devices;
    for (Py_ssize_t k = 0; known && k < w->devices; k++)
        known = w->first[k] >= 0 && w->size[k] > 0 && w->first[k] + w->size[k] <= w->devices;
    return known;
}

static PyObject *comm(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    Arrays arrays = {.held = 0};
    Py_buffer *number, *first, *size, *sums, *out;
    int fine = given == 7 || refuse("comm(numbers, first, size, sums, dim, moved, out)");
    if (fine && (number = take(&arrays, args[0], 'd', 1, 0)) && (first = take(&arrays, args[1], 'l', 1, 0)) &&
        (size = take(&arrays, args[2], 'l', 1, 0)) && (sums = take(&arrays, args[3], 'd', 3, 0)) &&
        (out = take(&arrays, args[6], 'd', 3, 1))) {
        Py_ssize_t dim = PyLong_AsSsize_t(args[4]), moved = PyLong_AsSsize_t(args[5]), width = sums->shape[2];
        Wires wires = {number->buf, first->buf, size->buf, sums->shape[1]};
        double *room = NULL;
        int known = known_wires(&wires, number->shape[0], first->shape[0], size->shape[0]) && out->shape[0] == 2 &&
                    out->shape[1] == sums->shape[0] && out->shape[2] == wires.devices && dim >= 0 && dim < width &&
                    moved >= 0 && moved + IDS < width;
        if (PyErr_Occurred())
            ;
        else if (!known)
            refuse("comm wants numbers (9,), first and size (K,) of hosts, sums (P, K, H), columns of it, and out (2, P, K)");
        else if (!(room = malloc((size_t)(4 * wires.devices) * sizeof(double) + 1)))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            comm_all(&wires, sums->buf, sums->shape[0], width, dim, moved, room, out->buf);
            Py_END_ALLOW_THREADS
        }
        free(room);
    }
    let_go(&arrays);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* 1 if all that changes can lead to are forms, parts and places that there are. */
static int can_change(const Changing *c, Py_ssize_t ways)
{
    int fine = in_range(c->items, c->count, c->tables) && in_range(c->placed, c->forms * CHOICES * c->devices, c->parts);
    for (Py_ssize_t form = 0; fine && form < c->forms; form++)
        fine = c->pieces[form] >= 1 && c->pieces[form] <= MOST_PIECES;
    for (Py_ssize_t way = 0; fine && way < ways; way++)
        fine = in_range(c->ways + 2 * way, 1, c->forms) && in_range(c->ways + 2 * way + 1, 1, CHOICES);
    for (Py_ssize_t table = 0; fine && table < c->tables; table++) {
        const int64_t *option = c->plan + table * PICKED;
        fine = c->first[table] >= 0 && c->first[table] <= c->first[table + 1] && c->first[table + 1] <= ways &&
               in_range(option, 1, c->forms) && in_range(option + 1, 1, CHOICES);
        int single = fine && option[1] <= ON_HOSTS;
        int64_t places = !single ? 1 : option[1] == ON_HOSTS ? c->devices / c->host : c->devices;
        fine = fine && in_range(option + 2, single ? (Py_ssize_t)c->pieces[option[0]] : 1, places);
    }
    for (Py_ssize_t i = 0; fine && i < c->count; i++)
        fine = c->first[c->items[i]] < c->first[c->items[i] + 1];
    return fine ? 1 : refuse("changed wants items that have ways, and forms, parts and places that there are");
}

static PyObject *changed(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    static const struct {
        int at, dimensions, writable;
        char type;
    } wanted[] = {{0, 1, 0, 'l'},  {1, 3, 0, 'l'},  {2, 2, 0, 'd'},  {3, 2, 0, 'd'},  {4, 2, 0, 'd'},
                  {5, 2, 0, 'd'},  {6, 1, 0, 'l'},  {7, 1, 0, 'l'},  {8, 2, 0, 'l'},  {10, 1, 0, 'd'},
                  {11, 1, 0, 'd'}, {12, 1, 0, 'd'}, {13, 1, 0, 'l'}, {14, 1, 0, 'l'}, {17, 2, 1, 'l'},
                  {18, 2, 1, 'd'}, {19, 2, 1, 'd'}, {20, 2, 0, 'd'}, {24, 2, 1, 'l'}};
    Arrays arrays = {.held = 0};
    Py_buffer *a[25] = {NULL};
    PyObject *told = NULL;
    double *room = NULL;
    int fine = given == 25 || refuse("changed(*ways, *iteration, per_ms, plan, sums, used, drawn, heat, dear, makespan, best)");
    for (size_t i = 0; fine && i < sizeof wanted / sizeof *wanted; i++)
        fine = (a[wanted[i].at] = take(&arrays, args[wanted[i].at], wanted[i].type, wanted[i].dimensions,
                                       wanted[i].writable)) != NULL;
    if (fine) {
        Changing c = {.pieces = a[0]->buf, .placed = a[1]->buf, .vector = a[2]->buf, .size = a[3]->buf, .room = a[4]->buf,
                      .per_byte = a[5]->buf, .items = a[6]->buf, .first = a[7]->buf, .ways = a[8]->buf, .plan = a[17]->buf,
                      .sums = a[18]->buf, .used = a[19]->buf, .ms_per_us = a[11]->buf};
        int64_t asked = 0, over = 0;
        double heat = PyFloat_AsDouble(args[21]), dear = PyFloat_AsDouble(args[22]), makespan = PyFloat_AsDouble(args[23]);
        c.host = PyLong_AsSsize_t(args[9]), c.per_mib = PyFloat_AsDouble(args[15]), c.per_ms = PyFloat_AsDouble(args[16]);
        c.forms = a[0]->shape[0], c.parts = a[2]->shape[0], c.width = a[2]->shape[1], c.memories = a[3]->shape[0];
        c.tables = a[17]->shape[0], c.devices = a[18]->shape[0], c.count = a[6]->shape[0];
        c.wires = (Wires){a[12]->buf, a[13]->buf, a[14]->buf, c.devices};
        Py_ssize_t k = c.devices, q = c.memories;
        if (PyErr_Occurred())
            ;
        else if (a[1]->shape[0] != c.forms || a[1]->shape[1] != CHOICES || a[1]->shape[2] != k || !k || c.host < 1 ||
                 k % c.host || a[3]->shape[1] != c.parts || a[4]->shape[0] != q || a[4]->shape[1] != k ||
                 a[5]->shape[0] != q || a[5]->shape[1] != k || !c.count || a[7]->shape[0] != c.tables + 1 ||
                 a[8]->shape[1] != 2 || a[11]->shape[0] != k || a[17]->shape[1] != PICKED || c.width <= ALL + UPDATED ||
                 a[18]->shape[1] != c.width || a[19]->shape[0] != q || a[19]->shape[1] != k ||
                 a[20]->shape[1] != DRAWN || a[24]->shape[0] != c.tables || a[24]->shape[1] != PICKED ||
                 !known_wires(&c.wires, a[12]->shape[0], a[13]->shape[0], a[14]->shape[0]))
            refuse("changed wants pieces (R,), placed (R, 4, K), vector (S, H), size (Q, S), room and per_byte (Q, K), items, "
                   "first (N + 1,), ways (W, 2), ms_per_us (K,), links, plan and best (N, 10), sums (K, H), used (Q, K) and "
                   "drawn (n, 8)");
        else if (!read_model(&c.model, a[10], c.width) || !can_change(&c, a[8]->shape[0]))
            ;
        else if (!(room = malloc((size_t)(9 * k) * sizeof(double))))
            PyErr_NoMemory();
        else {
            c.pass = room, c.comm = room + 2 * k, c.own = room + 4 * k, c.room_of_comm = room + 5 * k;
            Py_BEGIN_ALLOW_THREADS
            makespan = change_all(&c, a[20]->buf, a[20]->shape[0], heat, dear, makespan, a[24]->buf, &asked, &over);
            Py_END_ALLOW_THREADS
            told = Py_BuildValue("dLL", makespan, (long long)asked, (long long)over);
        }
        free(room);
    }
    let_go(&arrays);
    return told;
}

static PyMethodDef functions[] = {
    {"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL, "Times of shards from their sums."},
    {"device_sums", (PyCFunction)(void (*)(void))device_sums, METH_FASTCALL, "Sum of each device's tables."},
    {"greedy", (PyCFunction)(void (*)(void))greedy, METH_FASTCALL, "Tables in turn, each where it costs least."},
    {"deal", (PyCFunction)(void (*)(void))deal, METH_FASTCALL, "Tables in turn, each where there is least so far."},
    {"place", (PyCFunction)(void (*)(void))place, METH_FASTCALL, "A piece of each plan to a device."},
    {"masks", (PyCFunction)(void (*)(void))masks, METH_FASTCALL, "Devices that have room for a piece of each plan."},
    {"flat", (PyCFunction)(void (*)(void))flat, METH_FASTCALL, "The flat observation of each episode."},
    {"cheapest", (PyCFunction)(void (*)(void))cheapest, METH_FASTCALL, "The option of a table that adds least."},
    {"in_turn", (PyCFunction)(void (*)(void))in_turn, METH_FASTCALL, "Tables in turn in the options that add least."},
    {"priced", (PyCFunction)(void (*)(void))priced, METH_FASTCALL, "The best price of a memory."},
    {"comm", (PyCFunction)(void (*)(void))comm, METH_FASTCALL, "Communication of each device in both passes."},
    {"changed", (PyCFunction)(void (*)(void))changed, METH_FASTCALL, "A plan changed again and again, and the best one."},
    {NULL, NULL, 0, NULL},
};

/* A build with -march=native runs on processors like its own; elsewhere it is refused before it can crash. */
static int begin(PyObject *module)
{
#if defined(__GNUC__) && defined(__x86_64__)
    int fine = 1;
#ifdef __AVX2__
    fine = fine && __builtin_cpu_supports("avx2");
#endif
#ifdef __AVX512F__
    fine = fine && __builtin_cpu_supports("avx512f");
#endif
    if (!fine) {
        PyErr_SetString(PyExc_ImportError, "it was compiled for another processor");
        return -1;
    }
#endif
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", "The compiled core.", 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}

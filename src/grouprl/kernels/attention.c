/* Attention over packed groups: each completion attends to its prompt and its own past, and all attend to the prefix, the
 * tokens that begin every prompt and are read outside of the pack. As in FlashAttention (Dao et al.,
 * arXiv:2205.14135), the backward pass computes weights again from the log-sum-exp of each query. Positions are
 * rotated (RoPE, arXiv:2104.09864, halves of a head as pairs) while queries and keys are read.
 *
 * Queries, keys and values are [S, heads, d]; a task is one group and one key/value head, with r query heads to it. Where
 * they are bfloat16 and the processor multiplies pairs, the operands of each product are rounded to it; sums, softmax and
 * accumulated gradients are float32. */
#include "scores.h"

#define QUERIES 32 /* rows of scores at once: two score buffers fit in the cache of a core */

typedef struct {
  const void *q, *k, *v;
  const float *cosine, *sine; /* [S, d] */
  int64_t heads, kv_heads, d;
  float scaling;
  int half;
  int64_t window; /* a token sees this many, itself included */
  const float *prefix_keys, *prefix_values; /* [before, kv_heads, d], rotated */
  int64_t before;                           /* tokens of the prefix */
} Inputs;

/* Arrays of numbers, or of half as many words (PAIRS). */
typedef struct {
  float *keys, *values; /* [tokens, d] or pairs of tokens */
  float *key_tiles;     /* [tiles, d, W] or pairs of components */
  float *value_tiles;   /* backward only */
  int64_t tokens;
} Block;

INLINE int kind_of(const Inputs *in) { return in->half && MULTIPLIES_PAIRS ? PAIRS : FLOATS; }

/* The products with one kind of operands each, compiled once. */
static void score_block(const Inputs *in, const float *rows, int64_t n, const float *keys, int64_t count, float *scores,
                        int64_t stride) {
  if (kind_of(in) == PAIRS) score(rows, n, keys, 0, 0, count, scores, stride, in->d / 2, PAIRS);
  else score(rows, n, keys, 0, 0, count, scores, stride, in->d, FLOATS);
}

/* `tokens` are summed over. */
static void mix_block(const Inputs *in, const float *weights, int64_t row_step, int64_t key_step, const float *values,
                      int64_t tokens, float *out, int64_t n) {
  if (kind_of(in) == PAIRS) mix(weights, row_step, key_step, values, 0, 0, words(tokens, PAIRS), out, n, in->d, PAIRS);
  else mix(weights, row_step, key_step, values, 0, 0, tokens, out, n, in->d, FLOATS);
}

/* Rows of d numbers, or of d words. */
static void transpose(const float *rows, int64_t tokens, int64_t d, float *out) {
  for (int64_t tile = 0; tile < tiles(tokens); tile++)
    for (int64_t i = 0; i < W; i++) {
      int64_t token = tile * W + i;
      for (int64_t c = 0; c < d; c++) out[(tile * d + c) * W + i] = token < tokens ? rows[token * d + c] : 0.0f;
    }
}

/* Makes rows of length `width` in their place to words of rows 2i and 2i + 1, pair i where row `step` * i was. A missing
 * last row is 0. */
static void pair_rows(float *rows, int64_t n, int64_t width, int64_t step) {
  for (int64_t i = 0; i < n; i += 2)
    for (int64_t c = 0; c < width; c += W) {
      vec second = i + 1 < n ? load(rows, (i + 1) * width + c, FLOATS) : splat(0);
      store(rows, i / 2 * step * width + c, paired(load(rows, i * width + c, FLOATS), second), FLOATS);
    }
}

/* Makes tiles of the rows of a block (0: none), and then, with PAIRS, words of neighboring tokens of the rows. */
static void arrange(const Inputs *in, float *rows, int64_t tokens, float *tile_base, float *scratch) {
  int kind = kind_of(in);
  if (kind == PAIRS && tile_base) pair_numbers(rows, tokens * in->d, scratch);
  if (tile_base) transpose(kind == PAIRS ? scratch : rows, tokens, words(in->d, kind), tile_base);
  if (kind == PAIRS) pair_rows(rows, tokens, in->d, 1);
}

/* Reads keys and values into a block, whose buffers are large enough: of the first `before` tokens of the prefix, and of
 * `tokens` tokens from `start`. */
static void fill(const Inputs *in, int64_t before, int64_t start, int64_t tokens, int64_t head, Block *block,
                 int backward) {
  int64_t d = in->d, count = before + tokens;
  float raw[512];
  block->tokens = count;
  for (int64_t t = 0; t < before; t++) {
    int64_t at = (t * in->kv_heads + head) * d;
    memcpy(block->keys + t * d, in->prefix_keys + at, d * sizeof(float));
    memcpy(block->values + t * d, in->prefix_values + at, d * sizeof(float));
  }
  for (int64_t t = 0; t < tokens; t++) {
    int64_t at = ((start + t) * in->kv_heads + head) * d, to = (before + t) * d;
    read_row(in->k, at, raw, d, in->half);
    rotate(raw, in->cosine + (start + t) * d, in->sine + (start + t) * d, block->keys + to, d, 1, 1);
    read_row(in->v, at, block->values + to, d, in->half);
  }
  float *scratch = block->value_tiles + tiles(count) * W * d / 2; /* tiles of PAIRS leave half of their memory */
  arrange(in, block->keys, count, block->key_tiles, scratch);
  arrange(in, block->values, count, backward ? block->value_tiles : 0, scratch);
}

/* The queries of one sequence: r heads of `tokens` tokens from `start`; row i is head i % r of token i / r. Its own block
 * begins with `behind` tokens of the prefix. */
typedef struct {
  int64_t start, tokens, head, r, behind;
} Span;

/* Tokens of its own block that rows before `end` see. */
INLINE int64_t seen_by(const Span *s, int64_t end) { return s->behind + (end - 1) / s->r + 1; }

/* The rows as operands of scores: words of neighboring components, or the numbers themselves. */
static const float *operands(const Inputs *in, const float *rows, int64_t n, float *memory) {
  if (kind_of(in) != PAIRS) return rows;
  pair_numbers(rows, n * in->d, memory);
  return memory;
}

static void read_queries(const Inputs *in, const Span *s, int64_t first, int64_t n, float *rows) {
  float raw[512];
  for (int64_t i = 0; i < n; i++) {
    int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
    read_row(in->q, (token * in->heads + head) * in->d, raw, in->d, in->half);
    rotate(raw, in->cosine + token * in->d, in->sine + token * in->d, rows + i * in->d, in->d, in->scaling, 1);
  }
}

/* Weights of queries first .. first + n over prompt (may be 0) and own tokens, of a kind. A row is
 * [prompt, padded][own, padded]. */
static int64_t weigh(const Inputs *in, const Span *s, const Block *prompt, const Block *own, const float *rows,
                     int64_t first, int64_t n, float *scores, int kind) {
  int64_t L = prompt ? prompt->tokens : 0, left = tiles(L), right = tiles(seen_by(s, first + n));
  int64_t width = (left + right) * W;
  if (left) score_block(in, rows, n, prompt->key_tiles, left, scores, width);
  score_block(in, rows, n, own->key_tiles, right, scores + left * W, width);
  for (int64_t i = 0; i < n; i++) {
    float *row = scores + i * width;
    int64_t seen = seen_by(s, first + i + 1), hidden = L + seen - in->window;
    hide(row, 0, hidden < L ? hidden : L);
    hide(row, L, left * W);
    hide(row + left * W, 0, hidden - L);
    softmax_row(row, left * W + seen, width, kind);
  }
  return width;
}

static void attend_span(const Inputs *in, const Span *s, const Block *prompt, const Block *own, float *scores,
                        float *rows, float *mixed, void *out) {
  int64_t L = prompt ? prompt->tokens : 0;
  int kind = kind_of(in);
  for (int64_t first = 0; first < s->tokens * s->r; first += QUERIES) {
    int64_t n = s->tokens * s->r - first < QUERIES ? s->tokens * s->r - first : QUERIES;
    read_queries(in, s, first, n, rows);
    int64_t width = weigh(in, s, prompt, own, operands(in, rows, n, rows), first, n, scores, kind);
    memset(mixed, 0, n * in->d * sizeof(float));
    const float *own_scores = scores + words(tiles(L) * W, kind);
    /* In the order of a decode step, so that sampled log-probs are the learner's to the bit. */
    mix_block(in, own_scores, width, 1, own->values, seen_by(s, first + n), mixed, n);
    if (prompt) mix_block(in, scores, width, 1, prompt->values, L, mixed, n);
    for (int64_t i = 0; i < n; i++) {
      int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
      for (int64_t c = 0; c < in->d; c += W)
        store(out, (token * in->heads + head) * in->d + c, load(mixed, i * in->d + c, 0), in->half);
    }
  }
}

static Block new_block(int64_t tokens, int64_t d) {
  int64_t padded = tiles(tokens) * W * d;
  float *memory = malloc(4 * (padded + W) * sizeof(float));
  return (Block){memory, memory + padded, memory + 2 * padded, memory + 3 * padded, 0};
}

/* starts, lengths: [groups][1 + widest], of the prompt and of the completions; length 0 = no completion. */
void grouprl_tree_attention(const void *q, const void *k, const void *v, const float *cosine, const float *sine,
                            void *out, const int64_t *starts, const int64_t *lengths, int64_t groups, int64_t widest,
                            int64_t heads, int64_t kv_heads, int64_t d, float scaling, int half,
                            int64_t window, const float *prefix_keys, const float *prefix_values, int64_t before) {
  Inputs in = {q, k, v, cosine, sine, heads, kv_heads, d, scaling, half, window, prefix_keys, prefix_values, before};
#pragma omp parallel for schedule(dynamic) if (groups * kv_heads > 1 && starts[(groups - 1) * (1 + widest)] > 256)
  for (int64_t task = 0; task < groups * kv_heads; task++) {
    int64_t group = task / kv_heads, head = task % kv_heads, r = heads / kv_heads, longest = 0;
    const int64_t *start = starts + group * (1 + widest), *length = lengths + group * (1 + widest);
    for (int64_t i = 1; i <= widest; i++) longest = length[i] > longest ? length[i] : longest;
    Block prompt = new_block(before + length[0], d), own = new_block(longest, d);
    float *scores = malloc(QUERIES * (tiles(before + length[0]) + tiles(longest) + 1) * W * sizeof(float));
    float *rows = malloc(2 * QUERIES * d * sizeof(float));
    fill(&in, before, start[0], length[0], head, &prompt, 0);
    Span span = {start[0], length[0], head, r, before};
    attend_span(&in, &span, 0, &prompt, scores, rows, rows + QUERIES * d, out);
    for (int64_t i = 1; i <= widest; i++) {
      if (!length[i]) continue;
      fill(&in, 0, start[i], length[i], head, &own, 0);
      span = (Span){start[i], length[i], head, r, 0};
      attend_span(&in, &span, &prompt, &own, scores, rows, rows + QUERIES * d, out);
    }
    free(prompt.keys), free(own.keys), free(scores), free(rows);
  }
}

/* The buffers of a backward pass, of QUERIES rows each. */
typedef struct {
  float *scores, *d_scores, *paired; /* [width] */
  float *rows, *d_rows, *grads, *factors; /* [d] */
} Buffers;

/* Gradients of scores from those of weights, which they replace. */
static void through_softmax(const float *weights, float *grads, int64_t width) {
  vec dots = splat(0);
  for (int64_t j = 0; j < width; j += W) dots += load(weights, j, 0) * load(grads, j, 0);
  float mean = sum(dots);
  for (int64_t j = 0; j < width; j += W) store(grads, j, load(weights, j, 0) * (load(grads, j, 0) - mean), 0);
}

/* Adds to the gradients of a span's keys and values, and stores the gradient of its queries. */
static void backward_span(const Inputs *in, const Span *s, const Block *prompt, const Block *own, const Buffers *b,
                          const void *d_out, void *dq, Block *d_prompt, Block *d_own) {
  int64_t d = in->d, L = prompt ? prompt->tokens : 0, left = tiles(L);
  int kind = kind_of(in);
  float *rows = b->rows, *grads = b->grads, *d_rows = b->d_rows, *scores = b->scores, *d_scores = b->d_scores;
  for (int64_t first = 0; first < s->tokens * s->r; first += QUERIES) {
    int64_t n = s->tokens * s->r - first < QUERIES ? s->tokens * s->r - first : QUERIES;
    int64_t seen = seen_by(s, first + n);
    read_queries(in, s, first, n, rows);
    int64_t width = weigh(in, s, prompt, own, operands(in, rows, n, b->factors), first, n, scores, FLOATS);
    for (int64_t i = 0; i < n; i++) {
      int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
      read_row(d_out, (token * in->heads + head) * d, grads + i * d, d, in->half);
    }
    const float *factors = operands(in, grads, n, b->factors);
    if (left) score_block(in, factors, n, prompt->value_tiles, left, d_scores, width);
    score_block(in, factors, n, own->value_tiles, tiles(seen), d_scores + left * W, width);
    for (int64_t i = 0; i < n; i++) through_softmax(scores + i * width, d_scores + i * width, width);
    /* By keys each row is read as it is, by queries as words of two rows, the second of which is left where it was. */
    const float *by_key = d_scores;
    int64_t row = words(width, kind), step = width;
    if (kind == PAIRS) {
      pair_numbers(d_scores, n * width, b->paired);
      by_key = b->paired, step = 2 * width;
      pair_rows(d_scores, n, width, 2), pair_rows(scores, n, width, 2);
      pair_rows(rows, n, d, 1), pair_rows(grads, n, d, 1);
    }
    memset(d_rows, 0, n * d * sizeof(float));
    if (prompt) {
      mix_block(in, by_key, row, 1, prompt->keys, L, d_rows, n);
      mix_block(in, d_scores, 1, step, rows, n, d_prompt->keys, L);
      mix_block(in, scores, 1, step, grads, n, d_prompt->values, L);
    }
    mix_block(in, by_key + words(left * W, kind), row, 1, own->keys, seen, d_rows, n);
    mix_block(in, d_scores + left * W, 1, step, rows, n, d_own->keys, seen);
    mix_block(in, scores + left * W, 1, step, grads, n, d_own->values, seen);
    float back[512];
    for (int64_t i = 0; i < n; i++) {
      int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
      rotate(d_rows + i * d, in->cosine + token * d, in->sine + token * d, back, d, in->scaling, -1);
      for (int64_t c = 0; c < d; c += W) store(dq, (token * in->heads + head) * d + c, load(back, c, 0), in->half);
    }
  }
}

static void clear(Block *block, int64_t tokens, int64_t d) {
  block->tokens = tokens;
  memset(block->keys, 0, tokens * d * sizeof(float));
  memset(block->values, 0, tokens * d * sizeof(float));
}

/* Stores the gradients of a block's tokens behind the first `before`, which are those from `start`. */
static void spill(const Inputs *in, const Block *block, int64_t before, int64_t start, int64_t head, void *dk,
                  void *dv) {
  float back[512];
  for (int64_t t = before; t < block->tokens; t++, start++) {
    int64_t at = (start * in->kv_heads + head) * in->d, row = start * in->d;
    rotate(block->keys + t * in->d, in->cosine + row, in->sine + row, back, in->d, 1, -1);
    for (int64_t c = 0; c < in->d; c += W) {
      store(dk, at + c, load(back, c, 0), in->half);
      store(dv, at + c, load(block->values, t * in->d + c, 0), in->half);
    }
  }
}

void grouprl_tree_attention_backward(const void *q, const void *k, const void *v, const float *cosine,
                                     const float *sine, const void *d_out, void *dq, void *dk, void *dv,
                                     const int64_t *starts, const int64_t *lengths, int64_t groups, int64_t widest,
                                     int64_t heads, int64_t kv_heads, int64_t d, float scaling, int half,
                                     int64_t window, const float *prefix_keys, const float *prefix_values,
                                     int64_t before, float *d_prefix_keys, float *d_prefix_values) {
  Inputs in = {q, k, v, cosine, sine, heads, kv_heads, d, scaling, half, window, prefix_keys, prefix_values, before};
#pragma omp parallel for schedule(dynamic) if (groups * kv_heads > 1 && starts[(groups - 1) * (1 + widest)] > 256)
  for (int64_t task = 0; task < groups * kv_heads; task++) {
    int64_t group = task / kv_heads, head = task % kv_heads, r = heads / kv_heads, longest = 0;
    const int64_t *start = starts + group * (1 + widest), *length = lengths + group * (1 + widest);
    for (int64_t i = 1; i <= widest; i++) longest = length[i] > longest ? length[i] : longest;
    Block prompt = new_block(before + length[0], d), own = new_block(longest, d);
    Block d_prompt = new_block(before + length[0], d), d_own = new_block(longest, d);
    int64_t width = QUERIES * (tiles(before + length[0]) + tiles(longest) + 1) * W;
    float *scores = malloc(3 * width * sizeof(float)), *rows = malloc(4 * QUERIES * d * sizeof(float));
    float *grads = rows + 2 * QUERIES * d;
    Buffers b = {scores, scores + width, scores + 2 * width, rows, rows + QUERIES * d, grads, grads + QUERIES * d};
    fill(&in, before, start[0], length[0], head, &prompt, 1);
    clear(&d_prompt, before + length[0], d);
    for (int64_t i = 1; i <= widest; i++) {
      if (!length[i]) continue;
      fill(&in, 0, start[i], length[i], head, &own, 1);
      clear(&d_own, length[i], d);
      Span span = {start[i], length[i], head, r, 0};
      backward_span(&in, &span, &prompt, &own, &b, d_out, dq, &d_prompt, &d_own);
      spill(&in, &d_own, 0, start[i], head, dk, dv);
    }
    Span span = {start[0], length[0], head, r, before};
    backward_span(&in, &span, 0, &prompt, &b, d_out, dq, 0, &d_prompt);
    spill(&in, &d_prompt, before, start[0], head, dk, dv);
    for (int64_t t = 0; t < before; t++) {
      int64_t at = ((group * before + t) * kv_heads + head) * d;
      memcpy(d_prefix_keys + at, d_prompt.keys + t * d, d * sizeof(float));
      memcpy(d_prefix_values + at, d_prompt.values + t * d, d * sizeof(float));
    }
    free(prompt.keys), free(own.keys), free(d_prompt.keys), free(d_own.keys), free(scores), free(rows);
  }
}

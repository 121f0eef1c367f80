/* Attention over packed groups: each completion attends to its prompt and its own past. As in FlashAttention (Dao et al.,
 * arXiv:2205.14135), the backward pass computes weights again from the log-sum-exp of each query. Positions are
 * rotated (RoPE, arXiv:2104.09864, halves of a head as pairs) while queries and keys are read.
 *
 * Queries, keys and values are [S, heads, d]; a task is one group and one key/value head, with r query heads to it. */
#include "scores.h"

#define QUERIES 32 /* rows of scores at once: two score buffers fit in the cache of a core */

typedef struct {
  const void *q, *k, *v;
  const float *cosine, *sine; /* [S, d] */
  int64_t heads, kv_heads, d;
  float scaling;
  int half;
  int64_t window; /* a token sees this many, itself included */
} Inputs;

typedef struct {
  float *keys, *values; /* [tokens, d] */
  float *key_tiles;     /* [tiles, d, W] */
  float *value_tiles;   /* backward only */
  int64_t tokens;
} Block;

static void transpose(const float *rows, int64_t tokens, int64_t d, float *out) {
  for (int64_t tile = 0; tile < tiles(tokens); tile++)
    for (int64_t i = 0; i < W; i++) {
      int64_t token = tile * W + i;
      for (int64_t c = 0; c < d; c++) out[(tile * d + c) * W + i] = token < tokens ? rows[token * d + c] : 0.0f;
    }
}

/* Reads keys and values of `tokens` tokens from `start` into a block, whose buffers are large enough. */
static void fill(const Inputs *in, int64_t start, int64_t tokens, int64_t head, Block *block, int backward) {
  float raw[512];
  block->tokens = tokens;
  for (int64_t t = 0; t < tokens; t++) {
    int64_t at = ((start + t) * in->kv_heads + head) * in->d;
    read_row(in->k, at, raw, in->d, in->half);
    rotate(raw, in->cosine + (start + t) * in->d, in->sine + (start + t) * in->d, block->keys + t * in->d, in->d, 1, 1);
    read_row(in->v, at, block->values + t * in->d, in->d, in->half);
  }
  transpose(block->keys, tokens, in->d, block->key_tiles);
  if (backward) transpose(block->values, tokens, in->d, block->value_tiles);
}

/* The queries of one sequence: r heads of `tokens` tokens from `start`; row i is head i % r of token i / r. */
typedef struct {
  int64_t start, tokens, head, r;
} Span;

static void read_queries(const Inputs *in, const Span *s, int64_t first, int64_t n, float *rows) {
  float raw[512];
  for (int64_t i = 0; i < n; i++) {
    int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
    read_row(in->q, (token * in->heads + head) * in->d, raw, in->d, in->half);
    rotate(raw, in->cosine + token * in->d, in->sine + token * in->d, rows + i * in->d, in->d, in->scaling, 1);
  }
}

/* Weights of queries first .. first + n over prompt (may be 0) and own tokens. A row is [prompt, padded][own, padded]. */
static int64_t weigh(const Inputs *in, const Span *s, const Block *prompt, const Block *own, const float *rows,
                     int64_t first, int64_t n, float *scores, float *lse) {
  int64_t L = prompt ? prompt->tokens : 0, left = tiles(L), right = tiles((first + n - 1) / s->r + 1);
  int64_t width = (left + right) * W;
  if (left) score(rows, n, prompt->key_tiles, 0, 0, left, scores, width, in->d, 0);
  score(rows, n, own->key_tiles, 0, 0, right, scores + left * W, width, in->d, 0);
  for (int64_t i = 0; i < n; i++) {
    float *row = scores + i * width;
    int64_t token = (first + i) / s->r, hidden = L + token + 1 - in->window;
    hide(row, 0, hidden < L ? hidden : L);
    hide(row, L, left * W);
    hide(row + left * W, 0, hidden - L);
    float found = softmax_row(row, left * W + (first + i) / s->r + 1, width);
    if (lse) lse[(s->start + (first + i) / s->r) * in->heads + s->head * s->r + (first + i) % s->r] = found;
  }
  return width;
}

static void attend_span(const Inputs *in, const Span *s, const Block *prompt, const Block *own, float *scores,
                        float *rows, float *mixed, void *out) {
  int64_t L = prompt ? prompt->tokens : 0;
  for (int64_t first = 0; first < s->tokens * s->r; first += QUERIES) {
    int64_t n = s->tokens * s->r - first < QUERIES ? s->tokens * s->r - first : QUERIES;
    read_queries(in, s, first, n, rows);
    int64_t width = weigh(in, s, prompt, own, rows, first, n, scores, 0);
    memset(mixed, 0, n * in->d * sizeof(float));
    if (prompt) mix(scores, width, 1, prompt->values, 0, 0, L, mixed, n, in->d, 0);
    mix(scores + tiles(L) * W, width, 1, own->values, 0, 0, (first + n - 1) / s->r + 1, mixed, n, in->d, 0);
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
                            int64_t window) {
  Inputs in = {q, k, v, cosine, sine, heads, kv_heads, d, scaling, half, window};
#pragma omp parallel for schedule(dynamic) if (groups * kv_heads > 1 && starts[(groups - 1) * (1 + widest)] > 256)
  for (int64_t task = 0; task < groups * kv_heads; task++) {
    int64_t group = task / kv_heads, head = task % kv_heads, r = heads / kv_heads, longest = 0;
    const int64_t *start = starts + group * (1 + widest), *length = lengths + group * (1 + widest);
    for (int64_t i = 1; i <= widest; i++) longest = length[i] > longest ? length[i] : longest;
    Block prompt = new_block(length[0], d), own = new_block(longest, d);
    float *scores = malloc(QUERIES * (tiles(length[0]) + tiles(longest) + 1) * W * sizeof(float));
    float *rows = malloc(2 * QUERIES * d * sizeof(float));
    fill(&in, start[0], length[0], head, &prompt, 0);
    Span span = {start[0], length[0], head, r};
    attend_span(&in, &span, 0, &prompt, scores, rows, rows + QUERIES * d, out);
    for (int64_t i = 1; i <= widest; i++) {
      if (!length[i]) continue;
      fill(&in, start[i], length[i], head, &own, 0);
      span = (Span){start[i], length[i], head, r};
      attend_span(&in, &span, &prompt, &own, scores, rows, rows + QUERIES * d, out);
    }
    free(prompt.keys), free(own.keys), free(scores), free(rows);
  }
}

/* Adds to the gradients of a span's keys and values, and stores the gradient of its queries. */
static void backward_span(const Inputs *in, const Span *s, const Block *prompt, const Block *own, float *scores,
                          float *d_scores, float *rows, const void *d_out, void *dq, Block *d_prompt, Block *d_own) {
  int64_t d = in->d, L = prompt ? prompt->tokens : 0, left = tiles(L);
  float *d_rows = rows + QUERIES * d, *grads = d_rows + QUERIES * d;
  for (int64_t first = 0; first < s->tokens * s->r; first += QUERIES) {
    int64_t n = s->tokens * s->r - first < QUERIES ? s->tokens * s->r - first : QUERIES;
    int64_t seen = (first + n - 1) / s->r + 1;
    read_queries(in, s, first, n, rows);
    int64_t width = weigh(in, s, prompt, own, rows, first, n, scores, 0);
    for (int64_t i = 0; i < n; i++) {
      int64_t token = s->start + (first + i) / s->r, head = s->head * s->r + (first + i) % s->r;
      read_row(d_out, (token * in->heads + head) * d, grads + i * d, d, in->half);
    }
    if (left) score(grads, n, prompt->value_tiles, 0, 0, left, d_scores, width, d, 0);
    score(grads, n, own->value_tiles, 0, 0, tiles(seen), d_scores + left * W, width, d, 0);
    for (int64_t i = 0; i < n; i++) {
      float *p = scores + i * width, *dp = d_scores + i * width;
      vec dots = splat(0);
      for (int64_t j = 0; j < width; j += W) dots += load(p, j, 0) * load(dp, j, 0);
      float mean = sum(dots);
      for (int64_t j = 0; j < width; j += W) store(dp, j, load(p, j, 0) * (load(dp, j, 0) - mean), 0);
    }
    memset(d_rows, 0, n * d * sizeof(float));
    if (prompt) {
      mix(d_scores, width, 1, prompt->keys, 0, 0, L, d_rows, n, d, 0);
      mix(d_scores, 1, width, rows, 0, 0, n, d_prompt->keys, L, d, 0);
      mix(scores, 1, width, grads, 0, 0, n, d_prompt->values, L, d, 0);
    }
    mix(d_scores + left * W, width, 1, own->keys, 0, 0, seen, d_rows, n, d, 0);
    mix(d_scores + left * W, 1, width, rows, 0, 0, n, d_own->keys, seen, d, 0);
    mix(scores + left * W, 1, width, grads, 0, 0, n, d_own->values, seen, d, 0);
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

static void spill(const Inputs *in, const Block *block, int64_t start, int64_t head, void *dk, void *dv) {
  float back[512];
  for (int64_t t = 0; t < block->tokens; t++) {
    int64_t at = ((start + t) * in->kv_heads + head) * in->d, row = (start + t) * in->d;
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
                            int64_t window) {
  Inputs in = {q, k, v, cosine, sine, heads, kv_heads, d, scaling, half, window};
#pragma omp parallel for schedule(dynamic) if (groups * kv_heads > 1 && starts[(groups - 1) * (1 + widest)] > 256)
  for (int64_t task = 0; task < groups * kv_heads; task++) {
    int64_t group = task / kv_heads, head = task % kv_heads, r = heads / kv_heads, longest = 0;
    const int64_t *start = starts + group * (1 + widest), *length = lengths + group * (1 + widest);
    for (int64_t i = 1; i <= widest; i++) longest = length[i] > longest ? length[i] : longest;
    Block prompt = new_block(length[0], d), own = new_block(longest, d);
    Block d_prompt = new_block(length[0], d), d_own = new_block(longest, d);
    int64_t width = QUERIES * (tiles(length[0]) + tiles(longest) + 1) * W;
    float *scores = malloc(2 * width * sizeof(float)), *rows = malloc(3 * QUERIES * d * sizeof(float));
    fill(&in, start[0], length[0], head, &prompt, 1);
    clear(&d_prompt, length[0], d);
    for (int64_t i = 1; i <= widest; i++) {
      if (!length[i]) continue;
      fill(&in, start[i], length[i], head, &own, 1);
      clear(&d_own, length[i], d);
      Span span = {start[i], length[i], head, r};
      backward_span(&in, &span, &prompt, &own, scores, scores + width, rows, d_out, dq, &d_prompt, &d_own);
      spill(&in, &d_own, start[i], head, dk, dv);
    }
    Span span = {start[0], length[0], head, r};
    backward_span(&in, &span, 0, &prompt, scores, scores + width, rows, d_out, dq, 0, &d_prompt);
    spill(&in, &d_prompt, start[0], head, dk, dv);
    free(prompt.keys), free(own.keys), free(d_prompt.keys), free(d_own.keys), free(scores), free(rows);
  }
}

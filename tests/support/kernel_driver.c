/* Runs every kernel on the same made-up inputs and writes its results as floats, so that the results of two targets can be
 * compared without Python on the second one: records of a name (32 bytes), a count (int64) and floats. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

int64_t grouprl_width(void);
void grouprl_add_norm(const float *, const void *, const float *, float *, void *, float *, int64_t, int64_t, float, int, int);
void grouprl_norm_backward(const float *, const float *, const float *, const void *, const float *, float *, void *, float *,
                           int64_t, int64_t, int);
void grouprl_swiglu(const void *, const void *, void *, int64_t, int);
void grouprl_swiglu_backward(const void *, const void *, const void *, void *, void *, int64_t, int);
void grouprl_tree_attention(const void *, const void *, const void *, const float *, const float *, void *, const int64_t *,
                            const int64_t *, int64_t, int64_t, int64_t, int64_t, int64_t, float, int, int64_t, const float *,
                            const float *, int64_t);
void grouprl_tree_attention_backward(const void *, const void *, const void *, const float *, const float *, const void *, void *,
                                     void *, void *, const int64_t *, const int64_t *, int64_t, int64_t, int64_t, int64_t,
                                     int64_t, float, int, int64_t, const float *, const float *, int64_t, float *, float *);
void grouprl_product(const float *, const float *, const float *, float *, int64_t, int64_t, int64_t);
void grouprl_keep_prompts(const void *, const void *, const float *, const float *, void *, int64_t, const int64_t *,
                          const int64_t *, const int64_t *, int64_t, int64_t, int64_t, int64_t, int, int);
void grouprl_logprobs(const void *, const int64_t *, float *, float *, float *, int64_t, int64_t, float, int);
void grouprl_logprobs_backward(void *, const int64_t *, const float *, const float *, int64_t, int64_t, float, int);
void grouprl_draw(const void *, const int64_t *, const int64_t *, int64_t *, float *, float *, int64_t, int64_t, float, int);

static uint64_t state;

static float next(void) { /* in [-2, 2), exact in bfloat16 */
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)((int)(state >> 56) - 128) / 64;
}

/* `count` values as floats or bfloat16, the same numbers in both. */
static void *values(int64_t count, int half, uint64_t seed) {
  float *floats = calloc(count, 4);
  uint16_t *halves = calloc(count, 2);
  state = seed;
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    floats[i] = next();
    memcpy(&bits, floats + i, 4);
    halves[i] = bits >> 16;
  }
  return half ? (void *)halves : (void *)floats;
}

static void write_out(const char *name, const void *array, int64_t count, int half) {
  char label[32] = {0};
  snprintf(label, sizeof label, "%s %s", half ? "bfloat16" : "float32", name);
  fwrite(label, 1, sizeof label, stdout);
  fwrite(&count, 8, 1, stdout);
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits = half ? (uint32_t)((const uint16_t *)array)[i] << 16 : ((const uint32_t *)array)[i];
    fwrite(&bits, 4, 1, stdout);
  }
}

enum { ROWS = 5, H = 48, V = 1003, HEADS = 6, KV = 2, D = 32, TOKENS = 17 + 4 + 33 + 3 + 16, PROMPT = 19, OWN = 37, PREFIX = 16 };

static void pointwise(int half) {
  void *x = values(ROWS * H, 0, 1), *delta = values(ROWS * H, half, 2), *weight = values(H, 0, 3);
  void *grad = values(ROWS * H, half, 4), *total = values(ROWS * H, 0, 5), *normed = values(ROWS * H, half, 5);
  void *inverse = values(ROWS, 0, 5), *dx = values(ROWS * H, 0, 5), *weights = values(H, 0, 5), *other = values(ROWS * H, half, 6);
  grouprl_add_norm(x, delta, weight, total, normed, inverse, ROWS, H, 1e-3f, half, half);
  write_out("total", total, ROWS * H, 0), write_out("normed", normed, ROWS * H, half), write_out("inverse", inverse, ROWS, 0);
  grouprl_norm_backward(total, weight, inverse, grad, 0, dx, 0, weights, ROWS, H, half);
  write_out("norm dx", dx, ROWS * H, 0), write_out("norm d_weight", weights, H, 0);
  grouprl_swiglu(delta, grad, normed, ROWS * H, half);
  write_out("swiglu", normed, ROWS * H, half);
  grouprl_swiglu_backward(delta, grad, normed, other, normed, ROWS * H, half);
  write_out("swiglu d_gate", other, ROWS * H, half), write_out("swiglu d_up", normed, ROWS * H, half);
}

static void product(void) {
  float *x = values(19 * H, 0, 16), *weight = values(13 * H, 0, 17), *bias = values(13, 0, 18), *y = values(19 * 13, 0, 5);
  grouprl_product(x, weight, bias, y, 19, H, 13);
  write_out("product", y, 19 * 13, 0);
}

static void rotations(int64_t positions, float *cosine, float *sine) {
  for (int64_t p = 0; p < positions; p++)
    for (int64_t c = 0; c < D; c++) {
      cosine[p * D + c] = cosf(p / powf(100, (float)(c % (D / 2)) / D));
      sine[p * D + c] = sinf(p / powf(100, (float)(c % (D / 2)) / D));
    }
}

static void tree(int half, int64_t window, int64_t before) {
  const int64_t starts[] = {0, 17, 21, 54, 57, 0}, lengths[] = {17, 4, 33, 3, 16, 0};
  static float cosine[TOKENS * D], sine[TOKENS * D];
  rotations(TOKENS, cosine, sine);
  void *q = values(TOKENS * HEADS * D, half, 7), *k = values(TOKENS * KV * D, half, 8), *v = values(TOKENS * KV * D, half, 9);
  void *out = values(TOKENS * HEADS * D, half, 5), *grad = values(TOKENS * HEADS * D, half, 10), *dq = values(TOKENS * HEADS * D, half, 5);
  void *dk = values(TOKENS * KV * D, half, 5), *dv = values(TOKENS * KV * D, half, 5);
  float *keys = values(PREFIX * KV * D, 0, 14), *prefix_values = values(PREFIX * KV * D, 0, 15);
  float *d_keys = calloc(4 * PREFIX * KV * D, 4), *d_values = d_keys + 2 * PREFIX * KV * D; /* of 2 groups */
  grouprl_tree_attention(q, k, v, cosine, sine, out, starts, lengths, 2, 2, HEADS, KV, D, 0.3f, half, window, keys,
                         prefix_values, before);
  write_out("tree", out, TOKENS * HEADS * D, half);
  grouprl_tree_attention_backward(q, k, v, cosine, sine, grad, dq, dk, dv, starts, lengths, 2, 2, HEADS, KV, D, 0.3f, half, window,
                                  keys, prefix_values, before, d_keys, d_values);
  write_out(half ? "tree d_prefix of halves" : "tree d_prefix", d_keys, 4 * PREFIX * KV * D, 0);
  write_out("tree dq", dq, TOKENS * HEADS * D, half), write_out("tree dk", dk, TOKENS * KV * D, half);
  write_out("tree dv", dv, TOKENS * KV * D, half);
}

/* Three rows of one prompt, decoded for OWN tokens: the cache in tiles, written and read. The prefix is kept as the same
 * numbers as the beginning of the prompt. */
static void decode(int half, int64_t window, int64_t before) {
  enum { N = 3 };
  static float cosine[(PREFIX + PROMPT + OWN) * D], sine[(PREFIX + PROMPT + OWN) * D];
  rotations(PREFIX + PROMPT + OWN, cosine, sine);
  int64_t w = grouprl_width(), prompt_tiles = (PROMPT + w - 1) / w, own_tiles = (OWN + w - 1) / w;
  const int64_t start[] = {0}, prompt[] = {PROMPT}, slot[] = {0}, order[] = {0, 1, 2}, begin[] = {0, N};
  int64_t length[N], behind = KV * prompt_tiles * w * D, size = half ? 2 : 4;
  const int64_t shared[] = {PREFIX};
  int64_t apart = KV * PREFIX * D;
  char *prefix = calloc(2 * apart, size), *kept = calloc(2 * behind, size), *own = calloc(N * KV * 2 * own_tiles * w * D, size);
  void *k = values(PROMPT * KV * D, half, 11), *v = values(PROMPT * KV * D, half, 12), *out = values(N * HEADS * D, half, 5);
  grouprl_keep_prompts(k, v, cosine, sine, kept, behind, start, prompt, slot, 1, KV, D, prompt_tiles, half, half);
  grouprl_keep_prompts(k, v, cosine, sine, prefix, apart, start, shared, slot, 1, KV, D, PREFIX / w, half, half);
  for (int64_t t = 0; t < OWN; t++) {
    for (int i = 0; i < N; i++) length[i] = t + 1;
    DecodeStep step = {values(N * HEADS * D, half, 100 + t), values(N * KV * D, half, 200 + t), values(N * KV * D, half, 300 + t),
                       out, cosine, sine, kept, kept + behind * size, own, prefix, prefix + apart * size, order, begin, slot, prompt, length,
                       HEADS, KV, D, prompt_tiles, own_tiles, before, window, 0.3f, half, half};
    grouprl_decode_attention(&step, 1);
    write_out("decode", out, N * HEADS * D, half);
  }
}

static void tokens(int half) {
  void *logits = values(ROWS * V, half, 13);
  const int64_t targets[ROWS] = {0, 1, 500, 1001, 1002}, keys[ROWS] = {5, -6, 7, 1LL << 60, 9}, positions[ROWS] = {0, 1, 2, 3, 4};
  int64_t drawn_tokens[ROWS];
  float logprobs[ROWS], entropies[ROWS], lse[ROWS], drawn[ROWS], plain[ROWS], as_floats[ROWS];
  grouprl_logprobs(logits, targets, logprobs, entropies, lse, ROWS, V, 1.4f, half);
  write_out("logprobs", logprobs, ROWS, 0), write_out("entropies", entropies, ROWS, 0);
  for (int i = 0; i < 3; i++) {
    grouprl_draw(logits, keys, positions, drawn_tokens, drawn, plain, ROWS, V, i * 0.5f, half);
    for (int row = 0; row < ROWS; row++) as_floats[row] = drawn_tokens[row];
    write_out("tokens", as_floats, ROWS, 0), write_out("drawn", drawn, ROWS, 0), write_out("plain", plain, ROWS, 0);
  }
  grouprl_logprobs_backward(logits, targets, lse, logprobs, ROWS, V, 1.4f, half);
  write_out("d_logits", logits, ROWS * V, half);
}

int main(void) {
  product();
  for (int half = 0; half < 2; half++) {
    pointwise(half), tokens(half);
    tree(half, 1 << 20, 0), tree(half, 5, 0), tree(half, 1 << 20, PREFIX), tree(half, 30, PREFIX);
    decode(half, 1 << 20, 0), decode(half, 7, 0), decode(half, 1 << 20, PREFIX), decode(half, 30, PREFIX);
  }
  return 0;
}

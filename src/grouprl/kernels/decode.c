/* Attention of the newest token of each completion, over a cache that holds the prompt of a group once, and once for all
 * groups the prefix, the tokens that begin every prompt.
 *
 * Cached keys are tiles [d, W] of rotated keys, values are [tokens, d]. Per layer the prompts' keys, and their values,
 * are [slots, kv_heads, prompt_tiles * W * d]; the completions' own are [rows, kv_heads, 2, own_tiles * W * d], keys
 * before values, so that a row is read from the memory as one stream. With PAIRS neighboring components of a key lie side by
 * side, [d / 2, W, 2], and so do those of neighboring tokens of the values, [tokens / 2, d, 2]. */
#include "decode.h"

#include "scores.h"

/* The components of a key lie W elements apart in its tile. */
INLINE void write_key(void *tiles_of, int64_t at, int64_t place, int64_t d, float *key, int kind) {
  if (kind != FLOATS) pair_numbers(key, d, key);
  if (kind == HALVES)
    for (int64_t c = 0; c < d; c++) ((uint16_t *)tiles_of)[at + c * W + place] = ((bfloat *)key)[c];
  else
    for (int64_t c = 0; c < words(d, kind); c++) ((float *)tiles_of)[words(at, kind) + c * W + place] = key[c];
}

/* The first value of a pair clears the second, which may not have been written: its weight is 0, but 0 * NaN is NaN. */
INLINE void write_value(void *values, int64_t at, int64_t token, int64_t d, const void *v, int64_t from, int half,
                        int kind) {
  for (int64_t c = 0; c < d; c += W) {
    vec value = load(v, from + c, half);
    if (kind == PAIRS) {
      int64_t place = at / 2 + token / 2 * d + c;
      vec first = token % 2 ? (vec)((uvec)load(values, place, PAIRS) << 16) : value;
      store(values, place, paired(first, token % 2 ? value : splat(0)), PAIRS);
    } else {
      store(values, at + token * d + c, value, kind);
    }
  }
}

/* Writes the key to element key_at of `keys`, the value to element value_at. */
INLINE void write_token(const void *k, const void *v, int64_t from, const float *cosine, const float *sine, void *keys,
                        int64_t key_at, int64_t value_at, int64_t token, int64_t d, int half, int kind) {
  float raw[512], turned[512];
  read_row(k, from, raw, d, half);
  rotate(raw, cosine, sine, turned, d, 1, 1);
  write_key(keys, key_at + token / W * W * d, token % W, d, turned, kind);
  write_value(keys, value_at, token, d, v, from, half, kind);
}

INLINE int kind_of(int cache_half) { return cache_half ? MULTIPLIES_PAIRS ? PAIRS : HALVES : FLOATS; }

/* Weights and own values of one row and one key/value head: r query rows, whose scores with the L tokens of prefix and
 * prompt are computed. */
INLINE void attend_own(const DecodeStep *s, int64_t row, int64_t head, int64_t L, const float *rows, float *scores,
                       float *mixed, int64_t width, int kind) {
  int64_t d = s->d, r = s->heads / s->kv_heads, left = tiles(L) * W, seen = s->length[row], position = L + seen - 1;
  int64_t hidden = L + seen - s->window; /* tokens behind the window */
  int64_t size = s->own_tiles * W * d, at = (row * s->kv_heads + head) * 2 * size;
  write_token(s->k, s->v, (row * s->kv_heads + head) * d, s->cosine + position * d, s->sine + position * d, s->own, at,
              at + size, seen - 1, d, s->half, kind);
  int64_t keys = words(at, kind), ahead = words(2 * size, kind);
  score(rows, r, s->own, keys, ahead, tiles(seen), scores + left, width, words(d, kind), kind);
  for (int64_t i = 0; i < r; i++) {
    float *line = scores + i * width;
    hide(line, 0, hidden < L ? hidden : L);
    hide(line, L, left);
    hide(line + left, 0, hidden - L);
    softmax_row(line, left + seen, left + tiles(seen) * W, kind);
  }
  mix(scores + words(left, kind), width, 1, s->own, words(at + size, kind), ahead, words(seen, kind), mixed, r, d,
      kind);
}

/* A part: rows of one group. Queries and scores are [kv_heads][members * r]: one product per head with the prompt. */
INLINE void attend_part(const DecodeStep *s, int64_t part, float *memory, int kind) {
  int64_t d = s->d, r = s->heads / s->kv_heads, F = s->before, L = s->prompt[part], left = tiles(L);
  int64_t width = F / W + left + s->own_tiles;
  const int64_t *order = s->order + s->begin[part];
  int64_t members = s->begin[part + 1] - s->begin[part], count = members * r, size = s->prompt_tiles * W * d;
  float *rows = memory, *mixed = rows + count * s->kv_heads * d, *scores = mixed + count * s->kv_heads * d;
  width *= W;
  memset(mixed, 0, count * s->kv_heads * d * sizeof(float));
  for (int64_t head = 0; head < s->kv_heads; head++) {
    for (int64_t i = 0; i < count; i++) {
      int64_t row = order[i / r], position = F + L + s->length[row] - 1;
      float raw[512];
      read_row(s->q, (row * s->heads + head * r + i % r) * d, raw, d, s->half);
      float *turned = rows + (head * count + i) * d;
      rotate(raw, s->cosine + position * d, s->sine + position * d, turned, d, s->scaling, 1);
    }
    int64_t at = (s->slot[part] * s->kv_heads + head) * size;
    float *own = rows + head * count * words(d, kind);
    if (kind == PAIRS) pair_numbers(rows + head * count * d, count * d, own);
    float *line = scores + head * count * width;
    if (F) score(own, count, s->prefix_keys, words(head * F * d, kind), 0, F / W, line, width, words(d, kind), kind);
    score(own, count, s->prompt_keys, words(at, kind), 0, left, line + F, width, words(d, kind), kind);
  }
  for (int64_t m = 0; m < members; m++)
    for (int64_t head = 0; head < s->kv_heads; head++) {
      int64_t first = head * count + m * r;
      attend_own(s, order[m], head, F + L, rows + first * words(d, kind), scores + first * width, mixed + first * d, width,
                 kind);
    }
  for (int64_t head = 0; head < s->kv_heads; head++) {
    int64_t at = (s->slot[part] * s->kv_heads + head) * size;
    float *own = mixed + head * count * d, *line = scores + head * count * width;
    if (F) mix(line, width, 1, s->prefix_values, words(head * F * d, kind), 0, words(F, kind), own, count, d, kind);
    mix(line + words(F, kind), width, 1, s->prompt_values, words(at, kind), 0, words(L, kind), own, count, d, kind);
    for (int64_t i = 0; i < count; i++)
      for (int64_t c = 0; c < d; c += W)
        store(s->out, (order[i / r] * s->heads + head * r + i % r) * d + c, load(own, i * d + c, 0), s->half);
  }
}

void grouprl_decode_attention(const DecodeStep *s, int64_t parts) {
#pragma omp parallel for schedule(dynamic) if (parts > 1 && s->begin[parts] > 8)
  for (int64_t part = 0; part < parts; part++) {
    int64_t rows = (s->begin[part + 1] - s->begin[part]) * s->heads;
    float *memory = malloc(rows * (2 * s->d + (tiles(s->before + s->prompt[part]) + s->own_tiles) * W) * sizeof(float));
    if (kind_of(s->cache_half) == PAIRS) attend_part(s, part, memory, PAIRS);
    else if (s->cache_half) attend_part(s, part, memory, HALVES);
    else attend_part(s, part, memory, FLOATS);
    free(memory);
  }
}

/* Keeps the keys and values of whole prompts: token t of prompt p is at starts[p] + t of k and v; values
 * begin `values` elements behind `keys`. */
void grouprl_keep_prompts(const void *k, const void *v, const float *cosine, const float *sine, void *keys,
                          int64_t values, const int64_t *starts, const int64_t *lengths, const int64_t *slots,
                          int64_t prompts, int64_t kv_heads, int64_t d, int64_t prompt_tiles, int half,
                          int cache_half) {
#pragma omp parallel for if (prompts > 4)
  for (int64_t p = 0; p < prompts; p++)
    for (int64_t head = 0; head < kv_heads; head++)
      for (int64_t t = 0; t < lengths[p]; t++) {
        int64_t row = starts[p] + t, base = (slots[p] * kv_heads + head) * prompt_tiles * W * d;
        write_token(k, v, (row * kv_heads + head) * d, cosine + row * d, sine + row * d, keys, base, base + values,
                    t, d, half, kind_of(cache_half));
      }
}

/* Numbers of a word of the cache that lie side by side. */
int64_t grouprl_cache_word(int cache_half) { return kind_of(cache_half) == PAIRS ? 2 : 1; }

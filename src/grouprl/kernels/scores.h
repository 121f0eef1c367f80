/* The products of attention: scores of queries with tiles of W keys, and mixtures of values.
 *
 * Keys are transposed in tiles [d, W], so that one broadcast of a query's component multiplies W keys. `kind` says what
 * keys or values hold; sums are in float32. With PAIRS all operands are words of two numbers: of neighboring components
 * where components are summed over (d is then half the head's size), of neighboring tokens where tokens are. */
#ifndef GROUPRL_SCORES_H
#define GROUPRL_SCORES_H

#include <stdlib.h>

#include "vector.h"

/* Elements of an array of this many numbers: words of two, or the numbers themselves. */
INLINE int64_t words(int64_t numbers, int kind) { return kind == PAIRS ? (numbers + 1) / 2 : numbers; }

INLINE int64_t tiles(int64_t tokens) { return (tokens + W - 1) / W; }

/* One head of one token, rotated by its position (sign = 1) or back (-1). In double, where products are exact: then no
 * compiler, nor torch, which rotates the prefix, rounds otherwise. */
INLINE void rotate(const float *x, const float *cosine, const float *sine, float *out, int64_t d, float factor,
                   float sign) {
  int64_t half = d / 2;
  for (int64_t i = 0; i < half; i++) {
    double a = x[i], b = x[i + half], c = cosine[i], s = sine[i] * sign;
    out[i] = (float)(a * c - b * s) * factor;
    out[i + half] = (float)(b * c + a * s) * factor;
  }
}

/* Rounds numbers to bfloat16, as words of two neighbors; `out` may be `numbers`. */
INLINE void pair_numbers(const float *numbers, int64_t n, float *out) {
  for (int64_t i = 0; i < n; i += W) store(out, i, load(numbers, i, FLOATS), HALVES);
}

INLINE void read_row(const void *from, int64_t at, float *to, int64_t d, int half) {
  for (int64_t i = 0; i < d; i += W) store(to, i, load(from, at + i, half), 0);
}

/* Prefetches one cache line of 64 bytes, for the first of its vectors, `number`: the processor finds no pattern between
 * the caches of two rows, and prefetching a whole row at once would stall until it arrives. */
INLINE void fetch(const void *base, int64_t at, int number, int kind) {
  int size = kind == HALVES ? 2 : 4;
  if (number * W * size % 64 == 0) __builtin_prefetch((const char *)base + at * size);
}

/* scores[row][key] = rows[row] . key for `rows` rows and `span` tiles: enough independent sums to keep a core busy. */
INLINE void score_tile(const float *row, const void *keys, int64_t at, int64_t ahead, float *scores, int64_t stride,
                       int64_t d, int rows, int span, int kind) {
  /* A score is the same two sums in every shape of tile, so that it does not depend on who is scored beside it. 8 sums at
   * a time hide the latency of two multiplications a cycle; 16 of them need 32 registers. */
  enum { PARTS = 2 };
  int own = rows * span, together = own * PARTS <= REGISTERS / 2 ? PARTS : 1;
  vec sums[16];
  for (int i = 0; i < own * PARTS; i++) sums[i] = splat(0);
  for (int first = 0; first < PARTS; first += together)
    for (int64_t c = 0; c < d; c += PARTS)
#pragma GCC unroll 2
      for (int p = first; p < first + together; p++)
#pragma GCC unroll 4
        for (int t = 0; t < span; t++) {
          vec key = load(keys, at + (t * d + c + p) * W, kind);
          if (ahead) fetch(keys, at + ahead + (t * d + c + p) * W, 0, kind);
#pragma GCC unroll 8
          for (int i = 0; i < rows; i++) {
            vec *total = sums + p * own + t * rows + i;
            *total = multiply_add(*total, row + i * d + c + p, key, kind);
          }
        }
  for (int i = 0; i < own; i++) sums[i] += sums[own + i];
  for (int t = 0; t < span; t++)
    for (int i = 0; i < rows; i++) store(scores, i * stride + t * W, sums[t * rows + i], 0);
}

INLINE void score_rows(const float *row, const void *keys, int64_t at, int64_t ahead, int64_t count, float *scores,
                       int64_t stride, int64_t d, int rows, int span, int kind) {
  int64_t tile = 0;
  for (; tile + span <= count; tile += span)
    score_tile(row, keys, at + tile * d * W, ahead, scores + tile * W, stride, d, rows, span, kind);
  for (; tile < count; tile++)
    score_tile(row, keys, at + tile * d * W, ahead, scores + tile * W, stride, d, rows, 1, kind);
}

/* Scores of n rows with `count` tiles, which begin at element `at` of `keys`. */
INLINE void score(const float *rows, int64_t n, const void *keys, int64_t at, int64_t ahead, int64_t count,
                  float *scores, int64_t stride, int64_t d, int kind) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) score_rows(rows + i * d, keys, at, ahead, count, scores + i * stride, stride, d, 8, 1, kind);
  for (; i + 4 <= n; i += 4) score_rows(rows + i * d, keys, at, ahead, count, scores + i * stride, stride, d, 4, 2, kind);
  for (; i + 2 <= n; i += 2) score_rows(rows + i * d, keys, at, ahead, count, scores + i * stride, stride, d, 2, 4, kind);
  for (; i < n; i++) score_rows(rows + i * d, keys, at, ahead, count, scores + i * stride, stride, d, 1, 4, kind);
}

INLINE void mix_tile(const float *weights, int64_t row_step, int64_t key_step, const void *values, int64_t at, int64_t ahead,
                     int64_t keys, float *out, int64_t d, int rows, int vectors, int kind) {
  vec sums[16];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) sums[i * vectors + j] = load(out, i * d + j * W, 0);
  for (int64_t k = 0; k < keys; k++)
#pragma GCC unroll 16
    for (int j = 0; j < vectors; j++) {
      vec value = load(values, at + k * d + j * W, kind);
      if (ahead) fetch(values, at + ahead + k * d + j * W, j, kind);
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        vec *total = sums + i * vectors + j;
        *total = multiply_add(*total, weights + i * row_step + k * key_step, value, kind);
      }
    }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) store(out, i * d + j * W, sums[i * vectors + j], 0);
}

INLINE void mix_rows(const float *weights, int64_t row_step, int64_t key_step, const void *values, int64_t at, int64_t ahead,
                     int64_t keys, float *out, int64_t d, int rows, int kind) {
  int64_t c = 0;
  /* As wide as the registers allow: narrow columns read one line of each key, and wait for each of their few sums. */
#define COLUMNS(V) \
  for (; rows * V <= REGISTERS / 2 && c + V * W <= d; c += V * W) \
    mix_tile(weights, row_step, key_step, values, at + c, ahead, keys, out + c, d, rows, V, kind);
  COLUMNS(16)
  COLUMNS(8)
  COLUMNS(4)
  COLUMNS(2)
  COLUMNS(1)
#undef COLUMNS
}

/* out[i] += sum over k of weights[i * row_step + k * key_step] * values[k], values [keys, d] from element `at`. */
INLINE void mix(const float *weights, int64_t row_step, int64_t key_step, const void *values, int64_t at, int64_t ahead,
                int64_t keys, float *out, int64_t n, int64_t d, int kind) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    mix_rows(weights + i * row_step, row_step, key_step, values, at, ahead, keys, out + i * d, d, 4, kind);
  for (; i + 2 <= n; i += 2)
    mix_rows(weights + i * row_step, row_step, key_step, values, at, ahead, keys, out + i * d, d, 2, kind);
  for (; i < n; i++) mix_rows(weights + i * row_step, row_step, key_step, values, at, ahead, keys, out + i * d, d, 1, kind);
}

INLINE void hide(float *scores, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; i++) scores[i] = -INFINITY;
}

/* Turns the first `seen` scores of a row into weights and the others into 0, PAIRS or FLOATS in their place; gives the
 * log-sum-exp. */
INLINE float softmax_row(float *scores, int64_t seen, int64_t width, int kind) {
  hide(scores, seen, width);
  vec most = splat(-INFINITY), total = splat(0);
  for (int64_t i = 0; i < width; i += W) most = larger(most, load(scores, i, 0));
  float peak = largest(most);
  for (int64_t i = 0; i < width; i += W) {
    vec e = exponential(load(scores, i, 0) - peak);
    total += e;
    store(scores, i, e, 0);
  }
  float mass = sum(total), factor = 1.0f / mass;
  for (int64_t i = 0; i < width; i += W) store(scores, i, load(scores, i, 0) * factor, kind == PAIRS ? HALVES : FLOATS);
  return peak + logf(mass);
}

#endif

/* y = x weight^T + bias in float32 for few rows x, as in a decode step. Torch's product copies all weights into tiles first,
 * which takes as long as the arithmetic of 30 rows; here the rows are copied, to panels [inner, 2 W], and each weight is read
 * where it lies. Every number is a sum in the order of `inner`, whatever the other rows are and however many. */
#include <stdlib.h>

#include "vector.h"

#define COLUMNS 6 /* of y at once: 12 sums in 16 registers */

#define BLOCK 256 /* products in a sum of their own: one sum of 5,000 errs 5 times as much */

/* `ahead`: how far behind its weights lie those that are needed next. */
INLINE void columns(const float *panel, const float *weight, const float *bias, int64_t inner, int64_t ahead, float *y,
                    int64_t rows, int64_t outer, int count) {
  vec totals[COLUMNS][2];
  for (int c = 0; c < count; c++) totals[c][0] = totals[c][1] = splat(bias ? bias[c] : 0);
  for (int64_t begin = 0; begin < inner; begin += BLOCK) {
    vec sums[COLUMNS][2] = {0};
    for (int64_t i = begin; i < inner && i < begin + BLOCK; i++) {
      vec left = load(panel, i * 2 * W, 0), right = load(panel, i * 2 * W + W, 0);
      if (ahead && i % 16 == 0)
        for (int c = 0; c < count; c++) __builtin_prefetch(weight + c * inner + i + ahead);
      for (int c = 0; c < count; c++) {
        vec factor = splat(weight[c * inner + i]);
        sums[c][0] += left * factor;
        sums[c][1] += right * factor;
      }
    }
    for (int c = 0; c < count; c++) totals[c][0] += sums[c][0], totals[c][1] += sums[c][1];
  }
  for (int64_t row = 0; row < rows; row++)
    for (int c = 0; c < count; c++) y[row * outer + c] = totals[c][row / W][row % W];
}

void grouprl_product(const float *x, const float *weight, const float *bias, float *y, int64_t rows, int64_t inner,
                     int64_t outer) {
  int64_t panels = (rows + 2 * W - 1) / (2 * W);
  float *panel = aligned_alloc(64, (panels * inner * 2 * W * sizeof(float) + 63) / 64 * 64);
  for (int64_t row = 0; row < panels * 2 * W; row++)
    for (int64_t i = 0; i < inner; i++)
      panel[(row / (2 * W) * inner + i) * 2 * W + row % (2 * W)] = row < rows ? x[row * inner + i] : 0;
#pragma omp parallel for if (outer * inner > 65536)
  for (int64_t at = 0; at < outer; at += COLUMNS)
    for (int64_t first = 0; first < rows; first += 2 * W) {
      const float *own = panel + first * inner, *of = weight + at * inner, *added = bias ? bias + at : 0;
      int64_t live = rows - first < 2 * W ? rows - first : 2 * W;
      float *to = y + first * outer + at;
      if (at + COLUMNS <= outer)
        columns(own, of, added, inner, first ? 0 : COLUMNS * inner, to, live, outer, COLUMNS);
      else
        for (int64_t c = 0; c < outer - at; c++)
          columns(own, of + c * inner, added ? added + c : 0, inner, 0, to + c, live, outer, 1);
    }
  free(panel);
}

/* Computes tokens and log-probs from logits one row at a time, without a second array of logits. */
#include <stdlib.h>

#include "vector.h"

#define BLOCK (16 * W) /* logits summed in float: over 150,000 tokens a float sum errs by more than many tokens' mass */

typedef struct {
  float peak, mass, mean; /* largest logit, sum of e^(logit - peak), mean logit - peak under the softmax times mass */
} Row;

/* Row of logits times `factor` as floats, padded to whole vectors with -infinity. */
static void read_logits(const void *logits, int64_t at, int64_t v, float factor, float *to, int half) {
  int64_t whole = v / W * W;
  for (int64_t i = 0; i < whole; i += W) store(to, i, load(logits, at + i, half) * factor, 0);
  if (whole == v) return;
  for (int64_t i = whole; i < whole + W; i++) to[i] = -INFINITY;
  for (int64_t i = whole; i < v; i++) {
    uint32_t bits = half ? (uint32_t)((const uint16_t *)logits)[at + i] << 16 : 0;
    if (half) memcpy(to + i, &bits, 4);
    else to[i] = ((const float *)logits)[at + i];
    to[i] *= factor;
  }
}

/* Mass of up to BLOCK logits from `row`, n of them; adds their mean to `means`. */
INLINE float block_mass(const float *row, int64_t n, float peak, double *means) {
  vec mass = splat(0), mean = splat(0);
  for (int64_t i = 0; i < n; i += W) {
    vec x = load(row, i, 0) - peak, e = exponential(x);
    mass += e;
    mean += e * larger(x, splat(-1e30f)); /* because 0 * -infinity is NaN */
  }
  *means += sum(mean);
  return sum(mass);
}

/* masses: of each block; 0 = not kept. */
static Row survey(const float *row, int64_t v, float *masses) {
  vec most = splat(-INFINITY);
  for (int64_t i = 0; i < v; i += W) most = larger(most, load(row, i, 0));
  float peak = largest(most);
  double total = 0, means = 0;
  for (int64_t i = 0; i < v; i += BLOCK) {
    float mass = block_mass(row + i, v - i < BLOCK ? v - i : BLOCK, peak, &means);
    if (masses) masses[i / BLOCK] = mass;
    total += mass;
  }
  return (Row){peak, (float)total, (float)means};
}

/* Log-prob of each target, entropy and log-sum-exp of each row, of logits * factor. */
void grouprl_logprobs(const void *logits, const int64_t *targets, float *logprobs, float *entropies, float *lse,
                      int64_t rows, int64_t v, float factor, int half) {
#pragma omp parallel if (rows * v > 65536)
  {
    float *row = malloc((v + W) * sizeof(float));
#pragma omp for
    for (int64_t i = 0; i < rows; i++) {
      read_logits(logits, i * v, v, factor, row, half);
      Row found = survey(row, v, 0);
      float spread = logf(found.mass);
      logprobs[i] = row[targets[i]] - found.peak - spread;
      entropies[i] = spread - found.mean / found.mass;
      lse[i] = found.peak + spread;
    }
    free(row);
  }
}

/* Overwrites logits by the gradient: d[i] * factor * (1 at the target - softmax). */
void grouprl_logprobs_backward(void *logits, const int64_t *targets, const float *lse, const float *d, int64_t rows,
                               int64_t v, float factor, int half) {
#pragma omp parallel if (rows * v > 65536)
  {
    float *row = malloc((v + W) * sizeof(float));
#pragma omp for
    for (int64_t i = 0; i < rows; i++) {
      read_logits(logits, i * v, v, factor, row, half);
      float scale = d[i] * factor;
      for (int64_t j = 0; j < v; j += W) store(row, j, exponential(load(row, j, 0) - lse[i]) * -scale, 0);
      row[targets[i]] += scale;
      int64_t whole = v / W * W;
      for (int64_t j = 0; j < whole; j += W) store(logits, i * v + j, load(row, j, 0), half);
      if (whole == v) continue;
      uint16_t halves[W];
      store(halves, 0, load(row, whole, 0), 1);
      if (half) memcpy((uint16_t *)logits + i * v + whole, halves, (v - whole) * 2);
      else memcpy((float *)logits + i * v + whole, row + whole, (v - whole) * 4);
    }
    free(row);
  }
}

/* SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): [0, 1). */
static double uniform(int64_t key, int64_t position) {
  uint64_t state = (uint64_t)key + ((uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return (double)((state ^ (state >> 31)) >> 11) * 0x1p-53;
}

/* The first token whose cumulative mass exceeds share * the mass of all blocks. */
static int64_t pick(const float *row, int64_t v, float peak, const float *masses, double share) {
  double total = 0, before = 0;
  for (int64_t b = 0; b * BLOCK < v; b++) total += masses[b];
  for (int64_t b = 0; b * BLOCK < v; before += masses[b++]) {
    if (before + masses[b] <= share * total) continue;
    double mass = before;
    int64_t last = 0;
    for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK && i < v; i += W) {
      vec e = exponential(load(row, i, 0) - peak);
      for (int64_t j = 0; j < W && i + j < v; j++) {
        mass += e[j];
        if (mass > share * total) return i + j;
        if (e[j] > 0) last = i + j;
      }
    }
    return last; /* the block's sum by lanes was larger than by tokens, by rounding */
  }
  for (int64_t i = v - 1; i > 0; i--)
    if (row[i] > -INFINITY) return i;
  return 0;
}

/* Draws a token for each row at its uniform number, or the most probable one at temperature 0; `drawn` is the log-prob
 * under the softmax at that temperature (0 when greedy), `plain` that at temperature 1. */
void grouprl_draw(const void *logits, const int64_t *keys, const int64_t *positions, int64_t *tokens, float *drawn,
                  float *plain, int64_t rows, int64_t v, float temperature, int half) {
#pragma omp parallel if (rows * v > 65536)
  {
    float *row = malloc((v + W + v / BLOCK + 1) * sizeof(float)), *masses = row + v + W;
#pragma omp for
    for (int64_t i = 0; i < rows; i++) {
      read_logits(logits, i * v, v, 1, row, half);
      Row at_one = survey(row, v, masses), at_t = at_one;
      int64_t token = 0;
      if (temperature == 0) {
        while (row[token] < at_one.peak) token++;
        drawn[i] = 0;
      } else {
        if (temperature != 1) {
          for (int64_t j = 0; j < v; j += W) store(row, j, load(row, j, 0) / temperature, 0);
          at_t = survey(row, v, masses);
        }
        token = pick(row, v, at_t.peak, masses, uniform(keys[i], positions[i]));
        drawn[i] = row[token] - at_t.peak - logf(at_t.mass);
      }
      float value = temperature == 0 || temperature == 1 ? row[token] : row[token] * temperature;
      plain[i] = value - at_one.peak - logf(at_one.mass);
      tokens[i] = token;
    }
    free(row);
  }
}

/* Appends a newly drawn token to each of n rows of the grids [rows, width]. reason: 0 the row is unfinished, 1 it drew
 * an end token, 2 it has as many as it may. Gives the number of finished rows. */
int64_t grouprl_append(const int64_t *tokens, const float *drawn, const float *plain, int64_t *newest, int64_t *length,
                       int64_t *token_grid, float *drawn_grid, float *plain_grid, const int64_t *most,
                       int64_t n, int64_t width, const int64_t *ends, int64_t count, int64_t *reason) {
  int64_t over = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = i * width + length[i]++;
    newest[i] = token_grid[at] = tokens[i];
    drawn_grid[at] = drawn[i], plain_grid[at] = plain[i];
    reason[i] = length[i] == most[i] ? 2 : 0;
    for (int64_t e = 0; e < count; e++)
      if (ends[e] == tokens[i]) reason[i] = 1;
    over += reason[i] != 0;
  }
  return over;
}

/* Floats of a vector, which is also the number of keys in a tile of the cache. */
int64_t grouprl_width(void) { return W; }

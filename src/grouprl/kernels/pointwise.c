/* The per-token operations of a decoder layer, in one pass over memory per direction. Rows are split over threads. */
#include "vector.h"

/* sum = x + delta (skipped when delta is 0); normed = sum / rms(sum) * weight. inverse keeps 1 / rms of each row. */
INLINE void add_norm_row(const float *x, const void *delta, const float *weight, float *total, void *normed,
                         float *inverse, int64_t h, float eps, int delta_half, int normed_half) {
  vec squares = splat(0);
  for (int64_t i = 0; i < h; i += W) {
    vec value = load(x, i, 0);
    if (delta) {
      value += load(delta, i, delta_half);
      store(total, i, value, 0);
    }
    squares += value * value;
  }
  float scale = 1.0f / sqrtf(sum(squares) / h + eps);
  const float *source = delta ? total : x;
  for (int64_t i = 0; i < h; i += W)
    store(normed, i, load(source, i, 0) * scale * load(weight, i, 0), normed_half);
  *inverse = scale;
}

void grouprl_add_norm(const float *x, const void *delta, const float *weight, float *total, void *normed,
                      float *inverse, int64_t rows, int64_t h, float eps, int delta_half, int normed_half) {
#pragma omp parallel for if (rows * h > 65536)
  for (int64_t row = 0; row < rows; row++) {
    const char *step = delta ? (const char *)delta + row * h * (delta_half ? 2 : 4) : 0;
    char *out = (char *)normed + row * h * (normed_half ? 2 : 4);
    float *kept = total ? total + row * h : 0;
    if (delta_half && normed_half)
      add_norm_row(x + row * h, step, weight, kept, out, inverse + row, h, eps, 1, 1);
    else if (normed_half)
      add_norm_row(x + row * h, step, weight, kept, out, inverse + row, h, eps, 0, 1);
    else if (delta_half)
      add_norm_row(x + row * h, step, weight, kept, out, inverse + row, h, eps, 1, 0);
    else
      add_norm_row(x + row * h, step, weight, kept, out, inverse + row, h, eps, 0, 0);
  }
}

/* dx = d_total (0: none) + gradient through the norm; also in bfloat16 where dx_half is not 0. */
void grouprl_norm_backward(const float *x, const float *weight, const float *inverse, const void *d_normed,
                           const float *d_total, float *dx, void *dx_half, float *d_weight, int64_t rows, int64_t h,
                           int half) {
#pragma omp parallel for if (rows * h > 65536)
  for (int64_t row = 0; row < rows; row++) {
    const float *own = x + row * h, scale = inverse[row];
    const char *grad = (const char *)d_normed + row * h * (half ? 2 : 4);
    vec dot = splat(0);
    for (int64_t i = 0; i < h; i += W) dot += load(grad, i, half) * load(weight, i, 0) * load(own, i, 0);
    float pull = sum(dot) * scale * scale * scale / h;
    for (int64_t i = 0; i < h; i += W) {
      vec value = load(grad, i, half) * load(weight, i, 0) * scale - load(own, i, 0) * pull;
      if (d_total) value += load(d_total, row * h + i, 0);
      store(dx, row * h + i, value, 0);
      if (dx_half) store(dx_half, row * h + i, value, 1);
    }
  }
  if (!d_weight) return;
#pragma omp parallel for if (rows * h > 65536)
  for (int64_t i = 0; i < h; i += W) {
    vec column = splat(0);
    for (int64_t row = 0; row < rows; row++)
      column += load(d_normed, row * h + i, half) * load(x, row * h + i, 0) * inverse[row];
    store(d_weight, i, column, 0);
  }
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* out = silu(gate) * up, over `size` elements. */
void grouprl_swiglu(const void *gate, const void *up, void *out, int64_t size, int half) {
#pragma omp parallel for if (size > 65536)
  for (int64_t i = 0; i < size; i += W) {
    vec g = load(gate, i, half);
    store(out, i, g * sigmoid(g) * load(up, i, half), half);
  }
}

void grouprl_swiglu_backward(const void *gate, const void *up, const void *d_out, void *d_gate, void *d_up,
                             int64_t size, int half) {
#pragma omp parallel for if (size > 65536)
  for (int64_t i = 0; i < size; i += W) {
    vec g = load(gate, i, half), u = load(up, i, half), d = load(d_out, i, half), s = sigmoid(g);
    store(d_up, i, d * g * s, half);
    store(d_gate, i, d * u * s * (1.0f + g * (1.0f - s)), half);
  }
}

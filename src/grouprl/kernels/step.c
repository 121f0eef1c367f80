/* A decode step of a whole model in one call, without Python between the layers: a step of a small model makes a hundred
 * calls, and threads that decode side by side would wait for Python's lock at each of them.
 *
 * Products are those of product.c, or torch's own, through its C interface (torch/csrc/inductor/aoti_torch/c/shim.h), whose
 * functions the caller passes. Every function here returns 0, or the error code of torch's function that failed. */
#include <string.h>

#include "decode.h"
#include "vector.h"

typedef void *Tensor; /* AtenTensorHandle */

typedef struct {
  int32_t (*create)(void *data, int64_t dimensions, const int64_t *sizes, const int64_t *strides, int64_t offset,
                    int32_t dtype, int32_t device_type, int32_t device_index, Tensor *made);
  int32_t (*destroy)(Tensor tensor);
  int32_t (*multiply)(Tensor out, Tensor left, Tensor right);
  int32_t (*multiply_add)(Tensor out, Tensor added, Tensor left, Tensor right, double beta, double alpha);
  int32_t dtype, device_type;
} Torch;

typedef struct {
  void *weight, *bias;     /* [outer, inner]; [outer] or 0 */
  void *down, *up;         /* of an adapter: [rank, inner], [outer, rank]; or 0 */
  int64_t inner, outer, rank;
  double scale;            /* of the adapter */
} Product;

typedef struct {
  const float *weight; /* 0: no norm */
  float eps;
} Norm;

typedef struct {
  Norm before, after, query_norm, key_norm;
  Product query, key, value, out, gate, up, down;
  int64_t window;
} Layer;

typedef struct {
  const Torch *torch;
  DecodeStep *attention;
  const Layer *layers;
  int64_t layer_count, hidden;
  void *const *prompt_keys, *const *own; /* [layers] of the cache */
  int64_t prompt_bytes;                  /* from a layer's prompt keys to its prompt values */
  void *const *prefix_keys;              /* [layers], or 0 */
  int64_t prefix_bytes;                  /* from a layer's prefix keys to its prefix values */
  const void *embeddings;
  int64_t embeddings_half; /* whether they are bfloat16 */
  const int64_t *newest; /* [rows] tokens to read */
  Norm norm;
  Product head;
  int64_t rows, padded; /* live rows; rows of the products, the others being padding */
  int64_t direct;       /* whether product.c computes the products */
  float *x, *inverse;   /* [padded, hidden] sums of the layers; numbers that only a gradient would need */
  void *normed, *query, *key, *value, *attended, *delta, *gate, *up; /* [padded, ...] */
  float *head_rows;     /* [padded, heads * d] */
  void *adapted;        /* [padded, largest rank + outer] of the adapters */
  void *logits;         /* [padded, vocabulary] */
} Step;

void grouprl_add_norm(const float *, const void *, const float *, float *, void *, float *, int64_t, int64_t, float, int,
                      int);
void grouprl_product(const float *, const float *, const float *, float *, int64_t, int64_t, int64_t);
void grouprl_swiglu(const void *, const void *, void *, int64_t, int);

static int32_t tensor(const Torch *t, void *data, int64_t rows, int64_t columns, int transposed, Tensor *made) {
  int64_t sizes[2] = {rows, columns}, strides[2] = {transposed ? 1 : columns, transposed ? rows : 1};
  return t->create(data, 2, sizes, strides, 0, t->dtype, t->device_type, 0, made);
}

/* y = beta * added + alpha * x weight^T; without `added` y = x weight^T. */
static int32_t linear(const Torch *t, void *x, void *weight, Tensor added, Tensor y, int64_t rows, int64_t inner,
                      int64_t outer, double alpha) {
  Tensor left = 0, right = 0;
  int32_t failed = tensor(t, x, rows, inner, 0, &left);
  if (!failed) failed = tensor(t, weight, inner, outer, 1, &right);
  if (!failed) failed = added ? t->multiply_add(y, added, left, right, 1.0, alpha) : t->multiply(y, left, right);
  if (left) t->destroy(left);
  if (right) t->destroy(right);
  return failed;
}

/* y += scale * x in bfloat16, rounded after the product too, as PEFT's modules do: the learner's are these. */
static void add_scaled(void *y, const void *x, float scale, int64_t size) {
  for (int64_t i = 0; i < size; i += W) {
    uvec part = rounded(load(x, i, HALVES) * scale) & 0xffff0000u;
    store(y, i, load(y, i, HALVES) + (vec)part, HALVES);
  }
}

static int32_t product(const Step *s, const Product *p, void *x, void *y) {
  const Torch *t = s->torch;
  Tensor out = 0, bias = 0, adapted = 0, more = 0;
  void *own = (uint16_t *)s->adapted + s->padded * p->rank;
  int64_t one = 1;
  int32_t failed = tensor(t, y, s->padded, p->outer, 0, &out);
  if (s->direct) {
    grouprl_product(x, p->weight, p->bias, y, s->padded, p->inner, p->outer);
  } else {
    if (!failed && p->bias) failed = t->create(p->bias, 1, &p->outer, &one, 0, t->dtype, t->device_type, 0, &bias);
    if (!failed) failed = linear(t, x, p->weight, bias, out, s->padded, p->inner, p->outer, 1.0);
  }
  if (!failed && p->down) {
    failed = tensor(t, s->adapted, s->padded, p->rank, 0, &adapted);
    if (!failed) failed = linear(t, x, p->down, 0, adapted, s->padded, p->inner, p->rank, 1.0);
    if (!s->attention->half) {
      if (!failed) failed = linear(t, s->adapted, p->up, out, out, s->padded, p->rank, p->outer, p->scale);
    } else {
      if (!failed) failed = tensor(t, own, s->padded, p->outer, 0, &more);
      if (!failed) failed = linear(t, s->adapted, p->up, 0, more, s->padded, p->rank, p->outer, 1.0);
      if (!failed) add_scaled(y, own, p->scale, s->padded * p->outer);
    }
  }
  if (out) t->destroy(out);
  if (bias) t->destroy(bias);
  if (adapted) t->destroy(adapted);
  if (more) t->destroy(more);
  return failed;
}

static void add_norm(const Step *s, const void *delta, const Norm *norm) {
  int half = s->attention->half;
  grouprl_add_norm(s->x, delta, norm->weight, s->x, s->normed, s->inverse, s->rows, s->hidden, norm->eps, half, half);
}

/* The norm of each head of queries or keys, in place. */
static void norm_heads(const Step *s, const Norm *norm, void *values, int64_t heads) {
  int64_t d = s->attention->d, size = s->rows * heads * d;
  int half = s->attention->half;
  if (!norm->weight) return;
  for (int64_t i = 0; i < size; i += W) store(s->head_rows, i, load(values, i, half), 0);
  grouprl_add_norm(s->head_rows, 0, norm->weight, 0, values, s->inverse, s->rows * heads, d, norm->eps, 0, half);
}

int64_t grouprl_decode_step(const Step *s, int64_t parts) {
  DecodeStep *a = s->attention;
  const void *delta = 0;
  int32_t failed = 0;
  for (int64_t row = 0; row < s->rows; row++)
    for (int64_t c = 0; c < s->hidden; c += W)
      store(s->x, row * s->hidden + c, load(s->embeddings, s->newest[row] * s->hidden + c, s->embeddings_half), 0);
  a->q = s->query, a->k = s->key, a->v = s->value, a->out = s->attended;
  for (int64_t i = 0; i < s->layer_count && !failed; i++) {
    const Layer *layer = s->layers + i;
    add_norm(s, delta, &layer->before);
    if ((failed = product(s, &layer->query, s->normed, s->query))) break;
    if ((failed = product(s, &layer->key, s->normed, s->key))) break;
    if ((failed = product(s, &layer->value, s->normed, s->value))) break;
    norm_heads(s, &layer->query_norm, s->query, a->heads);
    norm_heads(s, &layer->key_norm, s->key, a->kv_heads);
    a->prompt_keys = s->prompt_keys[i], a->prompt_values = (char *)s->prompt_keys[i] + s->prompt_bytes;
    if (a->before) a->prefix_keys = s->prefix_keys[i], a->prefix_values = (char *)s->prefix_keys[i] + s->prefix_bytes;
    a->own = s->own[i], a->window = layer->window;
    grouprl_decode_attention(a, parts);
    if ((failed = product(s, &layer->out, s->attended, s->delta))) break;
    add_norm(s, s->delta, &layer->after);
    if ((failed = product(s, &layer->gate, s->normed, s->gate))) break;
    if ((failed = product(s, &layer->up, s->normed, s->up))) break;
    grouprl_swiglu(s->gate, s->up, s->gate, s->padded * layer->gate.outer, a->half);
    if ((failed = product(s, &layer->down, s->gate, s->delta))) break;
    delta = s->delta;
  }
  if (failed) return failed;
  add_norm(s, delta, &s->norm);
  return product(s, &s->head, s->normed, s->logits);
}

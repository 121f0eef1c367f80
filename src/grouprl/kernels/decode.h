/* What a decode step reads and writes in the cache of keys and values; its layout is described in decode.c. */
#ifndef GROUPRL_DECODE_H
#define GROUPRL_DECODE_H

#include <stdint.h>

typedef struct {
  const void *q, *k, *v;
  void *out;
  const float *cosine, *sine; /* [positions, d] */
  void *prompt_keys, *prompt_values, *own;
  void *prefix_keys, *prefix_values; /* as of one prompt, of the tokens that begin all of them */
  const int64_t *order;  /* [n] live rows, sorted by part */
  const int64_t *begin;  /* [parts + 1] index in `order` of the first row of each part */
  const int64_t *slot;   /* [parts] cache slot of the part's prompt */
  const int64_t *prompt; /* [parts] tokens of the part's prompt behind the prefix */
  const int64_t *length; /* [n] tokens of the row's completion so far, including the newest */
  int64_t heads, kv_heads, d, prompt_tiles, own_tiles;
  int64_t before; /* tokens of the prefix, a multiple of W */
  int64_t window; /* a token sees this many, itself included */
  float scaling;
  int half, cache_half;
} DecodeStep;

void grouprl_decode_attention(const DecodeStep *s, int64_t parts);

#endif

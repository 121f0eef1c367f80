/* Sixteen floats at a time, in GCC's and Clang's portable vectors; the compiler splits them for narrower machines. */
#ifndef GROUPRL_VECTOR_H
#define GROUPRL_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define W 16

typedef float vec __attribute__((vector_size(64), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(64), aligned(4)));
typedef uint16_t hvec __attribute__((vector_size(32), aligned(2)));

INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

/* half: the array is bfloat16, else float32. */
INLINE vec load(const void *from, int64_t at, int half) {
  if (!half) return *(const vec *)((const float *)from + at);
  uvec wide = __builtin_convertvector(*(const hvec *)((const uint16_t *)from + at), uvec) << 16;
  return (vec)wide;
}

INLINE void store(void *to, int64_t at, vec x, int half) {
  if (!half) {
    *(vec *)((float *)to + at) = x;
    return;
  }
  uvec bits = (uvec)x, nan = (uvec)(x != x);
  bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
  bits = (nan & 0x7fc00000) | (~nan & bits);
  *(hvec *)((uint16_t *)to + at) = __builtin_convertvector(bits >> 16, hvec);
}

INLINE vec larger(vec a, vec b) {
  ivec first = a > b;
  return (vec)((first & (ivec)a) | (~first & (ivec)b));
}

INLINE float sum(vec x) {
  float eight[8], four[4];
  for (int i = 0; i < 8; i++) eight[i] = x[i] + x[i + 8];
  for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float largest(vec x) {
  float most = x[0];
  for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
  return most;
}

/* e^x to about 1e-7 of its value, by 2^n e^r with |r| <= ln(2)/2 and a polynomial of degree 6 in r; 0 below -87. */
INLINE vec exponential(vec x) {
  vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding and subtracting it rounds to a whole number */
  vec low = splat(-87.0f), high = splat(88.0f);
  ivec tiny = x < low;
  vec y = larger(x, low);
  ivec big = y > high;
  y = (vec)((big & (ivec)high) | (~big & (ivec)y));
  vec n = y * 1.44269504088896341f + magic - magic;
  vec r = y - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first of them exact */
  vec p = splat(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  ivec scale = (__builtin_convertvector(n, ivec) + 127) << 23;
  vec result = p * (vec)scale;
  return (vec)(~tiny & (ivec)result);
}

#endif

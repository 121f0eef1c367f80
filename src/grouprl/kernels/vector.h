/* One vector register of floats at a time, in GCC's and Clang's portable vectors. The width is the target's: a compiler splits
 * wider vectors through memory, which made attention 13 to 40 times as slow (64 bytes on AVX2, GCC 12). Targets without a
 * width of their own here get 16 bytes, as SSE and NEON have. */
#ifndef GROUPRL_VECTOR_H
#define GROUPRL_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define W 16 /* floats of a vector */
#define REGISTERS 32
#elif defined(__AVX2__) && defined(__FMA__)
#define W 8
#define REGISTERS 16
#else
#define W 4
#if defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#endif

typedef float vec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t bfloat __attribute__((may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * W), aligned(2), may_alias)); /* rows are rounded in their place */

INLINE vec splat(float x) { return x - (vec){0}; }

/* What an array holds: numbers in float32 or bfloat16, or words of two neighbors in bfloat16, the first in the low half,
 * whose products a processor adds to a sum in one instruction. */
enum { FLOATS, HALVES, PAIRS };

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define MULTIPLIES_PAIRS 1
INLINE vec add_products(vec sum, vec a, vec b) {
  return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
#ifndef MULTIPLIES_PAIRS /* tests set it, for processors that lack the instruction */
#define MULTIPLIES_PAIRS 0
#endif
INLINE vec add_products(vec sum, vec a, vec b) {
  uvec high = (uvec){0} + 0xffff0000u;
  return sum + (vec)((uvec)a << 16) * (vec)((uvec)b << 16) + (vec)((uvec)a & high) * (vec)((uvec)b & high);
}
#endif

/* sum + word * other, or + the products of two pairs. */
INLINE vec multiply_add(vec sum, const float *word, vec other, int kind) {
  if (kind != PAIRS) return sum + *word * other;
  uint32_t bits;
  memcpy(&bits, word, 4);
  return add_products(sum, (vec)((uvec){0} + bits), other);
}

/* half: the array is bfloat16 (HALVES), else its elements are words of 4 bytes. */
INLINE vec load(const void *from, int64_t at, int half) {
  if (half != HALVES) return *(const vec *)((const float *)from + at);
  uvec wide = __builtin_convertvector(*(const hvec *)((const uint16_t *)from + at), uvec) << 16;
  return (vec)wide;
}

/* The bits of bfloat16 in the upper half of each word; the lower half is to be dropped. */
INLINE uvec rounded(vec x) {
  uvec bits = (uvec)x, nan = (uvec)(x != x);
  bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
  return (nan & 0x7fc00000) | (~nan & bits);
}

INLINE void store(void *to, int64_t at, vec x, int half) {
  if (half != HALVES) *(vec *)((float *)to + at) = x;
  else *(hvec *)((uint16_t *)to + at) = __builtin_convertvector(rounded(x) >> 16, hvec);
}

/* Words of two numbers in bfloat16. */
INLINE vec paired(vec first, vec second) {
  return (vec)((rounded(first) >> 16) | (rounded(second) & 0xffff0000u));
}

INLINE vec larger(vec a, vec b) {
  ivec first = a > b;
  return (vec)((first & (ivec)a) | (~first & (ivec)b));
}

INLINE float sum(vec x) {
  float parts[W];
  store(parts, 0, x, 0);
#pragma GCC unroll 4
  for (int n = W / 2; n; n /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) parts[i] += parts[i + n];
  return parts[0];
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
